"""The result of one check of `tcbench doctor`."""

from dataclasses import dataclass
from typing import Literal

FindingState = Literal["ok", "note", "missing", "unusable", "broken"]


@dataclass(frozen=True)
class Finding:
    """The result of one check of `tcbench doctor`. A `note` tells what may disturb measurements or is good to know;
    `missing` is an optional library that is not installed; `unusable` is a GPU that cannot be used although the CPU
    can; `broken` is what keeps tcbench from running at all."""

    state: FindingState
    subject: str
    detail: str
    remedy: str | None = None

"""One thing that `tcbench doctor` looked at."""

from dataclasses import dataclass
from typing import Literal

FindingState = Literal["ok", "note", "missing", "unusable", "broken"]


@dataclass(frozen=True)
class Finding:
    """`note` would spoil a measurement or is good to know; `missing` is something optional; `unusable` is a GPU set-up
    that cannot run, while the CPU can; `broken` keeps tcbench from running at all."""

    state: FindingState
    subject: str
    detail: str
    remedy: str | None = None

"""Which files a command reads when it is given results."""

from __future__ import annotations

import os
from pathlib import Path

import factories
import pytest

from tcbench import record
from tcbench.cli.results import newest
from tcbench.errors import SelectionError


def plant(folder: Path, *names: str) -> None:
    """A run's file per name, each written a minute before the one named before it."""
    folder.mkdir(parents=True, exist_ok=True)
    for minutes, name in enumerate(names):
        path = folder / f"{name}.jsonl"
        path.write_bytes(record.encode(factories.make_record()) + b"\n")
        os.utime(path, (1_800_000_000 - 60 * minutes,) * 2)  # 2027-01-15


@pytest.mark.parametrize(
    "names",
    [
        ("cpu-20261121-035658", "peers-20261121-110639"),
        ("z/peers-20261121-110639", "a/cpu-20261121-110640"),
        ("cpu-20261121-110639", "cpu-20261121-110639-2"),
        ("cpu-20261121-110639-9", "cpu-20261121-110639-10"),
        ("gate-20261121-155558-base", "gate-20261121-155558-current"),
        ("gate-20261121-155558-2-base", "gate-20261121-155558-2-current"),
        ("cpu-20261121-155557", "gate-20261121-155558-base"),  # its other side was moved away
        ("cpu-20261121-035658", "mine"),  # by its last write, in 2027
        ("mine", "cpu-20280101-000000"),
    ],
)
def test_the_newest_run_is_the_one_that_began_last_whatever_was_written_last(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
    plant(tmp_path, *names)
    assert newest(tmp_path) == tmp_path / f"{names[1]}.jsonl"


def test_the_newest_run_is_a_file_with_records_and_no_base_of_a_gate(tmp_path: Path) -> None:
    plant(tmp_path / "m", "cpu-20261121-035658", "gate-20261121-155558-base")
    (tmp_path / "m" / "gate-20261121-155558-current.jsonl").touch()  # ended before its first record
    (tmp_path / "m" / "cpu-20990101-000000.jsonl").mkdir()
    (tmp_path / "m" / "cpu-20990101-000001.jsonl").symlink_to(tmp_path / "gone")
    plant(tmp_path / "baselines", "main-20990101-000000")
    assert newest(tmp_path) == tmp_path / "m" / "cpu-20261121-035658.jsonl"
    with pytest.raises(SelectionError, match="no results in"):
        newest(tmp_path / "nowhere")

"""tools/planted.py: every frozen fault has its place, faults go where code goes, and reach nothing beyond."""

import os
import tempfile
import textwrap
from pathlib import Path

import planted
import planted_rule
import pytest
from planted_rule import Fault

JUDGE = """
    def judge(low, high):
        return low < high
"""
VERDICT = JUDGE.replace("judge", "verdict")


def package(root: Path, **modules: str) -> dict[str, planted_rule.Module]:
    for name, source in modules.items():
        path = root / "tcbench" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source), "utf-8")
    return planted_rule.package(root)


@pytest.mark.long
def test_every_frozen_fault_has_its_place_in_the_code():
    modules = planted_rule.package(planted.ROOT)
    lost = [fault.id for fault in planted.frozen() if not planted_rule.place(fault, modules)]
    assert not lost, (
        "each needs a line in RENAMED (tools/planted_rule.py) or a successor: tools/planted.py draw --under"
    )


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ({"room__one": JUDGE}, "tcbench.room.one"),
        ({"room__one": "", "house__two": JUDGE}, "tcbench.house.two"),
        ({"room__one": "", "house__two": JUDGE, "house__ones": JUDGE}, "tcbench.house.ones"),
        ({"room__one": "", "house__two": JUDGE, "house__three": JUDGE}, None),
        ({"room__one": JUDGE.replace("low < high", "low <= high")}, None),
        ({"room__one": VERDICT}, None),
        ({"hall__new": VERDICT, "hall__other": VERDICT}, "tcbench.hall.new"),
    ],
)
def test_a_fault_is_found_where_its_function_went_or_not_at_all(tmp_path, monkeypatch, modules, expected):
    monkeypatch.setattr(planted_rule, "RENAMED", [("tcbench.room.one.judge", "tcbench.hall.new.verdict")])
    place = planted_rule.place(
        Fault("tcbench.room.one", "judge", '< becomes <= in "low < high"', 1), package(tmp_path, **modules)
    )
    assert (place and place[0].name) == expected


def test_what_runs_with_a_fault_reaches_no_process_and_no_file_but_its_own():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        clone, other = Path(folder, "clone"), Path(folder, "other")
        clone.mkdir()
        other.touch()
        command = f"kill -0 {os.getpid()} || rm -f {other} || echo x >y"
        code, output = planted.ask([*planted.ALONE, "sh", "-c", command], clone)
        if "Operation not permitted" in output:
            pytest.skip("no namespaces here")
        assert (code, other.exists(), (clone / "y").exists()) == (0, True, True)

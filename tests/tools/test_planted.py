"""tools/planted.py: every frozen fault has its place, what is drawn follows the rule, and faults go where code goes."""

import ast
import os
import tempfile
import textwrap
from pathlib import Path

import planted
import planted_rule
import pytest
from planted_rule import Fault

JUDGE = """
    def judge(low, high, *, least=2):
        \"\"\"One of "is" and 'not'.\"\"\"
        log(least)
        if not high:
            raise ValueError(f"{low + 1}")
        return "é" if low < high else max(
            low, high
        )
"""
VERDICT = JUDGE.replace("judge", "verdict")


def package(root: Path, **modules: str) -> dict[str, planted_rule.Module]:
    for name, source in modules.items():
        path = root / "tcbench" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source), "utf-8")
    return planted_rule.package(root)


def test_every_frozen_fault_has_its_place_in_the_code():
    modules = planted_rule.package(planted.ROOT)
    lost = [fault.id for fault in planted.frozen() if not planted_rule.place(fault, modules)]
    assert not lost, (
        "each needs a line in RENAMED (tools/planted_rule.py) or a successor: tools/planted.py draw --under"
    )


def test_the_rule_finds_these_edits_and_no_text_message_or_log(tmp_path):
    module = package(tmp_path, room__one=JUDGE)["tcbench.room.one"]
    assert [fault.edit for fault in module.faults("judge")] == [
        '2 becomes 3 in "low, high, *, least=2"',
        'drop not of "high"',
        """remove "raise ValueError(f'{low + 1}')\"""",
        'raise RuntimeError for "ValueError"',
        """return None for "'é' if low < high else max(low, high)\"""",
        '< becomes <= in "low < high"',
        'max becomes min in "max(low, high)"',
    ]


def test_an_edit_changes_what_it_names_and_nothing_else(tmp_path):
    module = package(tmp_path, room__one=JUDGE)["tcbench.room.one"]
    before = ast.unparse(ast.parse(module.source))
    after = {edit.name: ast.unparse(ast.parse(edit.apply(module.source))) for edit in module.faults("judge").values()}
    assert after['< becomes <= in "low < high"'] == before.replace("low < high", "low <= high")
    assert after['max becomes min in "max(low, high)"'] == before.replace("max(", "min(")
    assert after['drop not of "high"'] == before.replace("if not high", "if high")
    assert before not in after.values()


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
    found = planted_rule.place(
        Fault("tcbench.room.one", "judge", '< becomes <= in "low < high"', 1), package(tmp_path, **modules)
    )
    assert (found and found[0].name) == expected


def test_rooms_get_faults_in_proportion_to_their_code_and_a_seed_draws_the_same(tmp_path):
    twice = JUDGE + JUDGE.replace("judge", "again")
    modules = package(tmp_path, large__one=twice, small__one=JUDGE)
    drawn = planted_rule.draw(modules, 1, 6)
    assert sorted(fault.room for fault in drawn) == ["large"] * 4 + ["small"] * 2
    assert len(set(drawn)) == 6
    assert planted_rule.draw(modules, 1, 6) == drawn != planted_rule.draw(modules, 2, 6)


def test_tests_with_the_module_s_name_run_first_and_no_more_than_the_budget_allows(tmp_path):
    module = package(tmp_path, room__one=JUDGE)["tcbench.room.one"]
    (tmp_path / "tests" / "room").mkdir(parents=True)
    (tmp_path / "tests" / "room" / "test_one.py").touch()
    seconds = {"tests/a.py": planted.BUDGET_S, "tests/b.py": 2.0, "tests/room/test_one.py": 9.0}
    files = ["tests/a.py", "tests/b.py"]
    parts = ["tests/room/test_one.py"], ["tests/b.py"], ["tests/a.py"]
    assert planted.chosen(module, files, seconds, tmp_path) == parts


def test_a_module_s_bytecode_goes_with_its_text(tmp_path):
    path = package(tmp_path, one=JUDGE)["tcbench.one"].path
    compiled = path.parent / "__pycache__" / "one.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.touch()
    planted.write(path, "")
    assert not compiled.exists()


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

"""No reading command ever does what docs/security.md rules out: each under an audit hook, on hostile files."""

import json
import subprocess
import sys
from pathlib import Path

import hostile
import pytest

pytestmark = pytest.mark.faults


def test_commands_that_read_run_nothing_and_write_nothing_but_their_output(tmp_path: Path) -> None:
    folder = hostile.prepare(tmp_path / "here")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    script = Path(hostile.__file__).with_name("audited.py")
    ended = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-2000:]
    report = json.loads(ended.stdout)
    assert report["self"] == {action: action != "the output, wrongly" for action in report["self"]}
    assert len(report["done"]) == 2 * len(hostile.RECORDS) + len(hostile.TRACES)
    assert [ended for ended in report["done"] if ended["did"]] == []
    assert [ended["wrong"] for ended in report["done"] if ended["wrong"]] == []
    assert sum(ended["code"] == 0 for ended in report["done"]) > 30  # they got as far as showing something
    assert not report["ran"]
    assert {path: path.read_bytes() for path in before} == before

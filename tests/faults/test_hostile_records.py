"""Records that anyone may have made, against every command that reads records: one line and an exit code, always."""

import json
from pathlib import Path

import hostile
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tcbench.core import record

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile.prepare(tmp_path_factory.mktemp("hostile") / "here")


changes = st.lists(st.tuples(st.sampled_from(hostile.PLACES), st.sampled_from(hostile.THINGS)), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(changes, min_size=1, max_size=3), st.data())
def test_whatever_stands_in_a_record_every_command_ends_well(folder: Path, records, data) -> None:
    valid = hostile.valid()
    file = hostile.write(
        folder / "hostile.jsonl", [valid, *(hostile.changed(valid, changes_of_record) for changes_of_record in records)]
    )
    words = data.draw(st.sampled_from(hostile.RECORDS))
    assert hostile.run(folder, words, file).wrong is None
    assert hostile.active(folder) == []
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("first", range(0, len(hostile.PLACES), 10))
def test_anything_in_each_place_by_itself_ends_well_in_the_commands_that_show_most(folder: Path, first: int) -> None:
    valid = hostile.valid()
    places = hostile.PLACES[first : first + 10]
    odd = (hostile.changed(valid, [(place, thing)]) for place in places for thing in hostile.THINGS)
    file = hostile.write(folder / "each.jsonl", [valid, *filter(readable, odd)])
    for words in (("explain", "{}", "--json"), ("compare", "{}", "good.jsonl", "--allow", "all", "--format", "json")):
        assert hostile.run(folder, words, file).wrong is None
    assert not (folder / "ran").exists()


def readable(line: dict) -> bool:
    try:
        record.decode(json.dumps(line))
    except record.RecordError:
        return False
    return True


@pytest.mark.parametrize("length", [4_000, 5_000_000])
@pytest.mark.parametrize("words", hostile.RECORDS, ids=" ".join)
def test_long_strings_leave_one_line_on_standard_error_and_end_in_time(folder: Path, words, length) -> None:
    text = "x" * length
    texts = [("cell", "config"), ("cell", "scenario"), ("run_id",), ("environment", "machine"), ("environment", "blas")]
    odd = hostile.changed(hostile.valid(), [(place, text) for place in texts])
    ended = hostile.run(folder, words, hostile.write(folder / "long.jsonl", [hostile.valid(), odd]))
    assert ended.wrong is None
    assert len(ended.err) < 9_000

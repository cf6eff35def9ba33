"""Records that anyone may have made, against every command that reads records: one line and an exit code, always."""

from __future__ import annotations

from pathlib import Path

import hostile
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile.prepare(tmp_path_factory.mktemp("hostile") / "here")


changes = st.lists(st.tuples(st.sampled_from(hostile.PLACES), st.sampled_from(hostile.THINGS)), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(changes, min_size=1, max_size=3), st.data())
def test_whatever_stands_in_a_record_every_command_ends_well(folder: Path, records, data) -> None:
    valid = hostile.valid()
    file = hostile.write(folder / "hostile.jsonl", [valid, *(hostile.changed(valid, one) for one in records)])
    words = data.draw(st.sampled_from(hostile.RECORDS))
    assert hostile.run(folder, words, file).wrong is None
    assert not (folder / "ran").exists()

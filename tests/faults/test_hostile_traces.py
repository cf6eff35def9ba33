"""Traces that anyone may have made, against every command that reads traces: one line and an exit code, always."""

import gzip
import json
from pathlib import Path
from typing import Any

import hostile
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile.prepare(tmp_path_factory.mktemp("hostile") / "here")


@pytest.fixture(scope="module")
def valid(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(hostile.trace(folder / "valid.json").read_bytes())
    return document


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_stands_in_a_trace_every_command_ends_well(folder: Path, valid: dict[str, Any], data) -> None:
    places = tuple(hostile.places(valid))
    changes = data.draw(
        st.lists(st.tuples(st.sampled_from(places), st.sampled_from(hostile.THINGS)), min_size=1, max_size=4)
    )
    file = folder / "hostile.json.gz"
    file.write_bytes(gzip.compress(json.dumps(hostile.changed(valid, changes)).encode()))
    words = data.draw(st.sampled_from(hostile.TRACES))
    assert hostile.run(folder, words, file).wrong is None
    assert hostile.active(folder) == []
    assert not (folder / "ran").exists()

"""Tests of the check, by the first bytes, that every feed can read a file."""

from pathlib import Path

import odd_images
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tcbench.engine.feeds import image_header


@pytest.mark.parametrize("name", odd_images.refused())
def test_what_some_feed_would_not_take_is_told_for_what_it_is(tmp_path: Path, name: str) -> None:
    data, reason = odd_images.refused()[name]
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    assert str(image_header.refusal(str(path))).startswith(reason)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_bytes_are_taken_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Headers cut, changed and made up never end it otherwise, or never."""
    encoded = odd_images.accepted()[data.draw(st.sampled_from(["plain", "cmyk", "png", "profile"]))]
    cut = data.draw(st.integers(0, 700))
    changed = encoded[:cut] + data.draw(st.binary(max_size=40)) + encoded[cut + data.draw(st.integers(0, 40)) :]
    path = tmp_path_factory.getbasetemp() / "any.jpg"
    path.write_bytes(changed)
    reason = image_header.refusal(str(path))
    assert reason is None or reason.startswith(("is ", "has "))

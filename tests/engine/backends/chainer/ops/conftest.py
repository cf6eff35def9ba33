"""Operations compute on the processor."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _on_the_processor(on_the_processor: None) -> None: ...

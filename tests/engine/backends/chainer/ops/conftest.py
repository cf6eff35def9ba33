"""Operations compute on the processor."""

import pytest


@pytest.fixture(autouse=True)
def _on_the_processor(on_the_processor: None) -> None: ...

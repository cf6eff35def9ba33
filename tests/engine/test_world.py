"""The process-wide current world."""

import pytest

from tcbench.engine.world import ALONE, World, current, entered


def test_what_is_current_is_so_within_and_no_longer():
    outer, inner = World(0, 2), World(1, 2)
    with entered(outer):
        with pytest.raises(RuntimeError), entered(inner):
            assert current() is inner
            raise RuntimeError
        assert current() is outer
    assert current() is ALONE

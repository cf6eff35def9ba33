"""Weights drawn ahead are those of the seed, whatever else is asked for between them."""

import threading

import numpy as np
import pytest

from tcbench.engine.backends import initial

SHAPES = ((3,), (64, 3, 7, 7), (1 << 19, 3), (), (5, 2), (1,))


def draws(rng: np.random.RandomState) -> list[np.ndarray]:
    return [rng.standard_normal(shape) for shape in SHAPES]


@pytest.mark.parametrize("between", [lambda rng: 0, lambda rng: rng.randint(2**31), lambda rng: rng.standard_normal()])
def test_numbers_drawn_ahead_are_the_seeds_to_the_bit(between):
    plain = np.random.RandomState(7)
    expected = [*draws(plain), between(plain), *draws(plain)]
    with initial.prefetch(7), initial.random_state(7) as rng:
        assert isinstance(rng, initial.PrefetchedRandomState)
        prefetched = [*draws(rng), between(rng), *draws(rng)]
    assert all(np.array_equal(number, reference) for number, reference in zip(prefetched, expected, strict=True))


def assert_no_thread_is_left() -> None:
    for thread in threading.enumerate():
        if thread.name == "initial weights":
            thread.join(10)
            assert not thread.is_alive()


def test_only_the_first_network_of_the_seed_takes_them_and_no_thread_is_left():
    new = initial.random_state
    with initial.prefetch(1), new(2) as other, new(1) as first, new(1) as second:
        is_prefetched = [isinstance(rng, initial.PrefetchedRandomState) for rng in (other, first, second)]
        assert is_prefetched == [False, True, False]
        assert first.standard_normal(()) == second.standard_normal(())
    with initial.prefetch(3):
        pass
    assert_no_thread_is_left()


def test_a_thread_with_nowhere_to_put_its_numbers_ends_too(monkeypatch):
    monkeypatch.setattr(initial, "_MAX_BLOCKS", 1)
    rng = initial.PrefetchedRandomState(0)
    rng.standard_normal(3)
    rng.end()
    assert_no_thread_is_left()
    assert rng.standard_normal(2).tolist() == np.random.RandomState(0).standard_normal(5)[3:].tolist()


def test_repeated_numbers_are_normal_and_the_first_network_s_alone():
    with initial.use_source(3, initial.RepeatedRandomState(3)):
        with initial.random_state(3) as rng:
            drawn = rng.standard_normal((2, initial._BLOCK))
        with initial.random_state(3) as rng:
            assert type(rng) is np.random.RandomState
    assert (drawn[0] == drawn[1]).all()
    assert abs(drawn.mean()) < 0.01 and abs(drawn.std() - 1) < 0.01

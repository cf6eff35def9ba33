import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcbench.core.errors import OutOfDeviceMemory
from tcbench.engine.accelerators import out_of_memory
from tcbench.engine.accelerators.virtual.pool import BestFitPool, DeviceMemory, VirtualArray

KIB = 1024


def device(capacity_bytes: int = 1 << 40) -> DeviceMemory:
    return DeviceMemory(
        capacity_bytes, lambda requested, held: out_of_memory.device_memory_error(requested, held, capacity_bytes)
    )


def make_pool(memory: DeviceMemory, **options) -> BestFitPool:
    return BestFitPool(memory, lambda since_ns: None, **options)


def address(array: VirtualArray) -> int:
    return array.ctypes.data


def test_memory_stays_while_a_view_looks_at_it():
    memory = device()
    pool = make_pool(memory)
    view = pool.empty((256,), "float32")[10:20].reshape(2, 5)
    assert isinstance(view, VirtualArray)
    pool.empty((256,), "float32")
    assert memory.held_bytes == 2 * KIB
    del view
    assert memory.alive_bytes == 0


def test_the_smallest_chunk_that_is_large_enough_is_taken():
    pool = make_pool(device())
    large, middle, small = pool.empty((8 * KIB,), "uint8"), pool.empty((512,), "uint8"), pool.empty((2 * KIB,), "uint8")
    small_address = address(small)
    del large, small
    assert address(pool.empty((KIB,), "uint8")) == small_address
    assert middle.size


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 9_000)), max_size=120))
def test_arrays_never_overlap_and_the_pool_grows_only_where_nothing_fits(requests):
    """Against a plain account of the same memory: every free stretch, looked through."""
    memory = device()
    pool = make_pool(memory)
    alive: list[VirtualArray] = []
    for frees, index, size in requests:
        if frees and alive:
            alive.pop(index % len(alive))
            continue
        before, rounded = memory.held_bytes, -(-size // 512) * 512
        fits = any(stretch >= rounded for stretch in free_stretches(pool, alive))
        alive.append(pool.empty((size,), "uint8"))
        assert (memory.held_bytes == before) == fits
        assert memory.alive_bytes == sum(-(-array.nbytes // 512) * 512 for array in alive)
    spans = sorted((address(array), address(array) + array.nbytes) for array in alive)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def free_stretches(pool: BestFitPool, alive: list[VirtualArray]):
    """Yield the free bytes between the arrays of each block."""
    for first in pool._blocks.values():
        begin = np.frombuffer(first.block, np.uint8).ctypes.data
        end = begin + len(first.block)
        free_from = begin
        for array in sorted((a for a in alive if begin <= address(a) < end), key=address):
            yield address(array) - free_from
            free_from = address(array) + -(-array.nbytes // 512) * 512
        yield end - free_from


def test_what_does_not_fit_is_out_of_memory_and_says_so():
    pool = make_pool(device(64 * KIB))
    array = pool.empty((48 * KIB,), "uint8")
    with pytest.raises(OutOfDeviceMemory, match=r"requested 0\.0 MiB more; this process held at most 0\.0 MiB"):
        pool.empty((32 * KIB,), "uint8")
    assert array.size


def test_free_blocks_go_back_before_memory_runs_out():
    memory = device(64 * KIB)
    pool = make_pool(memory)
    pool.empty((40 * KIB,), "uint8")
    second = pool.empty((48 * KIB,), "uint8")
    assert (second.nbytes, memory.held_bytes, memory.peak_bytes) == (48 * KIB, 48 * KIB, 48 * KIB)


def test_blocks_that_must_stay_are_not_given_back():
    """A graph that is being captured may have their addresses."""
    pool = make_pool(device(64 * KIB), keeps=lambda: True)
    pool.empty((40 * KIB,), "uint8")
    with pytest.raises(OutOfDeviceMemory):
        pool.empty((48 * KIB,), "uint8")


def test_nothing_is_an_array_too():
    memory = device()
    assert make_pool(memory).empty((0, 3), "float32").shape == (0, 3)
    assert memory.held_bytes == 0

import gc
import threading
import weakref

import numpy as np
import pytest

from tcbench.engine.accelerators.cpu import threads


@pytest.mark.parametrize("n", [1, 2, 5])
def test_every_chunk_is_done_once(n):
    done = np.zeros(100, int)

    def mark(i):
        done[i] += 1

    with threads.use(n):
        threads.run(mark, range(100))
    assert (done == 1).all()


def test_results_come_in_the_order_of_the_chunks():
    with threads.use(3):
        assert threads.collect(lambda chunk: chunk**2, range(50)) == [chunk**2 for chunk in range(50)]


def test_one_thread_stays_on_the_callers():
    seen = set()
    with threads.use(1):
        threads.run(lambda _: seen.add(threading.get_ident()), range(10))
    assert seen == {threading.get_ident()}


def test_several_threads_work_at_the_same_time():
    meeting = threading.Barrier(3, timeout=20)
    with threads.use(3):
        threads.run(lambda _: meeting.wait(), range(3))  # would break with fewer


def test_a_helper_that_comes_late_is_not_waited_for_and_keeps_nothing_alive():
    held, released = threading.Semaphore(0), threading.Event()
    n_helpers = max(threads._helpers, 1)

    def hold(_):
        held.release()
        released.wait(60)

    with threads.use(n_helpers + 1):
        busy = threading.Thread(target=threads.run, args=(hold, range(n_helpers + 1)))
        busy.start()
        for _ in range(n_helpers + 1):
            assert held.acquire(timeout=20)  # every helper is now in a chunk of another call
        of_chunks = np.zeros(4, int)
        reference = weakref.ref(of_chunks)

        def mark(i, array=of_chunks):
            array[i] += 1

        late = threading.Thread(target=threads.run, args=(mark, range(4)))
        late.start()
        late.join(10)
        ended, marked = not late.is_alive(), of_chunks.tolist()
        del late, mark, of_chunks
        gc.collect()
        gone = reference() is None
        released.set()
        busy.join()
    assert (ended, marked, gone) == (True, [1] * 4, True)


@pytest.mark.parametrize("n", [1, 3])
def test_an_error_in_a_chunk_is_raised_and_the_next_call_works(n):
    def fail(i):
        if i == 3:
            raise KeyError("chunk 3")

    with threads.use(n):
        with pytest.raises(KeyError, match="chunk 3"):
            threads.run(fail, range(8))
        threads.run(lambda _: None, range(8))


def test_a_call_inside_a_chunk_does_not_wait_for_itself():
    done = []
    with threads.use(2):
        threads.run(lambda _: threads.run(done.append, range(4)), range(4))
    assert len(done) == 16


@pytest.mark.parametrize("chunks", [1, 4])
def test_blas_is_held_to_one_thread_and_its_threads_are_put_back(chunks):
    def now():
        return [library.num_threads for library in threads._blas]

    inside = []
    with threads.limited(threads._blas, 2):
        before = now()
        with threads.use(2):
            threads.run(lambda _: inside.append(now()), range(chunks))
        assert now() == before == [2] * len(before)
    assert inside == [[1] * len(before)] * chunks


def test_threads_context_restores_the_number_even_after_an_error():
    before = threads.get_threads()
    with pytest.raises(RuntimeError), threads.use(7):
        assert threads.get_threads() == 7
        raise RuntimeError
    assert threads.get_threads() == before


def test_fewer_than_one_thread_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        threads.use(0).__enter__()


@pytest.mark.parametrize(("total", "size"), [(0, 4), (1, 4), (10, 4), (10, 1), (10, 100)])
def test_spans_cover_everything_once(total, size):
    spans = threads.spans(total, size)
    assert [i for start, stop in spans for i in range(start, stop)] == list(range(total))
    assert all(stop - start <= size for start, stop in spans)


def test_scratch_is_reused_by_a_thread_and_not_shared_between_threads():
    own_scratch = threads.scratch("test", (10,), np.float32)
    assert threads.scratch("test", (5,), np.float32).ctypes.data == own_scratch.ctypes.data
    other_scratch = []
    thread = threading.Thread(target=lambda: other_scratch.append(threads.scratch("test", (10,), np.float32)))
    thread.start()
    thread.join()
    assert not np.shares_memory(own_scratch, other_scratch[0])

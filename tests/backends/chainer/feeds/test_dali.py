"""What only the DALI feed does: prefetch, lend its buffers, close."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tcbench.backends.chainer.feeds import dali
from tcbench.backends.chainer.spec import FeedSpec, TensorSpec
from tcbench.dataset import ImageFolder

pytest.importorskip("nvidia.dali")


def _spec(images: ImageFolder, batch_size: int = 8) -> FeedSpec:
    return FeedSpec(images, batch_size, 64, 24, TensorSpec("NHWC", "float16"), seed=1, threads=1)


def _n_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_batches_are_made_while_nobody_asks(images: ImageFolder) -> None:
    """Two batches (a tenth of a second of work here) are ready after a pause; taking them costs next to nothing."""
    feed = dali.make_dali_feed(_spec(images, batch_size=48))
    feed.next()
    before = time.process_time()
    deadline = time.monotonic() + 10
    while time.process_time() - before < 0.02 and time.monotonic() < deadline:
        time.sleep(0.05)  # this thread does nothing; DALI's use the time
    worked = time.process_time() - before
    feed.close()
    assert feed.prefetch_depth == 2
    assert worked >= 0.02


def test_a_batch_is_lent_and_stays_until_the_next_call(images: ImageFolder) -> None:
    feed = dali.make_dali_feed(_spec(images))
    for _ in range(5):
        x, t = feed.next()
        kept, kept_t = x.copy(), t.copy()
        time.sleep(0.03)  # DALI fills its queue meanwhile
        assert not x.flags.owndata
        assert (x == kept).all()
        assert (t == kept_t).all()
    feed.close()


def test_closing_ends_its_threads(images: ImageFolder) -> None:
    before = _n_threads()
    feed = dali.make_dali_feed(_spec(images))
    feed.next()
    during = _n_threads()
    feed.close()
    deadline = time.monotonic() + 10
    while _n_threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert during > before
    assert _n_threads() <= before
    assert threading.active_count() >= 1


def test_epochs_stay_whole_when_files_outnumber_the_shuffle_buffer(
    images: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dali, "_SHUFFLE_BUFFER", 5)
    feed = dali.make_dali_feed(_spec(images, batch_size=9))
    stream = np.concatenate([feed.next()[1].copy() for _ in range(8)]).tolist()
    feed.close()
    epochs = [tuple(stream[start : start + 24]) for start in (0, 24, 48)]
    assert all(sorted(epoch) == list(range(24)) for epoch in epochs)
    assert len({*epochs, tuple(range(24))}) == 4


def test_dali_is_imported_by_the_factory_only_and_quietly(images: ImageFolder) -> None:
    code = (
        "import sys, pathlib\n"
        "from tcbench.backends.chainer.feeds import dali\n"
        "from tcbench.backends.chainer.spec import FeedSpec, TensorSpec\n"
        "from tcbench.dataset import scan\n"
        "assert 'nvidia.dali' not in sys.modules\n"
        f"images = scan(pathlib.Path({str(images.root)!r}))\n"
        "feed = dali.make_dali_feed(FeedSpec(images, 4, 32, 16, TensorSpec(), 1, 1))\n"
        "feed.next()\n"
        "feed.close()\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

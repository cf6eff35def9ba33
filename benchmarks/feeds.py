"""Prints what each feed delivers, in images/s, and how much of its work is the decoding itself.

    uv run python benchmarks/feeds.py [--threads N] [--rounds N] [--batch-size N]

The feeds take turns, one batch each per round, so that drift hits all alike; a figure is the median over the rounds.
DALI makes batches ahead, so its threads are let work only while its turn lasts: a new pipeline is drained first.
"Decode share" is the time to turn the same files' bytes into RGB pixels and nothing else, over the feed's time.
"""

import argparse
import importlib
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable
from io import BytesIO

import numpy as np

from tcbench.engine.accelerators import protocol as accelerators
from tcbench.engine.accelerators.cpu.reference.accelerator import NumpyAccelerator
from tcbench.engine.feeds.base import Feed
from tcbench.engine.feeds.dataset import ImageFolder
from tcbench.engine.feeds.generated import ensure_generated
from tcbench.engine.feeds.spec import FeedSpec, TensorSpec

FEEDS = ("pillow", "opencv", "dali", "synthetic")


def make_feed(name: str, spec: FeedSpec) -> Feed | None:
    """None where the feed's package is not installed."""
    module = importlib.import_module(f"tcbench.engine.feeds.{name}")
    try:
        feed: Feed = getattr(module, f"make_{name}_feed")(spec)
    except ImportError as error:
        print(f"{name}: left out ({error})", file=sys.stderr)
        return None
    return feed


def images_per_s(feed: Feed, batch_size: int) -> float:
    """A turn of one batch; of a prefetching feed as many as empty its queue and then four that it has to make."""
    for _ in range(feed.prefetch_depth and feed.prefetch_depth + 1):
        feed.next()
    n_batches = 4 if feed.prefetch_depth else 1
    start = time.perf_counter()
    for _ in range(n_batches):
        feed.next()
    return n_batches * batch_size / (time.perf_counter() - start)


def settle(feed: Feed) -> None:
    """Waits until a prefetching feed's queue is full, so that it does not work in the next one's turn."""
    if feed.prefetch_depth:
        busy = time.process_time()
        while True:
            time.sleep(0.05)
            if time.process_time() - busy < 0.005:
                return
            busy = time.process_time()


def decode_s(images: ImageFolder, decode: Callable[[bytes], object], n_images: int) -> float:
    """Median seconds to decode one image."""
    times = []
    for path, _ in itertools.islice(itertools.cycle(images.files), n_images):
        data = path.read_bytes()
        start = time.perf_counter()
        decode(data)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def decode_with_pillow(data: bytes) -> object:
    from PIL import Image

    with Image.open(BytesIO(data)) as image:
        return image.convert("RGB")


def decode_with_opencv(data: bytes) -> object:
    import cv2

    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


def main() -> None:
    parser = argparse.ArgumentParser(description="images/s of each feed")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32)
    arguments = parser.parse_args()
    images = ensure_generated(lambda done, total: print(f"\rgenerating images {done}/{total}", end="", file=sys.stderr))
    decoders = {"pillow": decode_with_pillow, "opencv": decode_with_opencv}

    print(f"batch size {arguments.batch_size}, {arguments.threads} threads, median of {arguments.rounds} rounds")
    print(f"{'pixels':>6} {'feed':>10} {'images/s':>12} {'ms/image':>9} {'decode share':>13}")
    for image_size in (64, 224):
        spec = FeedSpec(images, arguments.batch_size, image_size, 16, TensorSpec(), seed=0, threads=arguments.threads)
        with accelerators.use(NumpyAccelerator(arguments.threads)):
            feeds = {name: feed for name in FEEDS if (feed := make_feed(name, spec)) is not None}
        rates: dict[str, list[float]] = {name: [] for name in feeds}
        for feed in feeds.values():
            feed.next()
        for _ in range(arguments.rounds):
            for name, feed in feeds.items():
                rates[name].append(images_per_s(feed, arguments.batch_size))
                settle(feed)
        for name, feed in feeds.items():
            rate = statistics.median(rates[name])
            share = f"{decode_s(images, decoders[name], 200) * rate:13.0%}" if name in decoders else f"{'':>13}"
            print(f"{image_size:>6} {name:>10} {rate:>12,.0f} {1e3 / rate:>9.3f} {share}")
            feed.close()


if __name__ == "__main__":
    main()

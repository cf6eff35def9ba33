"""Looking at processes that should be gone, for tests that end them."""

import time
from collections.abc import Callable
from pathlib import Path


def alive(pid: int, within_s: float = 60.0) -> bool:
    """Whether a process still lives after a while; one that only waits to be reaped does not."""
    return not soon(lambda: _state(pid) in ("", "Z"), within_s)


def soon(holds: Callable[[], object], within_s: float = 300.0) -> bool:
    """Wait until something holds; whether it came to that."""
    until = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def pids(file: Path, count: int) -> list[int]:
    """The numbers that processes wrote into a file, once there are so many."""
    assert soon(lambda: file.exists() and len(file.read_text().split()) >= count), "they did not start"
    return [int(word) for word in file.read_text().split()]


def children(parent: int, word: str) -> list[int]:
    """Processes that a process started and whose command line has a word, without pgrep, which a bare system lacks."""
    running = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status, words = (folder / "stat").read_text(), (folder / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if int(status.rpartition(")")[2].split()[1]) == parent and word in words:
            running.append(int(folder.name))
    return running


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""

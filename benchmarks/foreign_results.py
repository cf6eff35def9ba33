"""How long the reading commands take on a file of 200,000 records, and how much memory: `foreign_results.py [N]`.

Many trials of 40 cells over 20 commits, as a folder of a year's runs has them. The goal is 10 s and 1 GB a command, and
a page of 10 MB. Prints a table.
"""

import dataclasses
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import factories

from tcbench.core import record

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("compare", "all.jsonl", "other.jsonl"),
    ("report", "all.jsonl", "-o", "page.html"),
    ("plot", "all.jsonl", "-o", "chart.png"),
    ("export", "all.jsonl", "--format", "csv", "-o", "trials.csv"),
    ("export", "all.jsonl", "--format", "json", "-o", "trials.json"),
    ("claims", "all.jsonl"),
    ("explain", "all.jsonl"),
    ("history", "all.jsonl"),
)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Return the wall time of one command."""

    code: int
    seconds: float
    processor_s: float
    peak_bytes: int


def lines(n: int) -> Iterator[bytes]:
    """Records of 40 cells, each with times of its own."""
    for place in range(n):
        config = factories.LADDERS[place % 10]
        size = 2 ** (5 + place // 10 % 4)
        cell = factories.make_cell(config, size)
        environment = factories.make_environment(commit=f"{place // (n // 20 or 1):040x}")
        run_id = f"cpu-20250102-{place // 400:06d}"
        stored = factories.make_record(cell=cell, trial=place, environment=environment, run_id=run_id)
        yield record.encode(stored) + b"\n"


def cost(words: tuple[str, ...], folder: Path) -> Cost:
    """Run a command as a process of its own."""
    environment = {**os.environ, "TCBENCH_CACHE": str(folder / "cache")}
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "tcbench", *words],
        cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (12 * 2**30, 12 * 2**30)),
    )  # fmt: skip
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(process.returncode, time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "all.jsonl").open("wb") as target:
            target.writelines(lines(n))
        data = (folder / "all.jsonl").read_bytes()
        (folder / "other.jsonl").write_bytes(data[: 2**22].rpartition(b"\n")[0] + b"\n")
        print(f"{n} records, {len(data) / 2**20:.0f} MiB")
        for words in COMMANDS:
            took = cost(words, folder)
            times = f"{took.seconds:6.1f} s ({took.processor_s:.1f} s of a processor)"
            print(f"  {' '.join(words):48} {took.code:3}  {times}  {took.peak_bytes / 2**20:6.0f} MiB", flush=True)
        print(f"  page: {(folder / 'page.html').stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

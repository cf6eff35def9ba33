"""How long the report of 160 cells takes, from the start of the process, and how large it is: at most 5 s and 5 MB.

uv run python benchmarks/report_speed.py [--rounds 3]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import reports

from tcbench.core import record

LIMIT_S, LIMIT_BYTES = 5.0, 5_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    holds = True
    with tempfile.TemporaryDirectory() as folder:
        for name, results in (
            ("4 machines x 10 configs x 4 batch sizes", reports.machines()),
            ("40 configs x 4 batch sizes", reports.many_configs()),
        ):
            cells = len({(r.run_id, r.cell) for r in results.records})
            source, page = Path(folder, "run.jsonl"), Path(folder, "report.html")
            source.write_bytes(b"".join(record.encode(stored) + b"\n" for stored in results.records))
            took_s = [_once(source, page) for _ in range(rounds)]
            holds &= statistics.median(took_s) <= LIMIT_S and page.stat().st_size <= LIMIT_BYTES
            print(
                f"{name}: {cells} cells, {len(results.records)} trials: {statistics.median(took_s):.2f} s wall "
                f"(median of {rounds}, slowest {max(took_s):.2f} s), {page.stat().st_size / 1e6:.2f} MB"
            )
    print(f"at most {LIMIT_S:g} s and {LIMIT_BYTES / 1e6:g} MB: {'kept' if holds else 'NOT kept'}")
    return 0 if holds else 1


def _once(source: Path, page: Path) -> float:
    started_s = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "tcbench", "report", str(source), "-o", str(page)], check=True, capture_output=True
    )
    return time.perf_counter() - started_s


if __name__ == "__main__":
    raise SystemExit(main())

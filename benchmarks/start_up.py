"""Wall time of the commands that must feel immediate, as a user starts them.

    uv run python benchmarks/start_up.py

Goals: `tcbench --help` and `tcbench run --help` at most 0.45 s, `tcbench run --dry-run` at most 0.8 s.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = (["--help"], ["run", "--help"], ["run", "--dry-run"], ["list"], ["plot", "--help"])
ROUNDS = 11


def main() -> None:
    script = str(Path(sys.executable).parent / "tcbench")
    times: dict[str, list[float]] = {" ".join(command): [] for command in COMMANDS}
    for _ in range(ROUNDS):
        for command in COMMANDS:
            start = time.perf_counter()
            subprocess.run([script, *command], stdout=subprocess.DEVNULL, check=True)
            times[" ".join(command)].append(time.perf_counter() - start)
    for command, seconds in times.items():
        median, fastest = statistics.median(seconds), min(seconds)
        print(f"tcbench {command:16} {median:.2f} s (median of {ROUNDS}, fastest {fastest:.2f})")


if __name__ == "__main__":
    main()

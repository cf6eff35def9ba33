"""The results that come with tcbench, without what runs in this checkout added to them."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def files() -> list[Path]:
    """Return the files under `results/` that git tracks, relative to the checkout."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "results"]
    listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return [Path(name) for name in listed.split("\0") if name]


def copy(to: Path, *suffixes: str) -> None:
    """Copy the files with one of these suffixes to `to/results/...`."""
    for file in files():
        if file.suffix in suffixes:
            (to / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, to / file)

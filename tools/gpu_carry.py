"""Make the folders that travel to a GPU machine without a network: build/loan/call1 and build/loan/call2.

    uv run python tools/gpu_carry.py [--plans FOLDER]... [--sm 90] [--out build/loan]

Each call of `tools/gpu_check.py` there unpacks one of them. They hold the wheels that the machine lacks, DALI without
the code for other GPUs, and what was compiled beforehand (`--plans`: a folder that tools/compile_plans.py filled). Run
it again after every change of the code: existing files are not downloaded or compressed again. It needs `pip`. It
prints the bytes of each call, and fails if a call has more than 62 MiB.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import strip_gpu_code

ROOT = Path(__file__).resolve().parents[1]
LIMIT_BYTES = 62 << 20
"""The most bytes of a call, the repository included; the machine takes 64 MiB."""
PYTHON = "3.12"
"""The Python of that machine."""
WHEELS = (
    *("msgspec", "nvtx", "platformdirs", "six", "filelock", "typing_extensions"),
    *("nvidia-cudnn-frontend==1.32.0", "cupti-python==13.0.1"),
)
DALI_WHEELS = (
    *("nvidia-dali-cuda130==2.4.0", "nvidia-nvimgcodec-cu13<0.10", "nvidia-nvjpeg"),
    *("astunparse", "gast<=0.7", "optree"),
)
_PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
_FILTERS = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 64 << 20}]


def main(arguments: Sequence[str] | None = None) -> int:
    """Make both folders, and print how many bytes each call has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "loan")
    parser.add_argument("--plans", type=Path, action="append", default=[], metavar="FOLDER")
    parser.add_argument("--sm", type=int, default=90, help="the GPU's compute capability times ten (default: 90)")
    options = parser.parse_args(arguments)
    out: Path = options.out
    wheels = download(out / "wheels", WHEELS, chainer=True)
    dali = compress_dali(download(out / "dali-wheels", DALI_WHEELS), out / f"dali-sm{options.sm}", options.sm)
    plans = [out / "cache.tar.xz"] if options.plans else []
    for archive in plans:
        compress(archive, [path for folder in options.plans for path in folder.iterdir()])
    calls = share_out(wheels, plans, dali, tree_bytes())
    for call, parts in calls.items():
        folder = out / f"call{call}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for part in (part for group in parts.values() for part in group):
            os.link(part, folder / part.name)
    text, fits = table(calls, tree_bytes())
    print(text)
    if not fits:
        print(f"gpu_carry: a call has more than {LIMIT_BYTES >> 20} MiB: carry fewer plans (--plans)", file=sys.stderr)
    return 0 if fits else 1


# -- packages ----------------------------------------------------------------------------------------------------------


def download(folder: Path, requirements: Iterable[str], *, chainer: bool = False) -> list[Path]:
    """Download the wheels that are missing in a folder, and return all that are there. Chainer has none: build it."""
    folder.mkdir(parents=True, exist_ok=True)
    pip = ["pip", "--disable-pip-version-check"]
    platforms = [word for name in _PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    python = ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp", *platforms]
    missing = [name for name in requirements if not _has(folder, name)]
    if missing:
        subprocess.run([*pip, "download", "-q", "--no-deps", *python, "-d", str(folder), *missing], check=True)
    if chainer and not _has(folder, "chainer"):
        constraint = str(ROOT / "build-constraints.txt")
        environment = {**os.environ, "PIP_CONSTRAINT": constraint, "PIP_BUILD_CONSTRAINT": constraint}
        command = [*pip, "wheel", "-q", "--no-deps", "-w", str(folder), "chainer==7.8.1"]
        subprocess.run(command, check=True, env=environment)
    return sorted(folder.glob("*.whl"))


def _has(folder: Path, requirement: str) -> bool:
    name = requirement.partition("<")[0].partition("==")[0].replace("-", "_")
    return any(folder.glob(f"{name}-*.whl"))


# -- DALI --------------------------------------------------------------------------------------------------------------


def compress_dali(wheels: Iterable[Path], folder: Path, sm: int) -> list[Path]:
    """Unpack DALI's wheels, strip and compress them in parts; return the parts. A part that is there stays."""
    unpacked, parts = folder / "unpacked", folder / "parts"
    if not parts.exists():
        shutil.rmtree(folder, ignore_errors=True)
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked, [name for name in archive.namelist() if _is_needed(name)])
        print(f"DALI: cleared {strip_gpu_code.strip_folder(unpacked, sm) >> 20} MiB of code for other GPUs")
        groups: dict[str, list[Path]] = {}
        for path in sorted(path for path in unpacked.rglob("*") if path.is_file()):
            groups.setdefault(_part(path.relative_to(unpacked)), []).append(path)
        new = folder / "new"
        new.mkdir()
        with concurrent.futures.ProcessPoolExecutor(2) as pool:
            archives = [new / f"dali-{name}.tar.xz" for name in groups]
            list(pool.map(compress, archives, groups.values(), [unpacked] * len(groups)))
        new.rename(parts)
    return sorted(parts.iterdir())


def _is_needed(name: str) -> bool:
    """Whether a wheel's file is needed there: not what is for other Pythons or for those who compile."""
    of_python = f"cpython-{PYTHON.replace('.', '')}-"
    return ("cpython-" not in name or of_python in name) and not {"include", "tools", "licenses"} & {*name.split("/")}


def _part(path: Path) -> str:
    """The part that a file of DALI's goes into: together they decompress on four cores at once."""
    if path.name == "libdali_operators.so":
        return "operators"
    return "libraries" if ".libs" in path.parts else "kernels" if path.parts[:2] == ("nvidia", "dali") else "decoders"


def compress(archive: Path, paths: Iterable[Path], root: Path | None = None) -> None:
    """Write files and folders into one archive, each by its path below `root`, or by its name."""
    with lzma.open(archive, "wb", filters=_FILTERS) as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
        for path in sorted(paths):
            tar.add(path, path.relative_to(root) if root else path.name)


# -- calls -------------------------------------------------------------------------------------------------------------

Parts = dict[str, list[Path]]
"""The files that a call carries, by the columns of the table."""


def tree_bytes() -> int:
    """The bytes of the files that git does not ignore, as an archive has them."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return sum(512 + -(-path.stat().st_size // 512) * 512 for path in paths if path.is_file())


def share_out(wheels: list[Path], plans: list[Path], dali: list[Path], tree: int) -> dict[int, Parts]:
    """Return the parts of each call: DALI is needed in the second, and what does not fit there travels in the first."""
    second, first = list[Path](), list[Path]()
    room = LIMIT_BYTES - tree
    for part in sorted(dali, key=lambda part: -part.stat().st_size):
        size = part.stat().st_size
        if size <= room:
            second.append(part)
            room -= size
        else:
            first.append(part)
    return {
        1: {"wheels": wheels, "DALI": first, "plans": plans},
        2: {"wheels": [], "DALI": second, "plans": []},
    }


def table(calls: Mapping[int, Parts], tree: int) -> tuple[str, bool]:
    """Return the MiB of each call as a Markdown table, and whether all calls are within the limit."""
    lines = ["| call | tree | wheels | DALI | plans | MiB |", "| ---: " * 6 + "|"]
    fits = True
    for call, parts in calls.items():
        columns = [tree, *(sum(path.stat().st_size for path in parts[name]) for name in ("wheels", "DALI", "plans"))]
        fits = fits and sum(columns) <= LIMIT_BYTES
        lines.append(f"| {call} | " + " | ".join(f"{n / (1 << 20):.1f}" for n in (*columns, sum(columns))) + " |")
    return "\n".join(lines), fits


if __name__ == "__main__":
    sys.exit(main())

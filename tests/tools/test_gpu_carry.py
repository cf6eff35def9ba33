"""tools/gpu_carry.py without a network: what goes into which call, and that a call unpacks it."""

import zipfile
from pathlib import Path

import gpu_carry
import gpu_check
import pytest

MIB = 1 << 20


def file_of(path: Path, n_bytes: int) -> Path:
    with path.open("wb") as file:
        file.truncate(n_bytes)
    return path


@pytest.fixture
def parts(tmp_path):
    """A wheel, an archive of plans and two parts of DALI, by sizes in MiB."""

    def make(wheel: int, cache: int, *dali: int) -> dict[int, gpu_carry.Parts]:
        files = [file_of(tmp_path / f"dali-{n}.tar.xz", size * MIB) for n, size in enumerate(dali)]
        wheels = [file_of(tmp_path / "w.whl", wheel * MIB)]
        return gpu_carry.share_out(wheels, [file_of(tmp_path / "cache.tar.xz", cache * MIB)], files, 13 * MIB)

    return make


def test_the_second_call_takes_the_largest_parts_of_dali_that_fit(parts):
    calls = parts(16, 2, 5, 30, 8, 20)
    assert [path.name for path in calls[2]["DALI"]] == ["dali-1.tar.xz", "dali-2.tar.xz", "dali-0.tar.xz"]
    text, fits = gpu_carry.table(calls, 13 * MIB)
    assert fits
    assert text.splitlines()[2:] == [
        "| 1 | 13.0 | 16.0 | 20.0 | 2.0 | 51.0 |",
        "| 2 | 13.0 | 0.0 | 43.0 | 0.0 | 56.0 |",
    ]


def test_a_call_over_62_mib_is_refused(parts):
    text, fits = gpu_carry.table(parts(16, 34, 30), 13 * MIB)
    assert not fits
    assert "| 1 | 13.0 | 16.0 | 0.0 | 34.0 | 63.0 |" in text


def test_of_dali_only_what_that_python_runs_is_carried():
    folder = "nvidia/dali/"
    assert gpu_carry._is_needed(folder + "backend_impl.cpython-312-x86_64-linux-gnu.so")
    assert not gpu_carry._is_needed(folder + "backend_impl.cpython-313-x86_64-linux-gnu.so")
    assert not gpu_carry._is_needed(folder + "include/dali/core/api.h")


def test_a_call_unpacks_wheels_dali_and_plans_once(tmp_path):
    carried, artifacts, out = tmp_path / "call1", tmp_path / "made", tmp_path / "out"
    for path in ("dali/lib.so", "built-plans-v2/x.plan"):
        (artifacts / path).parent.mkdir(parents=True)
        (artifacts / path).write_text(path)
    carried.mkdir()
    gpu_carry.compress(carried / "dali-libraries.tar.xz", [artifacts / "dali" / "lib.so"], artifacts)
    gpu_carry.compress(carried / "cache.tar.xz", [artifacts / "built-plans-v2"])
    with zipfile.ZipFile(carried / "six.whl", "w") as wheel:
        wheel.writestr("six.py", "")
    out.mkdir()
    gpu_check.unpack(carried, out)
    assert {str(path.relative_to(out)) for path in out.rglob("*.*") if path.is_file()} == {
        "unpacked.txt",
        "site/dali/lib.so",
        "site/six.py",
        "cache/built-plans-v2/x.plan",
    }
    (out / "cache" / "built-plans-v2" / "x.plan").unlink()  # as a trial does that has timed it
    gpu_check.unpack(carried, out)
    assert not list(out.glob("cache/*/x.plan"))

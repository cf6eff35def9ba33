"""Which CUDA packages are there and whether they fit, with a stand-in for what is installed."""

from __future__ import annotations

import importlib.metadata

import pytest

from tcbench.backends.cuda import packages
from tcbench.backends.cuda.driver import Gpu, Gpus

H200 = Gpu(0, "NVIDIA H200", (9, 0), 132, 141 * 2**30)
V100 = Gpu(0, "Tesla V100", (7, 0), 80, 16 * 2**30)
CUDA_12 = {"cupy-cuda12x": "14.2.0", "nvidia-cudnn-cu12": "9.28.0", "nvidia-cuda-nvrtc-cu12": "12.9.86"}
CUDA_13 = {"cupy-cuda13x": "14.2.0", "nvidia-cudnn-cu13": "9.28.0", "nvidia-cuda-nvrtc": "13.0.48"}


@pytest.fixture
def have(monkeypatch):
    def there(distributions: dict[str, str]) -> tuple[packages.Installed, ...]:
        def version(name: str) -> str:
            if name not in distributions:
                raise importlib.metadata.PackageNotFoundError(name)
            return distributions[name]

        monkeypatch.setattr(importlib.metadata, "version", version)
        return packages.installed()

    return there


def test_packages_are_found_by_part_with_the_cuda_they_are_for(have):
    found = have(CUDA_13)
    assert [(one.part.name, one.cuda) for one in found] == [("CuPy", 13), ("cuDNN", 13), ("NVRTC", 13)]
    assert str(packages.cupy()) == "cupy-cuda13x 14.2.0"
    assert have({}) == ()
    assert packages.cupy() is None


@pytest.mark.parametrize(
    ("distributions", "gpus", "said"),
    [
        (CUDA_12, Gpus((V100,), (12, 4)), ()),
        (CUDA_13, Gpus((H200,), (13, 0)), ()),
        (CUDA_12, Gpus((H200,), (13, 0)), ()),
        (CUDA_12 | {"nvidia-cuda-nvrtc": "13.0.48"}, Gpus((H200,), (13, 0)), ()),
        (
            CUDA_13,
            Gpus((H200,), (12, 4)),
            ("the driver is too old for packages for CUDA 13: it runs CUDA up to 12.4",),
        ),
        (
            CUDA_13,
            Gpus((V100,), (13, 0)),
            ("CUDA 13 no longer knows cuda:0 (Tesla V100, compute capability 7.0)",),
        ),
        (
            {"cupy-cuda12x": "14.2.0", "nvidia-cudnn-cu13": "9.28.0"},
            Gpus((H200,), (13, 0)),
            (
                "packages for two CUDA versions are mixed (for CUDA 12: cupy-cuda12x 14.2.0; "
                "for CUDA 13: nvidia-cudnn-cu13 9.28.0)",
            ),
        ),
    ],
)
def test_what_does_not_fit_is_named(have, distributions, gpus, said):
    assert packages.misfits(have(distributions), gpus) == said


@pytest.mark.parametrize(
    ("gpus", "major"),
    [
        (Gpus((H200,), (13, 0)), 13),
        (Gpus((H200,), (12, 4)), 12),
        (Gpus((V100,), (13, 0)), 12),
        (Gpus((), None), 13),
        (Gpus((V100,), (11, 0)), 12),
    ],
)
def test_the_packages_to_install_are_the_newest_that_driver_and_gpus_take(gpus, major):
    assert packages.major_for(gpus) == major


def test_a_part_that_does_not_load_says_why(monkeypatch):
    def fail(name: str):
        raise ImportError("libnvrtc.so.12: cannot open\nshared object file")

    monkeypatch.setattr(packages.importlib, "import_module", fail)
    assert packages.trouble(packages.CUPY) == "libnvrtc.so.12: cannot open shared object file"
    monkeypatch.setattr(packages.importlib, "import_module", lambda name: None)
    assert packages.trouble(packages.CUPY) is None


def test_every_part_can_be_tried():
    assert {part.name for part in packages.PARTS} == set(packages._ATTEMPTS)

"""Installed CUDA packages and their conflicts, with fake package metadata."""

import importlib.metadata
import tomllib
from pathlib import Path
from unittest.mock import Mock

import pytest

from tcbench.engine.accelerators.cuda import packages
from tcbench.engine.accelerators.cuda.cudnn import libraries
from tcbench.engine.accelerators.cuda.driver import Gpu, Gpus

T4 = Gpu(0, "Tesla T4", (7, 5), 40, 15 * 2**30)
H200 = Gpu(0, "NVIDIA H200", (9, 0), 132, 141 * 2**30)
V100 = Gpu(0, "Tesla V100", (7, 0), 80, 16 * 2**30)
CUDA_12 = {"cupy-cuda12x": "14.2.0", "nvidia-cudnn-cu12": "9.28.0", "nvidia-cuda-nvrtc-cu12": "12.9.86"}
CUDA_13 = {"cupy-cuda13x": "14.2.0", "nvidia-cudnn-cu13": "9.28.0", "nvidia-cuda-nvrtc": "13.0.48"}


@pytest.fixture
def have(monkeypatch):
    def install(distributions: dict[str, str]) -> tuple[packages.Installed, ...]:
        def version(name: str) -> str:
            if name not in distributions:
                raise importlib.metadata.PackageNotFoundError(name)
            return distributions[name]

        monkeypatch.setattr(importlib.metadata, "version", version)
        return packages.installed()

    return install


def test_packages_are_found_by_part_with_the_cuda_they_are_for(have):
    wheels = have(CUDA_13)
    assert [(package.part.name, package.cuda) for package in wheels] == [("CuPy", 13), ("cuDNN", 13), ("NVRTC", 13)]
    assert str(packages.cupy()) == "cupy-cuda13x 14.2.0"
    assert have({}) == ()
    assert packages.cupy() is None


@pytest.mark.parametrize(
    ("distributions", "gpus", "lines"),
    [
        (CUDA_12, Gpus((V100,), (12, 4)), ()),
        (CUDA_13, Gpus((H200,), (13, 0)), ()),
        (CUDA_12, Gpus((H200,), (13, 0)), ()),
        (CUDA_12 | {"nvidia-cuda-nvrtc": "13.0.48"}, Gpus((H200,), (13, 0)), ()),
        (
            CUDA_13,
            Gpus((H200,), (12, 4)),
            ("the driver is too old for packages for CUDA 13: it supports CUDA up to 12.4",),
        ),
        (CUDA_13, Gpus((V100,), (13, 0)), ("CUDA 13 does not support cuda:0 (Tesla V100, compute capability 7.0)",)),
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
def test_what_does_not_fit_is_named(have, cudnn, distributions, gpus, lines):
    cudnn("9.10.2")  # which serves all of them, whatever is installed
    assert packages.misfits(have(distributions), gpus) == lines


@pytest.mark.parametrize(
    ("gpus", "extra"),
    [
        (Gpus((H200,), (13, 0)), "cuda13"),
        (Gpus((H200,), (12, 4)), "cuda12"),
        (Gpus((T4,), (13, 0)), "cuda13"),
        (Gpus((T4,), (12, 4)), "cuda12"),
        (Gpus((V100,), (13, 0)), "volta"),
        (Gpus((V100,), (12, 4)), "volta"),
        (Gpus((H200, V100), (13, 0)), "volta"),
        (Gpus((), None), "cuda13"),
        (Gpus((), (12, 4)), "cuda12"),
        (Gpus((H200,), (11, 0)), "cuda12"),
        (Gpus((V100,), (11, 0)), "volta"),
    ],
)
def test_the_packages_to_install_are_the_newest_that_driver_and_gpus_take(gpus, extra):
    assert packages.extra_for(gpus).name == extra
    assert packages.sync(packages.extra_for(gpus)) == f"uv sync --extra {extra}"


@pytest.fixture
def cudnn(monkeypatch):
    return lambda version: monkeypatch.setattr(libraries, "version", lambda: version)


@pytest.mark.parametrize("version", ["9.11.0", "9.28.0"])
def test_a_cudnn_without_code_for_a_gpu_is_named_with_the_one_that_has_it(cudnn, version):
    cudnn(version)
    remedy = "the last version that does is 9.10.2: uv sync --extra volta"
    line = f"cuDNN {version} does not support compute capability 7.0; {remedy}"
    assert packages.cudnn_misfit((7, 0)) == line
    assert packages.misfits((), Gpus((V100,), (12, 4))) == (f"cuda:0 (Tesla V100): {line}",)
    assert packages.Cudnn("cudnn", "").misfit((7, 0)) == line
    assert packages.cudnn_misfit((7, 5)) is packages.cudnn_misfit((9, 0)) is None


def test_the_last_cudnn_for_volta_serves_it_and_what_is_newer_and_of_what_none_serves_no_command_is_promised(cudnn):
    cudnn("9.10.2")
    assert [packages.cudnn_misfit(gpu.compute_capability) for gpu in (V100, T4, H200)] == [None] * 3
    assert packages.cudnn_misfit((3, 5)) == "cuDNN 9.10.2 does not support compute capability 3.5"


def test_without_cudnn_nothing_is_said_of_what_it_serves(monkeypatch):
    monkeypatch.setattr(libraries, "version", Mock(side_effect=libraries.LibraryError("cuDNN 9 was not found")))
    assert packages.cudnn_misfit((7, 0)) is None


def test_the_extras_are_those_of_the_project_and_hold_the_cudnn_that_they_promise():
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text("utf-8"))
    declared = project["project"]["optional-dependencies"]
    conflicts = [{member["extra"] for member in group} for group in project["tool"]["uv"]["conflicts"]]
    assert {extra.name for extra in packages.EXTRAS} in conflicts
    for extra in packages.EXTRAS:
        (pin,) = [
            requirement
            for requirement in declared[extra.name]
            if requirement.startswith(f"nvidia-cudnn-cu{extra.cuda}")
        ]
        assert ("==" in pin) == (extra.cudnn is not None)
        if extra.cudnn:
            assert pin.endswith("==" + ".".join(map(str, extra.cudnn)) + ".*")
        for part in packages.PARTS:
            names = [name for name, cuda in part.distributions if cuda in (None, extra.cuda)]
            begins = tuple(f"{name}{sign}" for name in names for sign in ">=")
            assert any(requirement.startswith(begins) for requirement in declared[extra.name])
        (cupti,) = [requirement for requirement in declared[extra.name] if requirement.startswith("cupti-python")]
        assert ("python_version < '3.13'" in cupti) == (extra.cuda == 12)


def test_cupti_is_not_asked_for_where_it_is_not_made_for_this_python(monkeypatch):
    cuda13, cuda12, volta = packages.EXTRAS
    monkeypatch.setattr(packages.sys, "version_info", (3, 12, 4))
    assert packages.remedy(packages.CUPTI, volta) == "uv sync --extra volta"
    monkeypatch.setattr(packages.sys, "version_info", (3, 13, 0))
    assert packages.remedy(packages.CUPTI, cuda13) == "uv sync --extra cuda13"
    assert packages.remedy(packages.NVML, cuda12) == "uv sync --extra cuda12"
    for extra in (cuda12, volta):
        assert packages.remedy(packages.CUPTI, extra).startswith("install Nsight Systems instead")


@pytest.mark.parametrize(
    ("cupti", "driver", "newer"),
    [
        ("13.5.12", (13, 0), True),
        ("13.0.85", (13, 0), False),
        ("13.0.85", (13, 1), False),
        ("13.5.12", None, False),
        ("13.5.12", (12, 4), False),  # all of CUDA 13 does not fit, which `misfits` says
        (None, (13, 0), False),
    ],
)
def test_a_cupti_that_is_newer_than_the_driver_is_named_with_the_command_that_installs_another(
    have, cupti, driver, newer
):
    have({} if cupti is None else {"nvidia-cuda-cupti": cupti})
    warning = packages.newer_cupti(Gpus((H200,), driver))
    assert (warning is not None) == newer
    if warning is not None:
        assert warning == (
            "nvidia-cuda-cupti 13.5.12 is newer than the driver, which supports CUDA up to 13.0: `profile` may not "
            "record with it",
            "uv sync --extra cuda13 -P 'cupti-python<13.1' -P 'nvidia-cuda-cupti<13.1'",
        )


def test_a_part_that_does_not_load_says_why(monkeypatch):
    fails = Mock(side_effect=ImportError("libnvrtc.so.12: cannot open\nshared object file"))
    monkeypatch.setattr(packages.importlib, "import_module", fails)
    assert packages.trouble(packages.CUPY) == "libnvrtc.so.12: cannot open shared object file"
    monkeypatch.setattr(packages.importlib, "import_module", lambda name: None)
    assert packages.trouble(packages.CUPY) is None


def test_every_part_can_be_tried():
    assert {part.name for part in packages.PARTS} == set(packages._CHECKS)

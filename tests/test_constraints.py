"""constraints.txt and build-constraints.txt: versions that pip can be held to."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PINNED_EXTRAS = ("ladder", "opencv", "parquet", "mpi", "host", "slurm")


def lines(name: str) -> list[str]:
    return [line for line in (ROOT / name).read_text("utf-8").splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_every_package_that_tcbench_asks_for_is_pinned_to_a_version_that_it_takes(python):
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    environment |= {"platform_machine": "x86_64", "sys_platform": "linux"}
    pins = [Requirement(line) for line in lines("constraints.txt")]
    pins = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(environment)]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    dependencies = [*project["dependencies"], *(line for extra in PINNED_EXTRAS for line in extras[extra])]
    for requirement in map(Requirement, [*dependencies, *lines("build-constraints.txt")]):
        (pin,) = (pinned for pinned in pins if pinned.name.lower() == requirement.name.lower())
        (version,) = pin.specifier
        assert version.operator == "==" and requirement.specifier.contains(version.version), (
            str(requirement),
            str(pin),
        )


def test_a_pin_names_no_address():
    assert [line for line in lines("constraints.txt") if "/" in line or "@" in line] == []


def test_who_builds_with_pip_names_the_constraint_twice_since_newer_pip_does_not_hold_builds_to_the_first():
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / ".ci" / "run"]
    mentions = [line for page in pages for line in page.read_text("utf-8").splitlines() if "PIP_CONSTRAINT=" in line]
    assert mentions
    assert [line for line in mentions if "PIP_BUILD_CONSTRAINT=" not in line] == []

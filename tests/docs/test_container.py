"""Dockerfile and .dockerignore fit the project, and their commands exist. CI lints them with hadolint."""

import fnmatch
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from command_lines import parse

from tcbench.core import cache
from tcbench.engine.accelerators.cuda import packages

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "container.md").read_text("utf-8")


def instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction of a Dockerfile with its arguments, continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


DOCKERFILE = instructions((ROOT / "Dockerfile").read_text("utf-8"))


def arguments(word: str) -> list[str]:
    return [rest for name, rest in DOCKERFILE if name == word]


def copied() -> list[str]:
    """Everything that is copied from the build's context."""
    return [source for rest in arguments("COPY") if "--from" not in rest for source in rest.split()[:-1]]


def test_everything_that_is_copied_is_there_and_let_in():
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in ignored
    let_in = [line[1:] for line in ignored if line.startswith("!")]
    for source in copied():
        assert (ROOT / source).exists()
        assert any(fnmatch.fnmatch(source, f"{name}*") for name in let_in)


def test_all_that_the_package_is_built_from_is_copied():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    hatch = project["tool"]["hatch"]
    wheel = hatch["build"]["targets"]["wheel"]
    of_metadata = [project["project"]["readme"], *project["project"]["license-files"], hatch["version"]["path"]]
    for needed in ("pyproject.toml", *of_metadata, *wheel["packages"], *wheel["force-include"]):
        assert needed in copied()
    # What metadata needs stands above the layer of the dependencies: the project's version is asked for there.
    first_sync = next(i for i, (_, rest) in enumerate(DOCKERFILE) if "uv sync" in rest)
    above = " ".join(rest for word, rest in DOCKERFILE[:first_sync] if word == "COPY")
    assert all(name in above for name in of_metadata)


def test_the_extra_is_one_of_the_project_and_python_has_cupti_for_each():
    values = dict(rest.split("=") for rest in arguments("ARG"))
    assert values["EXTRA"] == packages.EXTRAS[0].name
    assert tuple(map(int, values["PYTHON"].split("."))) == packages._CUPTI_FOR_CUDA_12


def test_it_does_not_run_as_root_and_keeps_its_cache_in_a_volume():
    assert arguments("USER") == ["1000"]
    (volume,) = json.loads(arguments("VOLUME")[0])
    environment = dict(pair.split("=", 1) for rest in arguments("ENV") for pair in shlex.split(rest))
    for name in (cache.VARIABLE, "CUPY_CACHE_DIR", "MPLCONFIGDIR"):
        assert environment[name].startswith(f"{volume}/")


def test_its_commands_exist():
    entry = json.loads(arguments("ENTRYPOINT")[0])
    health = json.loads(arguments("HEALTHCHECK")[0].partition("CMD ")[2])
    assert entry == health[:1] == ["tcbench"]
    for words in (health[1:], json.loads(arguments("CMD")[0])):
        assert parse(words)[0] == "doctor"


@pytest.mark.parametrize("option", ["--build-arg EXTRA", "--no-healthcheck", "/cache", "/bench", "has not been built"])
def test_its_page_says(option):
    assert option in PAGE


def test_the_page_runs_commands_that_exist():
    text = PAGE.replace("\\\n", " ")
    commands = re.findall(r"^docker run .* tcbench-gpu (\w+)", text, re.MULTILINE)
    assert commands == ["run", "report"]
    for name in commands:
        parse([name])

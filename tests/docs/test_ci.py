"""docs/ci: the files are what GitHub and GitLab take, and every tcbench command in them and on the page exists."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import parse

if importlib.util.find_spec("check_jsonschema") is None:
    pytest.skip("check_jsonschema is not installed", allow_module_level=True)
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "ci"
PUBLISHES = ROOT / ".github" / "workflows" / "docs.yml"
GITHUB, GITLAB, PAGE = FOLDER / "github-actions.yml", FOLDER / "gitlab-ci.yml", FOLDER / "README.md"


@pytest.mark.parametrize(
    ("path", "schema"), [(GITHUB, "github-workflows"), (PUBLISHES, "github-workflows"), (GITLAB, "gitlab-ci")]
)
def test_a_file_is_valid_by_its_service_s_schema(path, schema):
    """The schemas come with the package, so no network is needed."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", str(path)]
    subprocess.run(command, timeout=600, check=True)


def commands() -> list[list[str]]:
    github, gitlab = (YAML(typ="safe").load(path.read_text("utf-8")) for path in (GITHUB, GITLAB))
    job = gitlab["performance"]
    scripts = [step["run"] for step in github["jobs"]["gate"]["steps"] if "run" in step]
    scripts += [*job["script"], *job["after_script"]]
    scripts += re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    lines = [line for script in scripts for line in script.splitlines()]
    return [shlex.split(line.partition("tcbench ")[2]) for line in lines if "tcbench " in line]


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words)[:40])
def test_a_command_exists_with_all_its_options(words):
    parse(words)


def test_the_commands_are_found():
    assert {words[0] for words in commands()} == {"gate", "report", "doctor", "run", "baseline", "compare", "export"}


def test_the_page_of_gate_names_every_exit_code():
    rows = re.findall(r"^\| (\d) \|", (FOLDER.parent / "gate.md").read_text("utf-8"), re.MULTILINE)
    assert rows == ["0", "1", "2", "4", "5"]

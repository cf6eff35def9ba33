"""The package as other projects install and import it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Dockerfile", "pyproject.toml")),
    *(
        path
        for name in ("docs", "tcbench", "tools", "scenarios", ".ci", ".github")
        for path in (ROOT / name).rglob("*")
    ),
]
BY_NAME = re.compile(
    r"""(?:pip\ install|pip\ download|uv\ add|uvx|pipx?\ (?:run|install)|uv\ tool\ (?:run|install)|--from|--with)
        (?:\ [^\n`|&;#]*?)??[\s"']tcbench(?:\[[\w,]*\])?(?!\s*@|[\w./\[-])""",
    re.VERBOSE,
)
"""A command that installs `tcbench` by its name, under which the package index has another project."""


def installs_by_name(text: str) -> list[str]:
    allowed = re.sub(r"(uvx|uv tool run) (-\S+ )*--from ('\S+'|\"[^\"]+\"|[^'\"\s]+/\S*|\.\S*) tcbench", "", text)
    return [match[0] for match in BY_NAME.finditer(allowed)]


def test_no_page_message_or_action_installs_another_project_of_this_name():
    texts = {path: path.read_text("utf-8", "ignore") for path in TEXTS if path.is_file() and path.suffix != ".pyc"}
    assert len(texts) > 400
    assert {str(path): installs for path, text in texts.items() if (installs := installs_by_name(text))} == {}


@pytest.mark.parametrize(
    "command",
    [
        *(
            "pip install tcbench",
            "python -m pip install -q tcbench",
            "uv add --dev 'tcbench[ladder]'",
            "uvx tcbench run",
        ),
        *("pip install numpy tcbench", "uvx --from tcbench tcbench", 'uv pip install "tcbench"', "uvx -q tcbench"),
    ],
)
def test_an_installation_by_name_is_found(command):
    assert installs_by_name(command)


@pytest.mark.parametrize(
    "command",
    [
        *("pip install . && tcbench run", "uvx --from . tcbench explain TRACE", "uvx --from '.[ladder]' tcbench run"),
        *('uv add --dev "tcbench @ git+$REPOSITORY"', "uv pip install -e ../tcbench", "pip install tcbench-1.whl"),
        'uv add "tcbench[ladder] @ git+$REPOSITORY"',
    ],
)
def test_an_installation_from_a_checkout_or_an_address_is_allowed(command):
    assert installs_by_name(command) == []


def loaded(code: str) -> set[str]:
    """The top-level modules that a program imports besides those that Python starts with."""
    program = f"import sys; before = {{*sys.modules}}\n{code}\nprint(*{{*sys.modules}} - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_importing_it_in_a_training_script_imports_the_standard_library_alone():
    assert loaded("import tcbench; tcbench.__version__") <= {"tcbench", "importlib", "types", "warnings"}


def test_its_public_modules_are_imported_when_they_are_used():
    assert "msgspec" in loaded("import tcbench; tcbench.step.step")
    with pytest.raises(AttributeError, match="module 'tcbench' has no attribute 'stop'"):
        import tcbench

        tcbench.stop  # noqa: B018


def test_no_module_has_the_name_of_a_function_that_it_would_replace():
    assert not {"steps", "phase", "read"} & {path.stem for path in (ROOT / "tcbench").iterdir()}

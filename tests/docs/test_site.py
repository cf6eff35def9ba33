"""The documentation site: it builds strictly, and a link that leads nowhere fails the build."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="mkdocs is not installed")
pytest.importorskip("material", reason="mkdocs-material is not installed")

ROOT = Path(__file__).parents[2]


def build(project: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=project, capture_output=True, text=True)


@pytest.mark.long
def test_the_site_builds_strictly_and_shows_what_pages_link_to_outside_docs(tmp_path):
    built = build(ROOT, tmp_path)
    assert built.returncode == 0, built.stderr
    home = (tmp_path / "index.html").read_text("utf-8")
    assert "<h1" in home and 'src="files/results/amd-epyc-2cpu/' in home
    architecture = (tmp_path / "architecture" / "index.html").read_text("utf-8")
    page, line = re.findall(r'href="\.\./(files/tcbench/analysis/verdict\.py/)#(__codelineno-0-\d+)"', architecture)[0]
    assert f'id="{line}"' in (tmp_path / page / "index.html").read_text("utf-8")


@pytest.mark.long
@pytest.mark.parametrize("link", ["missing.md", "../missing.py", "run.md#missing", "../tcbench/step.py#L99999"])
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path, link):
    project = tmp_path / "project"
    for name in ("docs", "tcbench", "scenarios", "results", "tools", ".github"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "mkdocs.yml"):
        shutil.copy(ROOT / name, project)
    subprocess.run(["git", "init", "--quiet", str(project)], check=True)
    page = project / "docs" / "report.md"
    page.write_text(page.read_text("utf-8") + f"\n[a link]({link})\n", "utf-8")
    built = build(project, tmp_path / "site")
    assert built.returncode == 1
    assert link.removeprefix("../").split("#")[0] in built.stderr

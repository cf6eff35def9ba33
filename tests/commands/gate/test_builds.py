"""The two builds of a gate: which interpreters are taken, what is said of those that will not do, a cache for each."""

import subprocess
import sys
from pathlib import Path

import factories
import msgspec
import projects
import pytest

from tcbench.commands.gate import builds
from tcbench.commands.gate.builds import Build, BuildRequest, prepare_builds
from tcbench.core import messages
from tcbench.core.errors import BuildError
from tcbench.core.record import Cell
from tcbench.engine.feeds import generated
from tcbench.run.worker_launch import Launch


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def unchecked(monkeypatch):
    """Whether tcbench starts there takes a second."""
    monkeypatch.setattr(builds, "_probed", lambda build, option: build)


@pytest.fixture
def project(tmp_path, monkeypatch, unchecked):
    """A project of git's, in which one stands."""
    monkeypatch.chdir(projects.make(tmp_path / "mine"))
    return tmp_path / "mine"


def build_both(**requested):
    with prepare_builds(BuildRequest(**requested), lambda line: None) as both:
        return both


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        (
            {},
            "is not in a git repository, so it has no revisions; compare two interpreters instead: --base-python",
        ),
        ({"base": "x", "base_python": "y"}, "expected either --base REVISION or --base-python PYTHON"),
        ({"base_python": "x", "current": "y"}, "expected --current-python PYTHON"),
        ({"base": "x", "current_python": "y"}, "--current-python needs --base-python"),
        ({"base_python": "x", "setup": "y"}, "--setup creates a revision's environment"),
    ],
)
def test_what_does_not_go_together_is_one_line(requested, message):
    with pytest.raises(BuildError, match=message):
        build_both(**requested)


@pytest.mark.usefixtures("unchecked")
def test_interpreters_run_here_and_keep_the_place_of_their_links(tmp_path):
    python = projects.interpreter(tmp_path / "old/bin/python")
    (tmp_path / "link").symlink_to(python)
    base, current = build_both(base_python="../link")
    assert (base.name, base.label, base.launch.python) == ("base", "../link", str(tmp_path / "here/../link"))
    assert (current.name, current.launch.python) == ("current", sys.executable)
    assert base.launch.folder == current.launch.folder == Path.cwd()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, r"--base-python \S+/python cannot be started in \S+ \(No such file or directory\)"),
        ("not executable", r"cannot be started in \S+ \(Permission denied\)"),
        (
            f'exec {sys.executable} -S "$@"',
            r"No module named 'tcbench'; install it there, in a checkout of tcbench: \S+ -m pip install \.",
        ),
        ("echo no python here >&2; exit 1", "cannot run tcbench in .*: no python here;"),
        (f'{sys.executable} "$@"; exit $?', "starts Python as a child; a wrapper script must end in: exec python"),
        ("exit 0", "a wrapper script must end in: exec python"),
    ],
)
def test_an_interpreter_that_will_not_do_is_one_line(tmp_path, script, reason):
    path = tmp_path / "old/python"
    if script is not None:
        projects.interpreter(path, python=script).chmod(0o644 if script == "not executable" else 0o755)
    with pytest.raises(BuildError, match=reason.replace("--base-python \\S", "--base-python: \\S")) as error:
        build_both(base_python=str(path))
    assert "\n" not in str(error.value)


def test_a_name_that_is_not_on_the_path_is_one_line():
    with pytest.raises(BuildError, match=r"^--current-python no-such-python: no such command on PATH; expected"):
        build_both(base_python=sys.executable, current_python="no-such-python")


def test_a_revision_from_before_the_worker_moved_is_started_by_its_own_name(tmp_path):
    """tcbench 0.1 had its worker and its rank in `tcbench.measure`; a gate against such a revision still runs."""
    old = tmp_path / "old/tcbench"
    (old / "measure").mkdir(parents=True)
    for name in ("__init__", "measure/__init__", "measure/worker"):
        (old / f"{name}.py").touch()
    python = projects.interpreter(tmp_path / "old/python", f"export PYTHONPATH={old.parent}")
    base, current = build_both(base_python=str(python))
    assert base.launch.command(7) == [str(python), "-P", "-m", "tcbench.measure.worker", "7"]
    assert [messages.FRESH_AUTOTUNE in build.launch.variables for build in (base, current)] == [True, False]
    assert base.launch.rank_command("unix:a") == [str(python), "-P", "-m", "tcbench.measure.rank", "unix:a"]
    assert current.launch.rank_command("unix:a") == [sys.executable, "-P", "-m", "tcbench.rank", "unix:a"]
    assert current.launch.command(7) == [sys.executable, "-P", "-m", "tcbench.worker", "7"]
    assert (base.cell_fields, current.cell_fields) == (frozenset(), frozenset(Cell.__struct_fields__))


def test_what_a_build_does_not_know_of_a_cell_is_refused():
    """It would leave that out without a word, and its record would say otherwise."""
    cell = factories.make_cell()
    build = Build("base", "v1", "v1", Path(), Launch(), frozenset(Cell.__struct_fields__) - {"host_speed"})
    build.check_cells([cell])
    with pytest.raises(BuildError, match=r"v1 does not support 'host_speed' of fp32, batch size 4 .*0\.5: expected 1"):
        build.check_cells([cell, msgspec.structs.replace(cell, host_speed=0.5)])


@pytest.mark.usefixtures("unchecked")
def test_each_build_has_a_cache_of_its_own_and_both_have_the_images_and_the_times_of_kernels(tmp_path):
    with prepare_builds(BuildRequest(base_python=sys.executable), lambda line: None) as both:
        folders = [Path(build.launch.variables["TCBENCH_CACHE"]) for build in both]
        images = generated.generated_root()
        images.mkdir(parents=True)
        (images / "image.jpg").touch()
        assert folders[0] != folders[1]
        shared = [images.name, *messages.SHARED_FOLDERS]
        assert [sorted(path.name for path in folder.iterdir()) for folder in folders] == [shared] * 2
        for name in messages.SHARED_FOLDERS:
            (folders[0] / name / "times").touch()
            assert (folders[1] / name / "times").exists()
        assert [build.launch_as_side().variables[messages.SIDE] for build in both] == ["base", "current"]
        assert all((folder / images.name / "image.jpg").exists() for folder in folders)
    assert not folders[0].parent.exists()
    assert (images / "image.jpg").exists()


def test_a_revision_runs_in_its_worktree_and_the_working_tree_where_it_is(project, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(project / "src"))
    base, current = build_both(base="main")
    head = projects.git(project, "rev-parse", "HEAD")
    assert base.label == f"main ({head[:12]})"
    assert current.label == f"the working tree ({head[:12]})"
    assert base.folder.is_relative_to(builds.cache_folder())
    assert base.launch.variables["PYTHONPATH"] == str(base.folder / "src")
    assert (current.folder, current.launch.python) == (project, sys.executable)
    assert "PYTHONPATH" not in current.launch.variables
    base, current = build_both(base="HEAD", current=head[:9])
    assert base.folder != current.folder
    assert base.launch.variables["TCBENCH_CACHE"] != current.launch.variables["TCBENCH_CACHE"]
    assert current.label == head[:9]


def test_the_working_tree_of_no_commit_is_one_too(project):
    projects.git(project, "checkout", "--quiet", "--orphan", "new")
    assert build_both(base="main")[1].label == "the working tree (at an unknown commit)"


# ------------------------------------------------------------------------------------------------- the folder of a gate


def folders() -> list[Path]:
    return sorted(path for path in builds.cache_folder().iterdir() if path.is_dir())


def test_a_gate_leaves_nothing_and_takes_nothing_of_another_that_runs(project):
    with prepare_builds(BuildRequest("HEAD"), lambda line: None) as outer:
        with prepare_builds(BuildRequest("HEAD"), lambda line: None) as inner:
            assert len(folders()) == 2
            assert inner[0].folder != outer[0].folder
        assert (outer[0].folder / "my_step.py").exists()
    assert folders() == []


@pytest.mark.long
def test_what_a_killed_gate_left_is_removed_at_the_next_start(project):
    script = (
        "import os, signal; from tcbench.commands.gate.builds import BuildRequest, prepare_builds\n"
        "with prepare_builds(BuildRequest('HEAD'), print): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    (left,) = folders()
    assert (left / "work/base/my_step.py").exists()
    with prepare_builds(BuildRequest("HEAD"), lambda line: None):
        assert not left.exists()
    assert projects.git(project, "worktree", "list").count("\n") == 0


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path / "file/cache"))
    with pytest.raises(BuildError, match=r"must be writable by you alone; set TCBENCH_CACHE to another folder"):
        build_both(base_python=sys.executable)

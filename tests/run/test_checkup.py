import importlib.metadata

import projects
import pytest

from tcbench.core.packages import INSTALL_LADDER
from tcbench.run import checkup


def by_subject(findings):
    return {finding.subject: finding for finding in findings}


def test_what_is_installed_is_ok(tmp_path, monkeypatch):
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path))
    findings = by_subject(checkup.examine(tmp_path / "results"))
    assert findings["chainer"].state == "ok"
    assert findings["results folder"].state == "ok"
    assert findings["generated JPEGs"].state == "note"
    assert "tcbench data make" in findings["generated JPEGs"].remedy
    assert not (tmp_path / "results").exists()


def test_what_is_missing_comes_with_the_command_that_installs_it(tmp_path, monkeypatch):
    def version(name: str, real=importlib.metadata.version) -> str:
        if name in ("chainer", "opencv-python-headless"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    findings = by_subject(checkup.examine(tmp_path))
    assert (findings["chainer"].state, findings["chainer"].remedy) == ("missing", INSTALL_LADDER)
    assert checkup.exit_code(findings.values()) == 0
    opencv = findings["opencv-python-headless"]
    assert (opencv.state, opencv.remedy) == ("missing", "uv sync --extra opencv")


def test_dali_for_cuda_13_is_as_good_as_for_cuda_12(tmp_path, monkeypatch):
    def version(name: str, real=importlib.metadata.version) -> str:
        return "2.4.0" if name == "nvidia-dali-cuda130" else real(name.replace("nvidia-dali-cuda120", "none-such"))

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(checkup.importlib, "import_module", lambda name: None)
    dali = [finding for finding in checkup.examine(tmp_path) if "dali" in finding.subject]
    assert [(finding.state, finding.subject) for finding in dali] == [("ok", "nvidia-dali-cuda130")]


def test_a_package_that_does_not_import_is_not_the_same_as_one_that_is_missing(tmp_path, monkeypatch):
    pytest.importorskip("cv2")

    def import_module(name: str, real=checkup.importlib.import_module):
        if name == "cv2":
            raise ImportError("libGL.so.1: cannot open\nshared object file")
        return real(name)

    monkeypatch.setattr(checkup.importlib, "import_module", import_module)
    finding = by_subject(checkup.examine(tmp_path))["opencv-python-headless"]
    assert "cannot be imported: libGL.so.1: cannot open shared object file" in finding.detail


def test_a_results_folder_that_cannot_be_written_is_broken(tmp_path):
    (tmp_path / "file").write_text("")
    assert by_subject(checkup.examine(tmp_path / "file"))["results folder"].state == "broken"


def test_a_busy_machine_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 0.0, 0.0))
    assert "noisy" in by_subject(checkup.examine(tmp_path))["load"].detail


def test_a_repository_that_git_does_not_read_is_a_note(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert "git" not in by_subject(checkup.disturbances())
    repository = projects.make(tmp_path / "mine")
    monkeypatch.chdir(repository)
    assert "git" not in by_subject(checkup.disturbances())
    (repository / ".git/index").write_bytes(b"not an index")
    finding = by_subject(checkup.disturbances())["git"]
    assert finding.detail.startswith("records will not name a commit: git failed in ")

"""Git at our hands: odd repositories are read right, and nothing that one says is run or fetched."""

import hashlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import projects
import pytest
from projects import commit, git

from tcbench.core.git import _ALLOWED_VARIABLES, GitError, Repository


@pytest.fixture
def repository(tmp_path):
    return projects.make(tmp_path / "mine")


def copied(repository: Path, to: Path, revision: str = "HEAD") -> Path:
    Repository.containing(repository).check_out(git(repository, "rev-parse", revision), to)
    return to


def changed(folder: Path, *paths: str) -> bool:
    return Repository.containing(folder).commit(*paths).endswith("+")


def test_an_edit_in_the_second_of_a_commit_is_a_change(repository):
    """git trusts a file's times, in seconds, only where the file is older than the index: a copy keeps that time."""
    time.sleep(1 - time.time() % 1)  # the second begins
    commit(repository, same_size__txt="x")
    (repository / "same_size.txt").write_text("y")
    time.sleep(1.1)
    assert changed(repository)


# ------------------------------------------------------------------------------------------------ nothing of it is run


def hostile(repository: Path, ran: Path) -> None:
    """Every setting of a repository that names a command, and hooks. Each command leaves a file in `ran`."""
    ran.mkdir()
    passes_on = ("core.pager", "pager.status", "diff.evil.textconv", "filter.evil.clean", "filter.evil.smudge")
    fails = ("core.fsmonitor", "core.editor", "core.sshCommand", "core.gitProxy", "core.alternateRefsCommand")
    fails += ("diff.external", "diff.evil.command", "merge.evil.driver", "filter.worse.process", "gpg.program")
    fails += ("uploadpack.packObjectsHook", "remote.origin.uploadpack")
    of_a_shell = ("credential.helper", "alias.status", "alias.rev-parse", "submodule.lib.update")
    on = ("filter.evil.required", "filter.worse.required", "log.showSignature", "submodule.recurse")
    on += ("status.submoduleSummary", "remote.origin.promisor")
    settings = {
        **{name: f"touch {ran}/{name}; cat" for name in passes_on},
        **{name: f"touch {ran}/{name}; false" for name in fails},
        **{name: f"!touch {ran}/{name}" for name in of_a_shell},
        **dict.fromkeys(on, "true"),
        **dict.fromkeys(("protocol.allow", "protocol.ext.allow"), "always"),
        "core.hooksPath": str(repository / "hooks"),
        "remote.origin.url": f"ext::sh -c touch% {ran}/remote",
        "remote.origin.partialclonefilter": "blob:none",
        "extensions.partialClone": "origin",
        "core.repositoryformatversion": "1",
    }
    for name, value in settings.items():
        git(repository, "config", name, value)
    for folder in (repository / "hooks", repository / ".git/hooks"):
        for hook in ("post-checkout", "post-index-change", "reference-transaction", "fsmonitor-watchman", "post-merge"):
            projects.interpreter(folder / hook, f"touch {ran}/{hook}", "true")


@pytest.fixture
def trap(repository, tmp_path):
    """A repository with a submodule, both hostile, whose files look changed, so that git has to compare them."""
    library = projects.make(tmp_path / "library")
    projects.add_submodule(repository, library, "lib")
    commit(repository, **{".gitattributes": "*.py filter=evil diff=evil\n*.toml filter=worse diff=evil merge=evil\n"})
    hostile(repository, tmp_path / "ran")
    inner = repository / "lib"
    (inner / ".gitattributes").write_text("*.py filter=evil\n")
    git(inner, "config", "filter.evil.clean", f"touch {tmp_path}/ran/lib-clean; cat")
    git(inner, "config", "core.fsmonitor", f"touch {tmp_path}/ran/lib-fsmonitor; false")
    for file in (*repository.glob("*.*"), *inner.glob("*.*")):
        os.utime(file, (1, 1))
    return repository


def ran(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "ran").iterdir())


def test_the_trap_would_spring(trap, tmp_path):
    for folder in (trap, trap / "lib"):
        subprocess.run(["git", "-C", str(folder), "status"], capture_output=True)
    assert {"filter.evil.clean", "filter.worse.process", "lib-clean", "core.fsmonitor"} <= set(ran(tmp_path))


def test_telling_a_hostile_repositorys_commit_runs_nothing(trap, tmp_path):
    assert Repository.containing(trap).commit() == git(trap, "rev-parse", "--short=12", "HEAD")
    with (trap / ".gitattributes").open("a") as attributes:  # the only file without a filter
        attributes.write("# changed\n")
    assert Repository.containing(trap).commit() == git(trap, "rev-parse", "--short=12", "HEAD") + "+"
    assert ran(tmp_path) == []


def test_checking_a_hostile_repository_out_runs_nothing(trap, tmp_path):
    checkout = copied(trap, tmp_path / "there")
    assert (checkout / "my_step.py").read_text() == projects.STEP
    assert (checkout / "lib/my_step.py").read_text() == projects.STEP
    assert ran(tmp_path) == []
    taken_over = git(checkout, "config", "--local", "--name-only", "--list").split()
    assert sorted(taken_over) == ["core.bare", "core.filemode", "core.repositoryformatversion"]


def test_what_a_partial_clone_lacks_is_not_fetched_by_a_command_it_names(trap, tmp_path):
    head = git(trap, "rev-parse", "HEAD")
    lost = git(trap, "rev-parse", "HEAD:my_step.py")
    (trap / f".git/objects/{lost[:2]}/{lost[2:]}").unlink()
    with pytest.raises(GitError, match=lost):
        Repository.containing(trap).check_out(head, tmp_path / "there")
    with pytest.raises(GitError):
        Repository.containing(trap).ask("rev-parse", "--verify", f"{'1' * 40}^{{commit}}")
    assert ran(tmp_path) == []


def test_variables_of_git_run_nothing_and_lead_nowhere_else(repository, tmp_path, monkeypatch):
    commit(repository, **{".gitattributes": "*.py filter=evil\n"})
    os.utime(repository / "my_step.py", (1, 1))
    (tmp_path / "ran").mkdir()
    command = f"touch {tmp_path}/ran/it"
    for name in ("GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_EDITOR", "GIT_SSH_COMMAND", "GIT_ASKPASS"):
        monkeypatch.setenv(name, command)
    configured = {"COUNT": "1", "KEY_0": "filter.evil.clean", "VALUE_0": f"{command}; cat"}
    unsafe = {"TRACE": f"{tmp_path}/ran/trace", "EXEC_PATH": str(tmp_path), "DIR": str(tmp_path)}
    for name, value in ({f"CONFIG_{name}": value for name, value in configured.items()} | unsafe).items():
        monkeypatch.setenv(f"GIT_{name}", value)
    original = Repository.containing(repository)
    assert not original.commit().endswith("+")
    assert original.top == repository
    assert ran(tmp_path) == []


def test_monitors_and_hooks_of_the_users_own_configuration_stay_off(repository, tmp_path, monkeypatch):
    (tmp_path / "ran").mkdir()
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        projects.interpreter(tmp_path / "hooks" / hook, f"touch {tmp_path}/ran/{hook}", "true")
    monitor = f"touch {tmp_path}/ran/monitor; false"
    (tmp_path / "config").write_text(f'[core]\n\thooksPath = "{tmp_path}/hooks"\n\tfsmonitor = "{monitor}"\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    os.utime(repository / "my_step.py", (1, 1))
    Repository.containing(repository).commit()
    copied(repository, tmp_path / "there")
    assert ran(tmp_path) == []


@pytest.fixture
def configured(repository, tmp_path, monkeypatch):
    """Commit files under a configuration of the user's, which stays."""

    def commit_with(config: str, **files: str) -> None:
        (tmp_path / "config").write_text(f"{config}[user]\n\tname = A\n\temail = a@example.org\n")
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
        for name, content in files.items():
            (repository / name.replace("__", ".")).write_text(content)
        for words in (("add", "--all"), ("commit", "--quiet", "--message", "files")):
            subprocess.run(["git", "-C", str(repository), *words], check=True)

    return commit_with


def test_filters_of_the_users_own_configuration_work(repository, tmp_path, configured):
    config = '[filter "mine"]\n\tclean = sed s/open/shut/\n\tsmudge = sed s/shut/open/\n'
    configured(config, door__txt="open\n", __gitattributes="*.txt filter=mine\n")
    assert git(repository, "show", "HEAD:door.txt") == "shut"
    assert (copied(repository, tmp_path / "there") / "door.txt").read_text() == "open\n"
    os.utime(repository / "door.txt", (1, 1))
    assert not changed(repository)


@pytest.mark.parametrize("where", [".gitattributes", ".git/info/attributes"])
def test_files_under_a_filter_of_the_repositorys_own_configuration_are_left_out_at_any_time(
    repository, where, monkeypatch
):
    """They cannot be compared without the filter."""
    rotate = {"filter.rot.clean": "tr a-z b-za", "filter.rot.smudge": "tr b-za a-z"}
    for name, value in rotate.items():
        git(repository, "config", name, value)
    (repository / where).parent.mkdir(exist_ok=True)
    (repository / where).write_text("*.dat filter=rot\n")
    monkeypatch.setattr("tcbench.core.git._MOST_PATHS", 1)
    commit(repository, a__dat="one", weights__dat="hello", z__dat="two")
    for name in ("a.dat", "z.dat"):
        os.utime(repository / name, (1, 1))
    for written_at in (None, 1, 2):
        if written_at is not None:
            os.utime(repository / "weights.dat", (written_at, written_at))
        assert not changed(repository)
        assert Repository.containing(repository).changes() == ""
    (repository / "my_step.py").write_text("changed")
    assert changed(repository)
    assert "weights.dat" not in Repository.containing(repository).changes()


@pytest.mark.parametrize("name", ["a file", os.fsdecode("ü".encode()), os.fsdecode(b"\xff")])
def test_a_patch_depends_on_no_setting_and_no_time_and_holds_any_bytes(repository, configured, name):
    configured("", **{name: "one\n"})
    (repository / name).write_bytes(b"\xff two\n")
    before = Repository.containing(repository).changes()
    assert os.fsdecode(b"\xff two") in before
    configured_now = "[diff]\n\tnoprefix = true\n\tmnemonicPrefix = true\n\texternal = false\n\tcontext = 0\n"
    (repository.parent / "config").write_text(configured_now)
    os.utime(repository / name, (1, 1))
    assert Repository.containing(repository).changes() == before


@pytest.mark.parametrize("how", ["COUNT", "PARAMETERS"])
def test_a_folder_that_the_users_variables_have_git_trust_is_trusted(repository, tmp_path, monkeypatch, how):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # as in another user's folder
    monkeypatch.setattr("tcbench.core.git._ALLOWED_VARIABLES", (*_ALLOWED_VARIABLES, "GIT_TEST_ASSUME_DIFFERENT_OWNER"))
    with pytest.raises(GitError, match="dubious ownership"):
        Repository.containing(repository)
    settings = ("safe.directory=*", f"core.pager=touch {tmp_path}/ran", f"filter.evil.clean=touch {tmp_path}/ran")
    if how == "COUNT":
        monkeypatch.setenv("GIT_CONFIG_COUNT", str(len(settings)))
        for n, setting in enumerate(settings):
            for part, word in zip(("KEY", "VALUE"), setting.split("=", 1), strict=True):
                monkeypatch.setenv(f"GIT_CONFIG_{part}_{n}", word)
    else:
        parameters = (f"'{name}'='{value}'" for name, value in (setting.split("=", 1) for setting in settings))
        monkeypatch.setenv("GIT_CONFIG_PARAMETERS", " ".join(parameters))
    (repository / ".gitattributes").write_text("* filter=evil\n")
    os.utime(repository / "my_step.py", (1, 1))
    assert not Repository.containing(repository).commit().endswith("+")
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(shutil.which("git-lfs") is None, reason="Git LFS is not on PATH")
def test_git_lfs_brings_what_is_here_and_asks_no_address_that_a_repository_names(repository, tmp_path, configured):
    filters = '[filter "lfs"]\n\tprocess = git-lfs filter-process\n\trequired = true\n'
    with socket.create_server(("127.0.0.1", 0)) as server:
        lfs = {"__lfsconfig": f"[lfs]\n\turl = http://127.0.0.1:{server.getsockname()[1]}/\n"}
        configured(filters, **lfs, __gitattributes="*.bin filter=lfs\n", here__bin="here", gone__bin="gone")
        gone = hashlib.sha256(b"gone").hexdigest()
        (repository / f".git/lfs/objects/{gone[:2]}/{gone[2:4]}/{gone}").unlink()
        checkout = copied(repository, tmp_path / "there")
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert (checkout / "here.bin").read_text() == "here"
    assert (checkout / "gone.bin").read_text().startswith("version https://git-lfs")


# ---------------------------------------------------------------------------------------------------- odd repositories


ODD_NAMES = ("with space", "with\nnewline", "ends with newline\n", 'quote"d', "-dash", "a:b", "ü".encode(), b"\xff")


@pytest.mark.parametrize("name", [*map(os.fsdecode, ODD_NAMES)])
def test_any_name_of_a_folder_will_do(tmp_path, name):
    repository = projects.make(tmp_path / name)
    (repository / name).mkdir()
    (repository / name / "file").touch()
    commit(repository)
    original = Repository.containing(repository / name)
    assert original.top == repository
    assert (copied(repository, tmp_path / "there") / name / "file").exists()
    assert original.commit() == git(repository, "rev-parse", "--short=12", "HEAD")


def test_a_worktree_is_one_and_shares_what_the_checkout_has(repository, tmp_path):
    git(repository, "worktree", "add", "--quiet", "--detach", str(tmp_path / "second"))
    commit(tmp_path / "second", more__txt="x")
    original = Repository.containing(tmp_path / "second")
    assert original.commit() == git(tmp_path / "second", "rev-parse", "--short=12", "HEAD")
    assert (copied(tmp_path / "second", tmp_path / "there") / "more.txt").exists()
    # What was checked out is a repository like any other.
    assert (copied(tmp_path / "there", tmp_path / "again") / "more.txt").exists()
    (tmp_path / "second/more.txt").write_text("y")
    assert changed(tmp_path / "second")
    assert not changed(repository)


def test_a_shallow_clone_is_checked_out(repository, tmp_path):
    commit(repository, more__txt="x")
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repository}", "shallow")
    checkout = copied(tmp_path / "shallow", tmp_path / "there")
    assert git(checkout, "log", "--format=%H") == git(repository, "rev-parse", "HEAD")
    assert Repository.containing(tmp_path / "shallow").shallow
    assert not Repository.containing(repository).shallow


def test_a_repository_of_sha256_is_like_any_other(tmp_path):
    (tmp_path / "mine").mkdir()
    git(tmp_path / "mine", "init", "--quiet", "--object-format=sha256")
    head = commit(tmp_path / "mine", file__txt="x")
    assert len(head) == 64
    assert (copied(tmp_path / "mine", tmp_path / "there") / "file.txt").read_text() == "x"
    assert Repository.containing(tmp_path / "mine").commit() == head[:12]


def test_text_and_modes_are_kept_as_the_repository_says(repository, tmp_path):
    git(repository, "config", "core.autocrlf", "true")
    git(repository, "config", "core.fileMode", "false")
    (repository / "my_step.py").chmod(0o755)
    assert not changed(repository)
    assert b"\r\n" in (copied(repository, tmp_path / "there") / "my_step.py").read_bytes()


def test_an_index_in_parts_is_read_and_only_the_paths_that_were_named_count(repository):
    git(repository, "update-index", "--split-index")
    assert not changed(repository)
    (repository / "my_step.py").write_text("x")
    assert changed(repository)
    assert changed(repository, "my_step.py")
    assert not changed(repository, "my_step.toml")


def test_a_folder_without_a_commit_or_a_tree_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/empty").mkdir()
    git(tmp_path / "plain/empty", "init", "--quiet")
    git(tmp_path, "init", "--quiet", "--bare", "bare")
    for name, error in (
        *(("plain", "not a git repository"), ("bare", "work tree")),
        *(("plain/empty", "Needed a single revision"), ("nowhere", "cannot be started")),
    ):
        with pytest.raises(GitError, match=error):
            Repository.containing(tmp_path / name).commit()


def test_a_repository_that_keeps_git_waiting_is_an_error(repository, monkeypatch):
    monkeypatch.setattr("tcbench.core.git._LIMIT_S", 0.5)
    os.mkfifo(repository / "pipe")
    git(repository, "config", "include.path", str(repository / "pipe"))
    with pytest.raises(GitError, match=r"did not answer within 0\.5 s"):
        Repository.containing(repository)


def test_what_is_no_git_folder_is_never_taken_for_that_of_a_folder_above(repository, tmp_path):
    """`git reset` in a checkout of ours must not reach one that it lies in."""
    (repository / "my_step.py").write_text("mine")
    shutil.rmtree(repository / ".git/objects")
    with pytest.raises(GitError):
        Repository(repository, repository / ".git", repository / ".git").check_out("1" * 40, repository / "cache/tree")
    assert (repository / "my_step.py").read_text() == "mine"


# ---------------------------------------------------------------------------------------------------------- submodules


@pytest.fixture
def nested(repository, tmp_path):
    """A repository with a submodule that has one."""
    library, inner = projects.make(tmp_path / "library"), projects.make(tmp_path / "inner")
    projects.add_submodule(library, inner, "deep")
    projects.add_submodule(repository, library, "lib")
    git(
        repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init", "--recursive", "lib"
    )
    return repository


def test_submodules_are_checked_out_also_where_they_are_gone_from_the_working_tree(nested, tmp_path):
    checkout = copied(nested, tmp_path / "before")
    assert (checkout / "lib/my_step.py").exists()
    assert (checkout / "lib/deep/my_step.py").exists()
    git(nested, "rm", "--quiet", "lib")
    commit(nested)
    checkout = copied(nested, tmp_path / "there", "HEAD~1")
    assert (checkout / "lib/deep/my_step.py").exists()
    assert not (copied(nested, tmp_path / "now") / "lib").exists()


def test_a_change_in_a_submodule_is_one(nested):
    assert not changed(nested)
    step = nested / "lib/deep/my_step.py"
    step.write_text("changed")
    assert changed(nested)
    assert not changed(nested, "my_step.py")
    step.write_text(projects.STEP)
    assert not changed(nested)
    commit(nested / "lib", more__txt="x")
    assert changed(nested)


def test_a_submodule_that_was_never_here_is_named(nested, tmp_path):
    git(tmp_path, "clone", "--quiet", str(nested), "clone")
    head = git(nested, "rev-parse", "HEAD")
    assert Repository.containing(tmp_path / "clone").check_out(head, tmp_path / "there") == ["lib"]
    assert not changed(tmp_path / "clone")

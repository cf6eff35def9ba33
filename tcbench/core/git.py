"""The module that runs git, in a way that never runs a command from a repository's configuration.

Files are compared and checked out through a temporary git folder. It shares the objects of the repository but has none
of its filters, hooks or monitors. Filters in the user's own configuration, such as Git LFS, work. Nothing is fetched.
"""

import contextlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tcbench.core import process

_LIMIT_S = 60.0
"""The time limit of a git command that only asks for information."""

_ALLOWED_VARIABLES = (
    *("GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM"),
    *("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"),
)
"""The variables of git that are passed on. They say where to look; others name programs, or (in a hook) a checkout."""

_VARIABLES = {
    # A partial clone may name any command as its transport, which git would run to fetch missing objects.
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_LFS_SKIP_DOWNLOAD_ERRORS": "1",  # missing files stay pointers
    "LC_ALL": "C",
}

_OFF = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.splitIndex=false", "lfs.url=file:///dev/null")
"""Settings that override the user's: no monitors, no hooks, no server for large files."""

_SUBMODULES = "--ignore-submodules=dirty"

_HARMLESS = re.compile(
    r"core\.(autocrlf|eol|filemode|ignorecase|precomposeunicode|symlinks|checkstat|trustctime)|extensions\.objectformat"
)
"""Settings of a repository that say how files are stored, and run nothing."""

_FILTER_COMMAND = re.compile(r"filter\.(?P<driver>.+)\.(clean|process)", re.DOTALL)
_MOST_PATHS = 500
"""The most paths on one command line."""


class GitError(Exception):
    """An error of git, as one line."""


@dataclass(frozen=True)
class Repository:
    """A checkout: its top folder, its git folder, and the git folder that all its worktrees share."""

    top: Path
    folder: Path
    common: Path

    @staticmethod
    def containing(folder: Path) -> "Repository":
        """Return the repository that a folder is in. Raises GitError if there is none."""
        top, git_folder, common = (
            Path(_run(folder, "rev-parse", option, limit_s=_LIMIT_S))
            for option in ("--show-toplevel", "--absolute-git-dir", "--git-common-dir")
        )
        return Repository(top, git_folder, (folder / common).resolve())

    def ask(self, *arguments: str, patiently: bool = False) -> str:
        """Run a git command in this repository and return its output. Raises GitError.

        `patiently` removes the time limit. Commands that read the checked-out files are safe only in a git folder made
        by `_shared`, since they may run filters."""
        folders = (f"--git-dir={self.folder}", f"--work-tree={self.top}")
        return _run(self.top, *folders, *arguments, limit_s=None if patiently else _LIMIT_S)

    @property
    def shallow(self) -> bool:
        """Whether the repository lacks the beginning of its history."""
        return (self.common / "shallow").exists()

    def commit(self, *paths: str) -> str:
        """Return the short id of the checked-out commit, with `+` if tracked files (at `paths`, if any) differ from it.
        Raises OSError and GitError, also if there is no commit yet."""
        head = self.ask("rev-parse", "--verify", "HEAD")
        return head[:12] + ("+" if self._differs(head, *paths) else "")

    def changes(self) -> str:
        """Return the patch from the checked-out commit to the tracked files, or "". Raises OSError and GitError."""
        head = self.ask("rev-parse", "--verify", "HEAD")
        with self._safe_copy(head) as copy:
            if not (names := self._changed(copy, head)):
                return ""
            options = ("--patch", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", _SUBMODULES)
            parts = (names[start : start + _MOST_PATHS] for start in range(0, len(names), _MOST_PATHS))
            compare = ("--literal-pathspecs", "diff-index", *options, head, "--")
            return "".join(copy.ask(*compare, *part, patiently=True) for part in parts)

    @contextlib.contextmanager
    def _safe_copy(self, head: str) -> Iterator["Repository"]:
        """Make a temporary git folder for this repository's files, with the commit `head` and a copy of the index, and
        yield it as a repository."""
        with tempfile.TemporaryDirectory(prefix="tcbench-git-") as folder:
            copy = self._shared(Path(folder), self.top, head)
            for part in self.folder.glob("sharedindex.*"):
                (copy.folder / part.name).symlink_to(part)
            with contextlib.suppress(FileNotFoundError):
                # With its modification time: git compares the contents of files that are newer than the index.
                shutil.copy2(self.folder / "index", copy.folder / "index")
            yield copy

    def _differs(self, head: str, *paths: str) -> bool:
        """Return whether tracked files, at `paths` if any and including those of submodules, differ from the commit
        `head`."""
        with self._safe_copy(head) as copy:
            if self._changed(copy, head, *paths):
                return True
            links = _links(copy.ask("ls-files", "--stage", "-z", "--", *paths))
        # A removed submodule, of which only the git folder is left (`top` is `folder`), has no files to compare.
        inside = ((self._submodule(path), commit) for path, commit in links.items())
        return any(inner.top != inner.folder and inner._differs(commit) for inner, commit in inside if inner)

    def _changed(self, copy: "Repository", head: str, *paths: str) -> list[str]:
        """Return the tracked files, at `paths` if any, that differ from the commit `head`. `copy` comes from
        `_safe_copy`. Files with a filter that only the repository's configuration names are left out: the filter is not
        run, and without it they cannot be compared."""
        # For a file with a new modification time the index only says that it may differ. A refresh compares contents.
        copy.ask("update-index", "-q", "--refresh", "--unmerged", "--ignore-missing", patiently=True)
        names = copy.ask("diff-index", "--name-only", "-z", _SUBMODULES, head, "--", *paths).split("\0")[:-1]
        drivers = self._repository_filters() if names else frozenset[str]()
        left_out: set[str] = set()
        for start in range(0, len(names) if drivers else 0, _MOST_PATHS):
            answer = self.ask("check-attr", "-z", "filter", "--", *names[start : start + _MOST_PATHS]).split("\0")
            left_out |= {name for name, driver in zip(answer[::3], answer[2::3], strict=False) if driver in drivers}
        return [name for name in names if name not in left_out]

    def _repository_filters(self) -> frozenset[str]:
        """Return the filters whose commands come from this repository's configuration and not from the user's."""
        local, user = self._configuration()
        commands = ((_FILTER_COMMAND.fullmatch(name), user.get(name) == value) for name, value in local.items())
        return frozenset(match["driver"] for match, same in commands if match and not same)

    def check_out(self, commit: str, target: Path) -> list[str]:
        """Check out a commit into a new folder, with the submodules that are present in this repository. Return the
        paths of the other submodules, whose folders stay empty. Raises GitError, OSError."""
        copy = self._shared(target / ".git", target, commit)
        # Builds need tags and history to derive a version.
        tags = self.ask("for-each-ref", "--format=%(objectname) %(refname)", "refs/tags")
        (copy.folder / "packed-refs").write_bytes(os.fsencode(f"{tags}\n" if tags else ""))
        copy.ask("read-tree", "--reset", "-u", "--no-recurse-submodules", "HEAD", patiently=True)
        empty = []
        for path, link in _links(copy.ask("ls-files", "--stage", "-z")).items():
            inner = self._submodule(path)
            if inner is None:
                empty.append(path)
            elif inner.has(link):
                empty += [f"{path}/{deeper}" for deeper in inner.check_out(link, target / path)]
            else:
                raise GitError(f"submodule {path}: {link[:12]} is missing; run git -C {inner.top} fetch")
        return empty

    def has(self, commit: str) -> bool:
        """Return whether a commit is in this repository."""
        with contextlib.suppress(GitError):
            self.ask("cat-file", "-e", f"{commit}^{{commit}}")
            return True
        return False

    def _submodule(self, path: str) -> "Repository | None":
        """Return the submodule that is checked out at a path, else the git folder of a removed one, else None."""
        top = self.top / path
        if (top / ".git").exists():
            return Repository.containing(top)
        for folder in (self.folder / "modules" / path, self.common / "modules" / path):
            if (folder / "objects").is_dir():
                return Repository(folder, folder, folder)
        return None

    def _shared(self, git_folder: Path, top: Path, head: str) -> "Repository":
        """Make a git folder at `git_folder` for the files in `top`, and return it as a repository. It shares this
        repository's objects, and its HEAD is the commit `head`."""
        for folder in (git_folder / "objects/info", git_folder / "refs"):
            folder.mkdir(parents=True)
        (git_folder / "HEAD").write_text(f"{head}\n")
        objects = os.fsencode(self.common / "objects")
        if b"\n" in objects:
            objects = b'"' + objects.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'
        (git_folder / "objects/info/alternates").write_bytes(objects + b"\n")
        local, _ = self._configuration()
        settings = {
            name: value
            for name, value in local.items()
            if _HARMLESS.fullmatch(name) and re.fullmatch(r"\w*", value, re.ASCII)
        }
        version = int("extensions.objectformat" in settings)
        settings = {"core.repositoryformatversion": str(version), "core.bare": "false", **settings}
        lines = ("[{}]\n\t{} = {}\n".format(*name.split("."), value) for name, value in settings.items())
        (git_folder / "config").write_text("".join(lines))
        if self.shallow:
            shutil.copy(self.common / "shallow", git_folder / "shallow")
        with contextlib.suppress(FileNotFoundError):
            attributes = (self.common / "info/attributes").read_bytes()
            (git_folder / "info").mkdir()
            (git_folder / "info/attributes").write_bytes(attributes)
        return Repository(top, git_folder, git_folder)

    def _configuration(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the settings of the repository and those of the user and the system."""
        words = self.ask("config", "--list", "--show-scope", "-z").split("\0")
        local: dict[str, str] = {}
        user: dict[str, str] = {}
        for scope, setting in zip(words[::2], words[1::2], strict=False):
            name, separator, value = setting.partition("\n")
            if scope in ("local", "worktree"):
                local[name] = value if separator else "true"
            elif scope in ("system", "global"):
                user[name] = value if separator else "true"
        return local, user


def ancestry(folders: Iterable[Path], commits: Iterable[str]) -> dict[str, int]:
    """Return the position of each commit (a short id) in the history of the repositories of these folders. Parents come
    before their children. Unknown commits are left out."""
    commits = {commit for commit in commits if re.fullmatch(r"[0-9a-f]{7,64}", commit)}
    lengths = {len(commit) for commit in commits}
    places: dict[str, int] = {}
    for folder in folders if len(commits) > 1 else ():
        with contextlib.suppress(GitError):
            options = ("--date-order", "--reverse", "--ignore-missing")
            history = Repository.containing(folder).ask("rev-list", *options, *sorted(commits)).split()
            short_ids = ((commit[:length], n) for n, commit in enumerate(history) for length in lengths)
            places |= {commit: n for commit, n in short_ids if commit in commits}
    return places


def refusal(folder: Path) -> str | None:
    """Return git's error if a folder is in a repository whose commit git refuses to report, else None. It is None
    outside of a repository, in a repository without commits, and without git."""
    try:
        Repository.containing(folder).commit()
    except GitError as error:
        expected = ("not a git repository", "in a work tree", "Needed a single revision", "cannot be started")
        return None if any(words in str(error) for words in expected) else str(error)
    except OSError as error:
        return str(error)
    return None


def tracked(path: Path) -> bool:
    """Return whether git tracks a file, or False if git cannot tell. The command reads no checked-out file."""
    with contextlib.suppress(GitError):
        names = ("--literal-pathspecs", "ls-files", "--", path.name)
        return bool(_run(path.parent, *names, limit_s=_LIMIT_S))
    return False


def _links(staged: str) -> dict[str, str]:
    """Return the path and commit of each submodule in the output of `ls-files --stage -z`."""
    lines = (line.partition("\t") for line in staged.split("\0"))
    return {path: facts.split()[1] for facts, _, path in lines if facts.startswith("160000 ")}


def _settings_in_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the harmless settings and the settings `safe.*`, as `name=value`, in environment variables of git:
    `GIT_CONFIG_KEY_0` and so on, and the variable by which `git -c` passes settings to child processes."""
    count = environment.get("GIT_CONFIG_COUNT", "")
    numbers = range(int(count) if re.fullmatch("[0-9]{1,4}", count, re.ASCII) else 0)
    settings = [f"{environment.get(f'GIT_CONFIG_KEY_{n}')}={environment.get(f'GIT_CONFIG_VALUE_{n}')}" for n in numbers]
    with contextlib.suppress(ValueError):
        settings += shlex.split(environment.get("GIT_CONFIG_PARAMETERS", ""))
    names = (setting.partition("=")[0].lower() for setting in settings)
    allowed = (name.startswith("safe.") or _HARMLESS.fullmatch(name) for name in names)
    return [setting for setting, passed in zip(settings, allowed, strict=True) if passed]


def _run(folder: Path, *arguments: str, limit_s: float | None) -> str:
    """Run git in a folder and return its output. Raises GitError."""
    variables = os.environ.items()
    passed = {name: value for name, value in variables if not name.startswith("GIT_") or name in _ALLOWED_VARIABLES}
    settings = (*_settings_in_variables(os.environ), *_OFF)
    try:
        program = ["git", "--no-optional-locks", *(word for setting in settings for word in ("-c", setting))]
        environment = {**passed, **_VARIABLES}
        answer = process.ask([*program, *arguments], folder=folder, environment=environment, limit_s=limit_s)
    except TimeoutError:
        raise GitError(f"git did not answer within {limit_s:g} s in {folder}") from None
    except OSError as error:
        raise GitError(f"git cannot be started in {folder} ({error.strerror})") from None
    if answer.code:
        words = " ".join(answer.stderr.split())
        raise GitError(f"git failed in {folder}: {words[:400] or f'exit code {answer.code}'}")
    return answer.stdout.removesuffix("\n")

"""The one place that runs git, so that nothing a repository says is run meanwhile.

A repository's own configuration is asked where things lie and how text is kept, never what to run: its files are
compared and checked out through a git folder of ours, which shares its objects and knows none of its filters, hooks or
monitors. What the user's own configuration names (Git LFS) works. Nothing is fetched.
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
"""The longest that git may take over one query."""

_KEPT_VARIABLES = (
    *("GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM"),
    *("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"),
)
"""Of git's variables only those that say where to look: others name programs, or another checkout (in a hook)."""

_OURS = {
    # No transport, whatever a repository allows: a partial clone would fetch what it lacks by any command it names.
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_LFS_SKIP_DOWNLOAD_ERRORS": "1",  # what is not here stays a pointer
    "LC_ALL": "C",
}

_OFF = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.splitIndex=false", "lfs.url=file:///dev/null")
"""Settings that win over the user's: no monitor, no hook, no address."""

_SUBMODULES = "--ignore-submodules=dirty"

_HARMLESS = re.compile(
    r"core\.(autocrlf|eol|filemode|ignorecase|precomposeunicode|symlinks|checkstat|trustctime)|extensions\.objectformat"
)
"""Settings of a repository that say how files are kept, and run nothing."""

_FILTER_COMMAND = re.compile(r"filter\.(?P<driver>.+)\.(clean|process)", re.DOTALL)
_MOST_PATHS = 500
"""Paths on one command line."""


class GitError(Exception):
    """git's own error, as one line."""


@dataclass(frozen=True)
class Repository:
    """A checkout: its top folder, its git folder, and the one that all its worktrees share."""

    top: Path
    folder: Path
    common: Path

    @staticmethod
    def around(folder: Path) -> "Repository":
        top, own, common = (
            Path(_run(folder, "rev-parse", option, limit_s=_LIMIT_S))
            for option in ("--show-toplevel", "--absolute-git-dir", "--git-common-dir")
        )
        return Repository(top, own, (folder / common).resolve())

    def ask(self, *arguments: str, patiently: bool = False) -> str:
        """Return git's output here. Where the git folder is not ours, ask only commands that look at no file. Raises
        GitError."""
        there = (f"--git-dir={self.folder}", f"--work-tree={self.top}")
        return _run(self.top, *there, *arguments, limit_s=None if patiently else _LIMIT_S)

    @property
    def shallow(self) -> bool:
        """Whether it lacks the beginning of its history."""
        return (self.common / "shallow").exists()

    def commit(self, *paths: str) -> str:
        """The one that is checked out, in short, with `+` when tracked files (those at `paths`) differ from it. Raises
        GitError, also where there is none yet, and OSError."""
        head = self.ask("rev-parse", "--verify", "HEAD")
        return head[:12] + ("+" if self._differs(head, *paths) else "")

    def changes(self) -> str:
        """Return the patch from the commit that is checked out to the tracked files, or "". Raises as `commit`."""
        head = self.ask("rev-parse", "--verify", "HEAD")
        with self._apart(head) as copy:
            if not (names := self._changed(copy, head)):
                return ""
            options = ("--patch", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", _SUBMODULES)
            listed = (names[start : start + _MOST_PATHS] for start in range(0, len(names), _MOST_PATHS))
            compare = ("--literal-pathspecs", "diff-index", *options, head, "--")
            return "".join(copy.ask(*compare, *part, patiently=True) for part in listed)

    @contextlib.contextmanager
    def _apart(self, head: str) -> Iterator["Repository"]:
        """A git folder of ours for these files with a copy of their index, as long as the context lasts."""
        with tempfile.TemporaryDirectory(prefix="tcbench-git-") as folder:
            copy = self._shared(Path(folder), self.top, head)
            for part in self.folder.glob("sharedindex.*"):
                (copy.folder / part.name).symlink_to(part)
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(self.folder / "index", copy.folder / "index")  # git doubts files as new as their index
            yield copy

    def _differs(self, head: str, *paths: str) -> bool:
        """Whether tracked files differ from a commit, or those of submodules from theirs."""
        with self._apart(head) as copy:
            if self._changed(copy, head, *paths):
                return True
            links = _links(copy.ask("ls-files", "--stage", "-z", "--", *paths))
        inside = ((self._submodule(path), commit) for path, commit in links.items())
        return any(inner.top != inner.folder and inner._differs(commit) for inner, commit in inside if inner)

    def _changed(self, copy: "Repository", head: str, *paths: str) -> list[str]:
        """Return the tracked files that differ from a commit. Files under a filter that only the repository's
        configuration names are left out: without the filter, which does not run, they cannot be compared."""
        # The index says of files with other times only that they may differ; this compares their contents.
        copy.ask("update-index", "-q", "--refresh", "--unmerged", "--ignore-missing", patiently=True)
        names = copy.ask("diff-index", "--name-only", "-z", _SUBMODULES, head, "--", *paths).split("\0")[:-1]
        drivers = self._own_filters() if names else frozenset[str]()
        left_out: set[str] = set()
        for start in range(0, len(names) if drivers else 0, _MOST_PATHS):
            answer = self.ask("check-attr", "-z", "filter", "--", *names[start : start + _MOST_PATHS]).split("\0")
            left_out |= {name for name, driver in zip(answer[::3], answer[2::3], strict=False) if driver in drivers}
        return [name for name in names if name not in left_out]

    def _own_filters(self) -> frozenset[str]:
        """Return the filters that run a command of this repository's configuration and not of the user's."""
        scopes = self._configuration()
        settings = scopes.get("local", {}) | scopes.get("worktree", {})
        users = {name: value for scope in ("system", "global") for name, value in scopes.get(scope, {}).items()}
        commands = ((_FILTER_COMMAND.fullmatch(name), users.get(name) == value) for name, value in settings.items())
        return frozenset(match["driver"] for match, same in commands if match and not same)

    def check_out(self, commit: str, to: Path) -> list[str]:
        """The commit's files in a new folder, and those of the submodules that are checked out here. The answer is the
        paths of those that are not, whose folders stay empty. Raises GitError, OSError."""
        ours = self._shared(to / ".git", to, commit)
        # Builds ask for tags and history to tell a version.
        tags = self.ask("for-each-ref", "--format=%(objectname) %(refname)", "refs/tags")
        (ours.folder / "packed-refs").write_bytes(os.fsencode(f"{tags}\n" if tags else ""))
        ours.ask("read-tree", "--reset", "-u", "--no-recurse-submodules", "HEAD", patiently=True)
        empty = []
        for path, wanted in _links(ours.ask("ls-files", "--stage", "-z")).items():
            inner = self._submodule(path)
            if inner is None:
                empty.append(path)
            elif inner.has(wanted):
                empty += [f"{path}/{deeper}" for deeper in inner.check_out(wanted, to / path)]
            else:
                raise GitError(f"submodule {path}: {wanted[:12]} is not here; git -C {inner.top} fetch brings it")
        return empty

    def has(self, commit: str) -> bool:
        with contextlib.suppress(GitError):
            self.ask("cat-file", "-e", f"{commit}^{{commit}}")
            return True
        return False

    def _submodule(self, path: str) -> "Repository | None":
        """The one that is checked out at a path; else what git kept of it; None where it never was here."""
        top = self.top / path
        if (top / ".git").exists():
            return Repository.around(top)
        for kept in (self.folder / "modules" / path, self.common / "modules" / path):
            if (kept / "objects").is_dir():
                return Repository(kept, kept, kept)
        return None

    def _shared(self, own: Path, top: Path, head: str) -> "Repository":
        """Make a git folder of ours for `top`, with the objects of this repository and `head` checked out."""
        for folder in (own / "objects/info", own / "refs"):
            folder.mkdir(parents=True)
        (own / "HEAD").write_text(f"{head}\n")
        objects = os.fsencode(self.common / "objects")
        if b"\n" in objects:
            objects = b'"' + objects.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'
        (own / "objects/info/alternates").write_bytes(objects + b"\n")
        settings = self._settings()
        version = int("extensions.objectformat" in settings)
        settings = {"core.repositoryformatversion": str(version), "core.bare": "false", **settings}
        lines = ("[{}]\n\t{} = {}\n".format(*name.split("."), value) for name, value in settings.items())
        (own / "config").write_text("".join(lines))
        if self.shallow:
            shutil.copy(self.common / "shallow", own / "shallow")
        with contextlib.suppress(FileNotFoundError):
            attributes = (self.common / "info/attributes").read_bytes()
            (own / "info").mkdir()
            (own / "info/attributes").write_bytes(attributes)
        return Repository(top, own, own)

    def _settings(self) -> dict[str, str]:
        """Return the harmless ones of its own configuration."""
        scopes = self._configuration()
        settings = scopes.get("local", {}) | scopes.get("worktree", {})
        return {
            name: value
            for name, value in settings.items()
            if _HARMLESS.fullmatch(name) and re.fullmatch(r"\w*", value, re.ASCII)
        }

    def _configuration(self) -> dict[str, dict[str, str]]:
        """Return each scope's settings, of which the repository's are "local" and "worktree"."""
        words = self.ask("config", "--list", "--show-scope", "-z").split("\0")
        scopes: dict[str, dict[str, str]] = {}
        for scope, setting in zip(words[::2], words[1::2], strict=False):
            name, separator, value = setting.partition("\n")
            scopes.setdefault(scope, {})[name] = value if separator else "true"
        return scopes


def ancestry(folders: Iterable[Path], commits: Iterable[str]) -> dict[str, int]:
    """The place of each commit (a short id) in the history of the checkout around one of these folders, parents before
    their children; without those that none of them has."""
    commits = {commit for commit in commits if re.fullmatch(r"[0-9a-f]{7,64}", commit)}
    lengths = {len(commit) for commit in commits}
    places: dict[str, int] = {}
    for folder in folders if len(commits) > 1 else ():
        with contextlib.suppress(GitError):
            options = ("--date-order", "--reverse", "--ignore-missing")
            listed = Repository.around(folder).ask("rev-list", *options, *sorted(commits)).split()
            known = ((commit[:length], n) for n, commit in enumerate(listed) for length in lengths)
            places |= {commit: n for commit, n in known if commit in commits}
    return places


def refusal(folder: Path) -> str | None:
    """Return git's error where a folder lies in a repository whose commit it does not tell. Outside of repositories,
    in a repository without a commit and without git there is nothing to tell."""
    try:
        Repository.around(folder).commit()
    except GitError as error:
        expected = ("not a git repository", "in a work tree", "Needed a single revision", "cannot be started")
        return None if any(words in str(error) for words in expected) else str(error)
    except OSError as error:
        return str(error)
    return None


def tracked(path: Path) -> bool:
    """Whether a file is one that git keeps, as far as git can be asked. It looks at no file for that."""
    with contextlib.suppress(GitError):
        names = ("--literal-pathspecs", "ls-files", "--", path.name)
        return bool(_run(path.parent, *names, limit_s=_LIMIT_S))
    return False


def _links(staged: str) -> dict[str, str]:
    """Path and commit of each submodule in what `ls-files --stage -z` lists."""
    entries = (entry.partition("\t") for entry in staged.split("\0"))
    return {path: facts.split()[1] for facts, _, path in entries if facts.startswith("160000 ")}


def _settings_of_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the settings, as `name=value`, by which the user's variables have git trust a folder or read its files:
    `GIT_CONFIG_KEY_0` and its like, and what `git -c` leaves to the commands it starts."""
    count = environment.get("GIT_CONFIG_COUNT", "")
    numbers = range(int(count) if re.fullmatch("[0-9]{1,4}", count, re.ASCII) else 0)
    settings = [f"{environment.get(f'GIT_CONFIG_KEY_{n}')}={environment.get(f'GIT_CONFIG_VALUE_{n}')}" for n in numbers]
    with contextlib.suppress(ValueError):
        settings += shlex.split(environment.get("GIT_CONFIG_PARAMETERS", ""))
    names = (setting.partition("=")[0].lower() for setting in settings)
    allowed = (name.startswith("safe.") or _HARMLESS.fullmatch(name) for name in names)
    return [setting for setting, passed in zip(settings, allowed, strict=True) if passed]


def _run(folder: Path, *arguments: str, limit_s: float | None) -> str:
    """Return git's output. Raises GitError."""
    theirs = os.environ.items()
    own = {name: value for name, value in theirs if not name.startswith("GIT_") or name in _KEPT_VARIABLES}
    settings = (*_settings_of_variables(os.environ), *_OFF)
    try:
        program = ["git", "--no-optional-locks", *(word for setting in settings for word in ("-c", setting))]
        environment = {**own, **_OURS}
        answer = process.ask([*program, *arguments], folder=folder, environment=environment, limit_s=limit_s)
    except TimeoutError:
        raise GitError(f"git did not answer within {limit_s:g} s in {folder}") from None
    except OSError as error:
        raise GitError(f"git cannot be started in {folder} ({error.strerror})") from None
    if answer.code:
        words = " ".join(answer.stderr.split())
        raise GitError(f"git failed in {folder}: {words[:400] or f'exit code {answer.code}'}")
    return answer.stdout.removesuffix("\n")

"""The one place that runs git, so that nothing a repository says is run meanwhile.

A repository's own configuration is asked where things lie and how text is kept, never what to run: its files are
compared and checked out through a git folder of ours, which shares its objects and knows none of its filters, hooks or
monitors. What the user's own configuration names (Git LFS) works. Nothing is fetched.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
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

_HARMLESS = re.compile(
    r"core\.(autocrlf|eol|filemode|ignorecase|precomposeunicode|symlinks|checkstat|trustctime)|extensions\.objectformat"
)
"""Settings of a repository that say how files are kept, and run nothing."""


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

    def ask(self, *arguments: str, index: Path | None = None, patiently: bool = False) -> str:
        """git's output here. Where the git folder is not ours, only of commands that look at no file. Raises
        GitError."""
        there = (f"--git-dir={self.folder}", f"--work-tree={self.top}")
        limit_s = None if patiently else _LIMIT_S
        return _run(self.top, *there, *arguments, limit_s=limit_s, **{"GIT_INDEX_FILE": str(index)} if index else {})

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
        """How tracked files differ from the commit that is checked out, as a patch, or "". Raises GitError, OSError."""
        head = self.ask("rev-parse", "--verify", "HEAD")
        with self._apart(head) as (ours, index):
            options = ("--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty")
            return ours.ask("diff", *options, head, index=index, patiently=True)

    @contextlib.contextmanager
    def _apart(self, head: str) -> Iterator[tuple["Repository", Path]]:
        """A git folder of ours for these files, as long as the context lasts, and their index."""
        with tempfile.TemporaryDirectory(prefix="tcbench-git-") as folder:
            ours = self._shared(Path(folder), self.top, head)
            for part in self.folder.glob("sharedindex.*"):
                (ours.folder / part.name).symlink_to(part)
            yield ours, self.folder / "index"

    def _differs(self, head: str, *paths: str) -> bool:
        """Whether tracked files differ from a commit, or those of submodules from theirs."""
        with self._apart(head) as (ours, index):
            options = ("--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
            if ours.ask("status", *options, "--", *paths, index=index):
                return True
            links = _links(ours.ask("ls-files", "--stage", "-z", "--", *paths, index=index))
        inside = ((self._submodule(path), commit) for path, commit in links.items())
        return any(inner.top != inner.folder and inner._differs(commit) for inner, commit in inside if inner)

    def check_out(self, commit: str, to: Path) -> list[str]:
        """The commit's files in a new folder, and those of the submodules that are checked out here. The answer is the
        paths of those that are not, whose folders stay empty. Raises GitError, OSError."""
        ours = self._shared(to / ".git", to, commit)
        # Builds ask for tags and history to tell a version.
        tags = self.ask("for-each-ref", "--format=%(objectname) %(refname)", "refs/tags")
        (ours.folder / "packed-refs").write_bytes(os.fsencode(f"{tags}\n" if tags else ""))
        ours.ask("reset", "--hard", "--quiet", "--no-recurse-submodules", patiently=True)
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
        return Repository(top, own, own)

    def _settings(self) -> dict[str, str]:
        """The harmless ones of its own configuration."""
        listed = self.ask("config", "--file", str(self.common / "config"), "--list", "-z")
        pairs = (entry.partition("\n") for entry in listed.split("\0"))
        return {
            name: value if separator else "true"
            for name, separator, value in pairs
            if _HARMLESS.fullmatch(name) and re.fullmatch(r"\w*", value, re.ASCII)
        }


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


def _run(folder: Path, *arguments: str, limit_s: float | None, **variables: str) -> str:
    """git's output. Raises GitError."""
    theirs = os.environ.items()
    own = {name: value for name, value in theirs if not name.startswith("GIT_") or name in _KEPT_VARIABLES}
    off = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "lfs.url=file:///dev/null")
    safe = ("--no-optional-locks", *(word for setting in off for word in ("-c", setting)))
    try:
        command = ["git", *safe, *arguments]
        answer = process.ask(command, folder=folder, environment={**own, **_OURS, **variables}, limit_s=limit_s)
    except TimeoutError:
        raise GitError(f"git did not answer within {limit_s:g} s in {folder}") from None
    except OSError as error:
        raise GitError(f"git cannot be started in {folder} ({error.strerror})") from None
    if answer.code:
        words = " ".join(answer.stderr.split())
        raise GitError(f"git failed in {folder}: {words[:400] or f'exit code {answer.code}'}")
    return answer.stdout.removesuffix("\n")

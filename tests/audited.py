"""Runs reading commands on hostile files under an audit hook, and prints what they did that no reading command does.

`python tests/audited.py FOLDER`: a process of its own, since a hook stays. The folder is one of `hostile.prepare`'s.
What is looked for (docs/security.md): imports and code from outside the package and what is installed, Python made of a
file's text, processes, sockets, and files opened for writing but the output, the cache and temporary ones.
"""

import contextlib
import functools
import json
import operator
import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import hostile

import tcbench

SOURCES = tuple(
    str(path.resolve())
    for path in dict.fromkeys(
        (Path(tcbench.__file__).parent, *(Path(p) for p in sysconfig.get_paths().values()), Path(__file__).parent)
    )
)
"""Folders from which code may run."""

PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn")
NETWORK = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "urllib.Request", "webbrowser.open")
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
CHANGES += ("shutil.rmtree",)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """Collects what a command did that it should not have done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writable = (str(folder / "out"), str(folder / "cache"), tempfile.gettempdir() + "/tcbench-", "/dev/null")
        self.writable += tuple(str(folder / name) for name in ("report.html", "roofline.png"))
        self.on = False
        self.seen: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        self.on = False  # what this does itself is not looked at
        try:
            wrong = self.wrong(event, arguments)
            if wrong:
                self.seen.append(f"{event}: {wrong}")
        finally:
            self.on = True

    def wrong(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        if event in PROCESSES or event in NETWORK or event in ("pickle.find_class", "code.__new__"):
            # How matplotlib lists the machine's fonts, once per user.
            listing = event == "subprocess.Popen" and list(arguments[1] or ())[:1] == ["fc-list"]
            return None if listing else f"{arguments!r:.200}"
        if event == "import":
            return arguments[0] if arguments[0].startswith("evil") or "hostile" in arguments[0] else None
        if event == "exec":
            name = str(arguments[0].co_filename)
            return None if not name.startswith(("/", ".")) or self.is_allowed(name) or "frozen" in name else name
        if event == "compile":
            source, name = arguments
            text = source if isinstance(source, bytes) else str(source or "").encode("utf-8", "replace")
            caller = sys._getframe(3).f_code.co_filename if source is not None else ""
            by_us = caller.startswith(str(Path(tcbench.__file__).parent))
            return f"{name} {text[:80]!r}" if by_us or hostile.CANARY.encode() in text else None
        if event == "open":
            path, mode, flags = arguments
            writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (mode is None and int(flags or 0) & WRITES)
            return self.outside(path) if writes and not isinstance(path, int) else None
        if event in CHANGES:
            return next(
                filter(None, map(self.outside, arguments[: 2 if event in ("os.rename", "os.link") else 1])), None
            )
        return None

    def is_allowed(self, name: str) -> bool:
        return str(Path(name).resolve()).startswith(SOURCES)

    def outside(self, path: Any) -> str | None:
        """The path, if nothing may be changed there."""
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        name = str((self.folder / os.fsdecode(path)).resolve())
        allowed = "__pycache__" in name or "matplotlib" in name  # of what is installed; matplotlib's list of fonts
        return None if allowed or name.startswith(self.writable) else name


def self_test(watch: Watch) -> dict[str, bool]:
    """Whether each kind of thing is seen at all."""

    def tried(action: Any) -> bool:
        before = len(watch.seen)
        watch.on = True
        with contextlib.suppress(Exception):
            action()
        watch.on = False
        was_seen = len(watch.seen) > before
        del watch.seen[before:]
        return was_seen

    folder = watch.folder
    script = folder / "evil" / "sub.py"
    sys.path.append(str(folder))
    seen = {
        "a process": tried(lambda: __import__("subprocess").run(["true"])),
        "a shell": tried(lambda: os.system("true")),
        "a socket": tried(lambda: __import__("socket").create_connection(("127.0.0.1", 9), 0.01)),
        "a file": tried(lambda: (folder / "written").write_text("x")),
        "a folder": tried(lambda: (folder / "made").mkdir()),
        "a file removed": tried(lambda: (folder / "written").unlink()),
        "a text run": tried(lambda: exec(compile("1 # " + hostile.CANARY, "x", "exec"))),
        "a file run": tried(lambda: exec(compile("1", str(script), "exec"))),
        "an import": tried(lambda: __import__("evil_that_is_not_there")),
        "a module of the folder": tried(lambda: __import__("numpy_hostile")),
        "the output, wrongly": tried(lambda: (folder / "out" / "fine").write_text("x")),
    }
    sys.path.remove(str(folder))
    for name in ("made", "ran"):
        if (folder / name).is_dir():
            (folder / name).rmdir()
    return seen


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    watch = Watch(folder)
    sys.addaudithook(watch)
    with contextlib.chdir(folder):  # what runs on purpose leaves its trace there
        seen = self_test(watch)
    done = []
    for file, commands in files(folder):
        for words in commands:
            watch.on = True
            ended = hostile.run(folder, words, file)
            watch.on = False
            done.append({"words": ended.words, "wrong": ended.wrong, "code": ended.code, "did": watch.seen[:]})
            watch.seen.clear()
    print(json.dumps({"self": seen, "done": done, "ran": (folder / "ran").exists()}))


def files(folder: Path) -> list[tuple[Path, tuple[tuple[str, ...], ...]]]:
    """Hostile files, each with the commands that read it."""
    with_texts = [
        hostile.changed(
            hostile.valid(),
            [
                *(
                    (place, text)
                    for place in hostile.PLACES
                    if isinstance(value_at(place), str) and place[-1] not in FIXED
                ),
                (("cell", "backend"), "evil.sub:f"),
            ],
        )
        for text in (hostile.CANARY, hostile.ACTIVE, "evil", "../../evil", "=1+1", "x" * 3_000)
    ]
    backends = [
        hostile.changed(hostile.valid(), [(("cell", "backend"), name), (("cell", "threads"), 400)])
        for name in ("evil.sub:f", "evil:f", "numpy_hostile:f", "evil", "torch", "os:system")
    ]
    return [
        (hostile.write(folder / "every.jsonl", with_texts), hostile.RECORDS),
        (hostile.write(folder / "backends.jsonl", backends), hostile.RECORDS),
        (hostile.trace(folder / "trace.json.gz", hostile.CANARY, step_s=0.5), hostile.TRACES),
    ]


FIXED = ("kind", "status", "peak_memory_of", "stopped_by")
"""Fields that hold one of a few words: nothing else is read."""


def value_at(place: tuple[str | int, ...]) -> Any:
    return functools.reduce(operator.getitem, place, hostile.valid())


if __name__ == "__main__":
    main()

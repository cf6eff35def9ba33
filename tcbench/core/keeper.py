"""Runs one command, and ends everything that it started: when it ends, when this process is told to end (SIGTERM,
SIGINT, SIGHUP), and when the process that asked for it dies, however that dies.

Run by its path as `python -I -S keeper.py ASKED_BY COMMAND...`, with the process id of the one that asks. Ends as the
command did: with its exit code, or by its signal. It is a process of its own because only an ancestor gets what lost
its parent (prctl(2), PR_SET_CHILD_SUBREAPER), in whatever session, and because no process can act on its own SIGKILL.
Imports the standard library alone, and little of it: it starts before every trial.
"""

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36

_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}

_MOST_FILES = 4096
"""Files that are closed where /proc does not say which are open."""

PARENT_PID = "TCBENCH_RUNNER_PID"
"""The environment variable in which a command, such as a worker, finds the process id of this, its parent."""


def main(asked_by: int, command: list[str]) -> int:
    """The exit code of the command; its signal, negative. Raises OSError where it cannot be started."""
    prctl = ctypes.CDLL(None).prctl
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_ENDING, signal.SIGCHLD})
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != asked_by:  # it died before the asking
        return -signal.SIGKILL
    # Signals that Python ignores would else be ignored by the command too.
    own = {PARENT_PID: str(os.getpid())}
    normal = [signal.SIGPIPE, signal.SIGXFSZ]
    child = os.posix_spawnp(command[0], command, {**os.environ, **own}, setsigmask=[], setsigdef=normal)
    _close_files()
    ended: dict[int, int] = {}
    while child not in ended and signal.sigwait({*_ENDING, signal.SIGCHLD}) == signal.SIGCHLD:
        with contextlib.suppress(ChildProcessError):
            while (child_ended := os.waitpid(-1, os.WNOHANG))[0]:
                ended.update([child_ended])
    while True:
        try:
            children = _children()
        except OSError:  # without /proc only the command itself is known
            if child in ended:
                break
            children = [child]
        for pid in children:
            with contextlib.suppress(PermissionError):  # another user's, by sudo: it is waited for
                os.kill(pid, signal.SIGKILL)
        # The children of a child that dies here become children of this process, so that none is missed.
        try:
            ended.update([os.wait()])
        except ChildProcessError:
            break
    code = os.waitstatus_to_exitcode(ended[child])
    if code < 0:
        prctl(_PR_SET_DUMPABLE, 0)  # the command has left its core dump
    return code


def _close_files() -> None:
    """Leave every file to the command: who reads its pipe learns that it ended."""
    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 (pathlib takes long to import)
    except OSError:
        os.closerange(0, _MOST_FILES)
        return
    for name in names:
        with contextlib.suppress(OSError):
            os.close(int(name))


def _children() -> list[int]:
    """The children of this process; ended ones too, until they are waited for."""
    children = []
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
            if int(stat.read().rpartition(b")")[2].split()[1]) == os.getpid():
                children.append(int(name))
    return children


def _end(code: int) -> None:
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    try:
        _end(main(int(sys.argv[1]), sys.argv[2:]))
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(127)

"""A program that runs one command and makes sure that no process of the command survives it.

It kills everything that the command started as soon as the command ends, this process gets SIGTERM, SIGINT or SIGHUP,
or the caller dies, even by SIGKILL. Usage: `python -I -S keeper.py CALLER_PID COMMAND...`. It ends as the command did:
with the same exit code, or by the same signal.

This has to be a separate process: only an ancestor inherits orphans (prctl(2), PR_SET_CHILD_SUBREAPER), and no process
can react to its own SIGKILL. It starts before every trial and therefore imports few modules, all of them standard."""

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36

_END_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}

_MAX_FILES = 4096
"""The number of file descriptors to close if /proc does not tell which are open."""

PARENT_PID = "TCBENCH_RUNNER_PID"
"""The environment variable that tells the command the process id of its parent, the keeper."""


def main(caller_pid: int, command: list[str]) -> int:
    """Run the command and return its exit code, or its signal as a negative number. Raises OSError if it cannot be
    started."""
    prctl = ctypes.CDLL(None).prctl
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_END_SIGNALS, signal.SIGCHLD})
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != caller_pid:  # the caller died before prctl could report it
        return -signal.SIGKILL
    environment = {**os.environ, PARENT_PID: str(os.getpid())}
    ignored_by_python = [signal.SIGPIPE, signal.SIGXFSZ]  # the command would inherit that
    child = os.posix_spawnp(command[0], command, environment, setsigmask=[], setsigdef=ignored_by_python)
    _close_files()
    ended: dict[int, int] = {}
    while child not in ended and signal.sigwait({*_END_SIGNALS, signal.SIGCHLD}) == signal.SIGCHLD:
        with contextlib.suppress(ChildProcessError):
            while (child_ended := os.waitpid(-1, os.WNOHANG))[0]:
                ended.update([child_ended])
    while True:
        try:
            children = _children()
        except OSError:  # without /proc only the command itself can be found
            if child in ended:
                break
            children = [child]
        for pid in children:
            with contextlib.suppress(PermissionError):  # another user's, started by sudo: wait until it ends
                os.kill(pid, signal.SIGKILL)
        # If a child dies, this process inherits its children, so that none is missed.
        try:
            ended.update([os.wait()])
        except ChildProcessError:
            break
    code = os.waitstatus_to_exitcode(ended[child])
    if code < 0:
        prctl(_PR_SET_DUMPABLE, 0)  # one core dump, the command's, is enough
    return code


def _close_files() -> None:
    """Close every file of this process, so that the readers of the command's pipes see when it ends."""
    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 (pathlib takes long to import)
    except OSError:
        os.closerange(0, _MAX_FILES)
        return
    for name in names:
        with contextlib.suppress(OSError):
            os.close(int(name))


def _children() -> list[int]:
    """Return the process ids of all children of this process, zombies included."""
    children = []
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
            if int(stat.read().rpartition(b")")[2].split()[1]) == os.getpid():
                children.append(int(name))
    return children


def _end(code: int) -> None:
    """End this process with an exit code, or by a signal if the code is negative."""
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

"""The entry point of the command `tcbench` and of `python -m tcbench`."""

import signal
import sys
from pathlib import Path


def main() -> None:
    """Import the command line and run it. During the import Ctrl-C ends the process at once, without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tcbench import commands

    commands.main()


def _leave_current_folder() -> None:
    """Remove the current folder, which `python -m` adds, from the import path, unless it contains tcbench."""
    package = Path(__file__).resolve().parent
    if not sys.flags.safe_path and Path(sys.path[0]).resolve() != package.parent:
        del sys.path[0]


if __name__ == "__main__":
    _leave_current_folder()
    main()

"""The command `tcbench`, and `python -m tcbench`."""

import signal
import sys
from pathlib import Path


def main() -> None:
    """Import the command line and run it. Until it is up there is nothing to end in order: Ctrl-C ends the process as
    it does any other, without a traceback of imports."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tcbench import commands

    commands.main()


def _leave_current_folder() -> None:
    """Take the current folder, which `python -m` puts first, off the search path, unless tcbench lies there."""
    package = Path(__file__).resolve().parent
    if not sys.flags.safe_path and Path(sys.path[0]).resolve() != package.parent:
        del sys.path[0]


if __name__ == "__main__":
    _leave_current_folder()
    main()

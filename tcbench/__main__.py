"""The command `tcbench`, and `python -m tcbench`."""

import signal


def main() -> None:
    """Import the command line and run it. Until it is up there is nothing to end in order: Ctrl-C ends the process as
    it does any other, without a traceback of imports."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tcbench import commands as cli

    cli.main()


if __name__ == "__main__":
    main()

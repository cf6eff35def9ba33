"""The command line: parse, call, print, exit code. Everything heavy is imported inside the command that needs it."""

import gc
import importlib
import itertools
import logging
import os
import signal
import sys
import traceback
from typing import NoReturn

import typer

from tcbench.core import variables
from tcbench.core.errors import NotComparableError, TcbenchError
from tcbench.show import streams
from tcbench.show.app import GROUPS, INTERNAL_ERROR, INTERRUPTED, app

__all__ = ["app", "main"]

for _module in itertools.chain.from_iterable(GROUPS.values()):
    importlib.import_module(f"{__name__}.{_module}.command")  # each registers its command


def main() -> NoReturn:
    """The entry point: every error the user can mend is one line on standard error and an exit code."""
    variables.prepare()
    debug = "--debug" in sys.argv[1:] or bool(os.environ.get("TCBENCH_DEBUG"))
    sys.argv[1:] = [word for word in sys.argv[1:] if word != "--debug"]
    # When it is imported it tells of a cache that it cannot write, in two lines: no chart depends on that.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    # Results are many small objects and hardly any garbage.
    gc.set_threshold(100_000, 50, 100)
    # A job scheduler's polite end and a terminal that goes away are treated like Ctrl-C: the running worker ends, what
    # is done is kept.
    ending = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    for number in ending:  # without those that nohup has ignored
        signal.signal(number, signal.default_int_handler)
    try:
        streams.guard()
        try:
            app()
        finally:
            sys.stdout.flush()
            for number in ending:  # nothing is left to be ended in order
                signal.signal(number, signal.SIG_DFL)
            # An interrupt in any exec() of a text, as dataclasses do it, makes CPython end by SIGINT, though it was
            # caught: Py_RunMain looks at a flag that only the next such call takes back.
            exec("")
    except SystemExit as ended:
        # Typer makes this of an interrupt that no command has caught, without a word.
        if isinstance(getattr(ended.__context__, "__cause__", None), KeyboardInterrupt):
            typer.echo("\ninterrupted", err=True)
        raise
    except TcbenchError as error:
        if debug:
            traceback.print_exc()
        from tcbench.core.text import plain

        # It may name what anyone wrote into a record; only a list of differences has several lines.
        lines = str(error).split("\n") if isinstance(error, NotComparableError) else [str(error)]
        text = "\n".join(map(plain, lines))
        typer.echo(f"tcbench: error: {text}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("\ninterrupted", err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, OSError) and error.filename is not None:  # such as a name that no file system takes
            typer.echo(f"tcbench: error: {error.filename}: {error.strerror}", err=True)
            sys.exit(TcbenchError.exit_code)
        message = " ".join(str(error).split())
        typer.echo(f"tcbench: internal error: {type(error).__name__}: {message} (--debug shows where)", err=True)
        sys.exit(INTERNAL_ERROR)
    sys.exit(0)

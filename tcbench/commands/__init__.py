"""The command line: parse, call the command, turn errors into one line and an exit code. Slow imports are inside the
commands that need them."""

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
    """Run the command line and exit.

    An error is one line on standard error and an exit code; --debug also prints the traceback."""
    variables.prepare()
    debug = "--debug" in sys.argv[1:] or bool(os.environ.get("TCBENCH_DEBUG"))
    sys.argv[1:] = [word for word in sys.argv[1:] if word != "--debug"]
    # Matplotlib warns if it cannot write its cache, which does not matter for charts.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    # Results are many small objects and hardly any garbage, so collect rarely.
    gc.set_threshold(100_000, 50, 100)
    # Treat SIGTERM (a job scheduler) and SIGHUP (a closed terminal) like Ctrl-C: end the worker, keep what is done.
    # Signals that nohup ignores stay ignored.
    ending = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    for number in ending:
        signal.signal(number, signal.default_int_handler)
    try:
        streams.guard()
        try:
            app()
        finally:
            sys.stdout.flush()
            for number in ending:  # nothing is left to clean up
                signal.signal(number, signal.SIG_DFL)
            # After an interrupt inside exec() of a string, as in dataclasses, CPython ends by SIGINT even if the
            # interrupt was caught, because Py_RunMain checks a flag. Another exec() resets it.
            exec("")
    except SystemExit as end:
        # Typer turns an interrupt that no command caught into a silent SystemExit.
        if isinstance(getattr(end.__context__, "__cause__", None), KeyboardInterrupt):
            typer.echo("\ninterrupted", err=True)
        raise
    except TcbenchError as error:
        if debug:
            traceback.print_exc()
        from tcbench.core.text import plain, runnable

        # Escape control characters, which may come from a record. Only lists of differences have several lines.
        lines = str(error).split("\n") if isinstance(error, NotComparableError) else [str(error)]
        text = runnable("\n".join(map(plain, lines)))
        typer.echo(f"tcbench: error: {text}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("\ninterrupted", err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:
        if debug:
            traceback.print_exc()
        if isinstance(error, OSError) and error.filename is not None:  # such as a file name that is too long
            typer.echo(f"tcbench: error: {error.filename}: {error.strerror}", err=True)
            sys.exit(TcbenchError.exit_code)
        message = " ".join(str(error).split())
        typer.echo(f"tcbench: internal error: {type(error).__name__}: {message} (--debug shows where)", err=True)
        sys.exit(INTERNAL_ERROR)
    sys.exit(0)

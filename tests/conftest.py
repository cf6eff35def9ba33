"""Runs before any test module: two workers with two BLAS threads each would wait for one another on two cores."""

import os
import signal

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hundreds of tests start Python anew: none of them should compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell that starts the suite in the background has it ignore interrupts, nohup has it ignore hangups, and so would
# every process that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

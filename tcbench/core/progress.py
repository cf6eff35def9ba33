"""The callback by which long work reports its progress."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Takes the stage's name, the number of parts that are done, and the number of all parts."""

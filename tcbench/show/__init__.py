import logging

# It tells of a cache that it cannot write, in two lines with a path of its own: no chart depends on it.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

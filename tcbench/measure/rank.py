"""The module `tcbench.rank` under its name in tcbench 0.1."""

from tcbench.engine.measure.rank import main

if __name__ == "__main__":
    main()

"""The module `tcbench.worker` under its name in tcbench 0.1."""

from tcbench.engine.measure.worker import main

if __name__ == "__main__":
    main()

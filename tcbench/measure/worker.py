"""`tcbench.worker`, by the name that tcbench 0.1 starts."""

from tcbench.engine.measure.worker import main

if __name__ == "__main__":
    main()

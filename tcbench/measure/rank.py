"""`tcbench.rank`, by the name that tcbench 0.1 starts."""

from tcbench.engine.measure.rank import main

if __name__ == "__main__":
    main()

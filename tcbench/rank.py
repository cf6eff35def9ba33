"""The process of one rank of a trial. Launchers and other revisions start it by this name, which therefore stays."""

from tcbench.engine.measure.rank import main

if __name__ == "__main__":
    main()

"""The process of one rank of a trial. Launchers and other revisions of tcbench start this module by its name."""

from tcbench.engine.measure.rank import main

if __name__ == "__main__":
    main()

"""The process of one trial. Other revisions of tcbench start this module by its name."""

from tcbench.engine.measure.worker import main

if __name__ == "__main__":
    main()

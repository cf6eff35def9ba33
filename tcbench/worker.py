"""The process of one trial. Other revisions of tcbench start it by this name, which therefore stays."""

from tcbench.engine.measure.worker import main

if __name__ == "__main__":
    main()

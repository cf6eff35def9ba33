"""The module `tcbench.engine.backends.torch.sites` under its name in tcbench 0.1."""

from tcbench.engine.backends.torch.sites import open_site

__all__ = ["open_site"]

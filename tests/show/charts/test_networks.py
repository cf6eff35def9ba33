"""The chart and the table of networks beside each other."""

from __future__ import annotations

"""Facts of the networks between ranks, within a node and between nodes, from networks.toml beside this module."""

import functools
import importlib.resources
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tcbench.core.errors import SelectionError, hint

_FILE = "networks.toml"
_NUMBER = r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*"


@dataclass(frozen=True)
class Link:
    """Bytes per second in one direction, and the time that a message takes beside its bytes."""

    bytes_s: float
    latency_s: float


@dataclass(frozen=True)
class RankNetwork:
    """`inside`: from one rank to another of its node, `between`: from one node to another, all adapters of a node
    together, at their nominal rate. `sources` are names in `sources()`."""

    name: str
    says: str
    ranks_per_node: int
    inside: Link
    between: Link
    sources: tuple[str, ...] = ()


def names() -> tuple[str, ...]:
    """The networks that come with tcbench."""
    return tuple(_shipped())


def sources() -> Mapping[str, Mapping[str, str]]:
    """`what`, `confirmed` and mostly `url` of each source, by name."""
    content: Mapping[str, Mapping[str, str]] = _content()["sources"]
    return content


def load(text: str) -> RankNetwork:
    """The network of that name (in any case), or of "GB/s,us": so many GB/s and microseconds from any rank to any
    other, each on a node of its own. Raises SelectionError."""
    known = _shipped().get(text.strip().lower())
    if known is not None:
        return known
    numbers = re.fullmatch(f"{_NUMBER},{_NUMBER}", text, re.ASCII)
    if numbers is None:
        close = hint(text, names(), " ").strip()
        raise SelectionError(
            f"--link {text!a}: expected bandwidth,latency in GB/s and microseconds, such as 12.5,10, or one of "
            f"{', '.join(names())}" + (f"; {close}" if close else "")
        )
    bandwidth, latency = (float(number) for number in numbers.groups())
    if bandwidth <= 0:
        raise SelectionError(f"--link {text}: expected a bandwidth above 0 GB/s, such as 12.5,10")
    link = Link(bandwidth * 1e9, latency * 1e-6)
    return RankNetwork(text, f"{bandwidth:g} GB/s and {latency:g} us between any two ranks", 1, link, link)


@functools.cache
def _content() -> Mapping[str, Any]:
    return tomllib.loads(importlib.resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8"))


@functools.cache
def _shipped() -> Mapping[str, RankNetwork]:
    return {row["name"]: _network(row) for row in _content()["network"]}


def _network(row: Mapping[str, Any]) -> RankNetwork:
    inside, between = (Link(row[f"{at}_gb_s"] * 1e9, row[f"{at}_us"] * 1e-6) for at in ("inside", "between"))
    return RankNetwork(row["name"], row["says"], row["ranks_per_node"], inside, between, tuple(row["sources"]))

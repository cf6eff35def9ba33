"""A network's tree of modules, built of stages with any framework's parts: blocks around shortcuts, branches beside
each other, auxiliary classifiers. Knows no framework; weights are drawn in the order of the stages."""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tcbench.engine.models.geometry import Auxiliary, Block, Branches, Conv, Named, Stage, build

Flow = Callable[[Any, Any], Any]
"""From a container and its input to its output."""


@dataclass(frozen=True)
class NetworkBuilder:
    """How a framework's network is built. `container` makes an empty module that runs a flow: `add` gives it modules by
    name, by which it is then indexed. `makers` make a module of each stage that has none within, from its fields."""

    backend: str
    container: Callable[[Flow], Any]
    concatenate: Callable[[list[Any]], Any]
    makers: Mapping[type[Stage], Callable[..., Any]]

    def fill(self, container: Any, stages: Iterable[Named]) -> Any:
        """The container, with a module for every stage."""
        for name, stage in stages:
            container.add(name, self.module(stage))
        return container

    def module(self, stage: Stage) -> Any:
        """The module of a stage. Raises SelectionError for a field that nobody here reads."""
        within: dict[type[Stage], Callable[..., Any]] = {
            Block: self._block,
            Branches: self._branches,
            Auxiliary: self._auxiliary,
        }
        return build(stage, within | dict(self.makers), f"the backend '{self.backend}'")

    def _block(self, convs: tuple[Conv, ...], shortcut: Conv | None) -> Any:
        names = "abc"[: len(convs)]

        def flow(container: Any, x: Any) -> Any:
            h = container["shortcut"](x) if shortcut else x
            for name in names[:-1]:
                x = container[name](x)
            return container[names[-1]](x, h)

        units = [*zip(names, convs, strict=True), *([("shortcut", shortcut)] if shortcut else [])]
        return self.fill(self.container(flow), units)

    def _branches(self, branches: tuple[tuple[Named, ...], ...]) -> Any:
        flows = [in_turn([name for name, _ in branch]) for branch in branches]

        def flow(container: Any, x: Any) -> Any:
            return self.concatenate([branch(container, x) for branch in flows])

        return self.fill(self.container(flow), (named for branch in branches for named in branch))

    def _auxiliary(self, stages: tuple[Named, ...], weight: float) -> Any:
        """Its weight is the network's matter: `auxiliary_weights`."""
        return self.fill(self.container(in_turn([name for name, _ in stages])), stages)


def in_turn(names: list[str]) -> Flow:
    """One module after the other."""
    return lambda container, x: functools.reduce(lambda h, name: container[name](h), names, x)


def auxiliary_weights(stages: Iterable[Named]) -> dict[str, float]:
    """The weights of the losses of auxiliary classifiers, in order."""
    return {name: stage.weight for name, stage in stages if isinstance(stage, Auxiliary)}


def all_logits(
    network: Any, names: Iterable[str], auxiliary: Mapping[str, float], x: Any, training: bool
) -> tuple[Any, ...]:
    """Logits, and in training those of auxiliary classifiers."""
    others = []
    for name in names:
        if name not in auxiliary:
            x = network[name](x)
        elif training:
            others.append(network[name](x))
    return (x, *others)

"""Building a network's tree of modules from stages, for any framework.

It handles residual blocks, parallel branches and auxiliary classifiers. Weights are drawn in the order of the stages.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tcbench.engine.models.geometry import Auxiliary, Block, Branches, Conv, Named, Stage, build

Flow = Callable[[Any, Any], Any]
"""The forward function of a container: (container, input) -> output."""


@dataclass(frozen=True)
class NetworkBuilder:
    """The parts that a framework's network is built from.

    `container` makes an empty module that runs a flow; its method `add` stores a module by name, and indexing returns
    it. `makers` has a function for each stage type without inner stages, which makes a module from the stage's fields.
    """

    backend: str
    container: Callable[[Flow], Any]
    concatenate: Callable[[list[Any]], Any]
    makers: Mapping[type[Stage], Callable[..., Any]]

    def fill(self, container: Any, stages: Iterable[Named]) -> Any:
        """Add a module for every stage to the container, and return it."""
        for name, stage in stages:
            container.add(name, self.module(stage))
        return container

    def module(self, stage: Stage) -> Any:
        """Return a stage's module. Raises SelectionError for a stage or a field that this backend does not support."""
        nested: dict[type[Stage], Callable[..., Any]] = {
            Block: self._block,
            Branches: self._branches,
            Auxiliary: self._auxiliary,
        }
        return build(stage, nested | dict(self.makers), f"the backend '{self.backend}'")

    def _block(self, convs: tuple[Conv, ...], shortcut: Conv | None) -> Any:
        """Return a residual block: convolutions in sequence, the last of which adds the shortcut."""
        names = "abc"[: len(convs)]

        def flow(container: Any, x: Any) -> Any:
            """Run the block's convolutions in order; the last one also gets the shortcut."""
            h = container["shortcut"](x) if shortcut else x
            for name in names[:-1]:
                x = container[name](x)
            return container[names[-1]](x, h)

        units = [*zip(names, convs, strict=True), *([("shortcut", shortcut)] if shortcut else [])]
        return self.fill(self.container(flow), units)

    def _branches(self, branches: tuple[tuple[Named, ...], ...]) -> Any:
        """Return parallel branches whose outputs are concatenated."""
        flows = [sequence([name for name, _ in branch]) for branch in branches]

        def flow(container: Any, x: Any) -> Any:
            return self.concatenate([branch(container, x) for branch in flows])

        return self.fill(self.container(flow), itertools.chain.from_iterable(branches))

    def _auxiliary(self, stages: tuple[Named, ...], weight: float) -> Any:
        """Return an auxiliary classifier. The network applies the weight of its loss (see `auxiliary_weights`)."""
        return self.fill(self.container(sequence([name for name, _ in stages])), stages)


def sequence(names: list[str]) -> Flow:
    """Return a flow that runs a container's modules of these names in this order."""
    return lambda container, x: functools.reduce(lambda h, name: container[name](h), names, x)


def auxiliary_weights(stages: Iterable[Named]) -> dict[str, float]:
    """Return the loss weights of the auxiliary classifiers by name, in order."""
    return {name: stage.weight for name, stage in stages if isinstance(stage, Auxiliary)}


def all_logits(
    network: Any, names: Iterable[str], auxiliary: Mapping[str, float], x: Any, training: bool
) -> tuple[Any, ...]:
    """Run the network's modules in the order of `names`, and return its logits (N, n_classes).

    In training they are followed by the logits of the auxiliary classifiers, whose names are the keys of `auxiliary`.
    Otherwise auxiliary classifiers are skipped."""
    auxiliary_logits = []
    for name in names:
        if name not in auxiliary:
            x = network[name](x)
        elif training:
            auxiliary_logits.append(network[name](x))
    return (x, *auxiliary_logits)

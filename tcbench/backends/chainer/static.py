"""Chainer's static_graph around a model's body, made right (see rungs/static_graph.py)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from tcbench.accelerators.protocol import current
from tcbench.backends.chainer.compat import chainer

_log = logging.getLogger(__name__)
_Body = Callable[[Any, Any], Any]


def static_body(body: _Body) -> _Body:
    """`body(model, x)` recorded at its first call for each input shape, replayed after."""
    module = chainer.graph_optimizations.static_graph
    # The module reports progress with print; a name of its own in its globals turns that into logging.
    vars(module)["print"] = lambda *words: _log.debug(" ".join(str(word) for word in words))

    def recorded(model: Any, x: Any) -> Any:
        """Runs in the recording pass only; the replay that follows it at once is the pass that counts."""
        before = [(array, _copy(array)) for array in _running_statistics(model)]
        # A variable of its own over the same array: the input needs no gradient.
        y = body(model, chainer.as_variable(x.array))
        for array, values in before:
            current().copy(values, array)
        return y

    replayed: _Body = module.static_graph(recorded)
    return replayed


def _copy(array: Any) -> Any:
    accelerator = current()
    made = accelerator.empty(array.shape, array.dtype)
    accelerator.copy(array, made)
    return made


def _running_statistics(model: Any) -> Iterator[Any]:
    for link in model.links():
        running = getattr(link, "running", None)
        if running is not None:
            yield running.mean
            yield running.var

"""A stage's field that a reader of networks does not know is refused by name, before a number is computed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import factories
import numpy as np
import pytest
from training import on_numpy

from tcbench.core.errors import SelectionError
from tcbench.core.record import Input
from tcbench.engine.accelerators.device import kind_of
from tcbench.engine.backends import backend, trace_cell
from tcbench.engine.backends.chainer.network import ChainerNetwork
from tcbench.engine.backends.chainer.parts import Parts
from tcbench.engine.feeds.spec import TensorSpec
from tcbench.engine.models import MODELS
from tcbench.engine.models.geometry import Block, Branches, Conv, GlobalAverage, Linear, Named, Network
from tcbench.hardware import gpus


@dataclass(frozen=True)
class Grouped(Conv):
    """A convolution with a field that nobody reads yet."""

    groups: int = 1


@dataclass(frozen=True)
class OneMore(GlobalAverage):
    """A field without a default."""

    power: float


GROUPED = Grouped(8, 8, 3, groups=4)
PLACES: dict[str, tuple[Named, ...]] = {
    "plain": (("conv", GROUPED),),
    "in a block": (("block", Block((Conv(8, 8, 1), GROUPED), None)),),
    "a shortcut": (("block", Block((Conv(8, 8, 1), Conv(8, 8, 1)), GROUPED)),),
    "in a branch": (("inc", Branches(((("a", Conv(8, 8, 1)),), (("b", GROUPED),)))),),
}


@dataclass(frozen=True)
class Model(Network):
    body: tuple[Named, ...] = ()

    def stages(self, variant: str, n_classes: int) -> Iterator[Named]:
        yield "stem", Conv(3, 8, 3)
        yield from self.body
        yield "average pool", GlobalAverage()
        yield "head", Linear(8, n_classes)


def chainer(stages: tuple[Named, ...]) -> Any:
    with on_numpy().scope():
        return ChainerNetwork(Parts(TensorSpec()), stages, np.random.RandomState(0))


def torch(stages: tuple[Named, ...]) -> Any:
    pytest.importorskip("torch")
    from tcbench.engine.backends.torch.network import TorchNetwork

    return TorchNetwork(stages, np.random.RandomState(0))


def layers(stages: tuple[Named, ...]) -> Any:
    return list(Model("grouped", body=stages).layers("v1", 32, 10))


READERS = {"the backend 'chainer'": chainer, "the backend 'torch'": torch, "the list of layers": layers}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("reader", READERS)
def test_a_field_that_is_not_read_is_refused_by_name(reader: str, place: str) -> None:
    with pytest.raises(SelectionError, match=rf"^{reader} does not use 'groups' of Grouped\(.*groups=4\): add"):
        READERS[reader](PLACES[place])


@pytest.mark.parametrize("reader", READERS)
def test_one_at_its_default_is_not_and_one_without_a_default_always_is(reader: str) -> None:
    assert READERS[reader]((("conv", Grouped(8, 8, 3)),))
    with pytest.raises(SelectionError, match=rf"{reader} does not use 'power' of OneMore"):
        READERS[reader]((("average", OneMore(1.0)),))


@pytest.mark.parametrize("reader", READERS)
def test_a_kind_of_stage_that_a_reader_does_not_build_is_refused_by_name(reader: str) -> None:
    @dataclass(frozen=True)
    class Attention:
        heads: int

    with pytest.raises(SelectionError, match=rf"{reader} does not support Attention"):
        READERS[reader]((("attention", Attention(8)),))  # type: ignore[arg-type]


def on_a_trace(cell: Any) -> None:
    trace_cell(cell, gpus.load("V100").properties)


def on_a_virtual_gpu(cell: Any) -> None:
    assert kind_of(cell.device).simulates
    backend("chainer").open_session(cell)


@pytest.mark.parametrize("path", [on_a_trace, on_a_virtual_gpu])
def test_nothing_is_traced_or_modelled_of_a_network_that_is_not_read(
    path: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "grouped", Model("grouped", body=PLACES["plain"]))
    monkeypatch.setattr(Network, "macs", lambda *_: 1)  # who lists layers has learned to read it
    cell = factories.make_cell(
        "fp32", 2, model="grouped", image_size=32, n_classes=10, device="virtual:V100", input=Input(kind="synthetic")
    )
    with pytest.raises(SelectionError, match="the backend 'chainer' does not use 'groups'"):
        path(cell)

"""Trains the small ResNet-50 of `training` through PyTorch's session: same weights, same batches. Needs PyTorch."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from training import SMOOTH, Batches, Trained, run_step, small_cell, small_session

from tcbench.engine.backends.chainer.session import ChainerSession
from tcbench.engine.backends.torch import session as sessions
from tcbench.engine.backends.torch.batches import TensorFeed
from tcbench.engine.backends.torch.rungs import RUNGS
from tcbench.engine.backends.torch.session import TorchSession
from tcbench.engine.backends.torch.sites import Site
from tcbench.engine.models.resnet import ResNet
from tcbench.engine.rung import Rung

__all__ = ["chainer_gradients", "small_session", "small_torch_session", "torch_gradients", "train_torch"]


class Float64(Rung):
    """The reference: everything in double precision."""

    name = "fp64"
    says = "double precision"
    source = "tests"

    def parts(self, parts: Any, settings: Any) -> Any:
        return replace(parts, pixels=replace(parts.pixels, dtype="float64"), body=lambda model: model.double())


@contextlib.contextmanager
def small_torch_session(
    config: str, seed: int = 0, geometry: ResNet = SMOOTH, image_size: int = 32, **cell_changes: Any
) -> Iterator[TorchSession]:
    """A session on the small model and the random batches that `training.small_session` has."""
    with pytest.MonkeyPatch.context() as patch:
        cell = small_cell(config, backend="torch", image_size=image_size, seed=seed, **cell_changes)
        patch.setattr(sessions, "synthetic", _tensor_feed)
        patch.setitem(RUNGS.rungs, "fp64", Float64())  # type: ignore[arg-type]
        session = TorchSession(cell, Site(), geometry=geometry)
    try:
        yield session
    finally:
        session.close()


def _tensor_feed(spec: Any, site: Any) -> TensorFeed:
    return TensorFeed(Batches(spec.tensor, spec.image_size, spec.seed), spec, site)


def train_torch(config: str, steps: int = 5, seed: int = 0, **cell_changes: Any) -> Trained:
    """Train from the seed's weights on the seed's batches. Running statistics under PyTorch's names."""
    with small_torch_session(config, seed, **cell_changes) as session:
        before = _parameters(session)
        losses = np.array([run_step(session) for _ in range(steps)])
        running = {
            name: buffer.numpy().astype(np.float64)
            for name, buffer in session.model.named_buffers()
            if name.endswith(("running_mean", "running_var"))
        }
        return Trained(losses, before, _parameters(session), running)


def _parameters(session: TorchSession) -> dict[str, np.ndarray]:
    parameters = session.model.named_parameters()
    return {name: parameter.detach().numpy().astype(np.float64) for name, parameter in parameters}


def go_backward(session: TorchSession | ChainerSession) -> None:
    for phase in (session.step.io, session.step.forward, session.step.backward):
        phase()


def torch_gradients(session: TorchSession) -> dict[str, np.ndarray]:
    """Gradients of one step, by PyTorch's names."""
    go_backward(session)
    return {name: p.grad.numpy().astype(np.float64) for name, p in session.model.named_parameters()}


def chainer_gradients(session: ChainerSession) -> dict[str, np.ndarray]:
    """Gradients of one step, by the names that PyTorch gives the same parameters."""
    go_backward(session)
    return {torch_name(name): p.grad.astype(np.float64) for name, p in session.step.model.namedparams()}


def torch_name(name: str) -> str:
    """`/block1/a/gamma` is PyTorch's `block1.a.bn.weight`."""
    *path, last = name.strip("/").split("/")
    last = {"w": "conv.weight", "b": "conv.bias", "gamma": "bn.weight", "beta": "bn.bias"}[last]
    of_matrix = path[-1] == "head" or path[-1].startswith("fc")
    return ".".join([*path, last.replace("conv", "fc") if of_matrix else last])

"""The CPU accelerator that uses oneDNN: convolutions, batch normalisation, pooling and elementwise operations.

Each operation is prepared once. Operations and dtypes that oneDNN lacks fall back to `NumpyAccelerator`."""

import functools
import hashlib
from collections.abc import Callable

from tcbench.core.record import PlanChoice
from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.arrays import HostArrays
from tcbench.engine.accelerators.cpu.onednn import batch_norm, bias, convolution, pointwise, update, widened
from tcbench.engine.accelerators.cpu.onednn.library import Engine, Unimplemented
from tcbench.engine.accelerators.cpu.onednn.tuning import NUMPY, Choice
from tcbench.engine.accelerators.cpu.reference.accelerator import NumpyAccelerator
from tcbench.engine.accelerators.protocol import Array, BatchNormRoute


class OneDnnAccelerator(HostArrays):
    """The host's processor, with oneDNN for most operations and NumPy for the others."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self._fallback = NumpyAccelerator(threads)
        self.engine = _engine(threads)
        self.engine.met_nan = False
        # Keyed by id(), since equal operations are the same object. The reference keeps the id from being reused.
        self._choices: dict[int, tuple[Choice | None, w.Work]] = {}

    def batch_norm(self, norm: w.Norm, eps: float, momentum: float) -> BatchNormRoute:
        if norm.dtype == "float64":
            return self._fallback.batch_norm(norm, eps, momentum)
        return batch_norm.route(norm, eps, momentum)

    def prepare(self, work: w.Work, *arrays: Array) -> Callable[[], None]:
        """Return a launch by oneDNN's implementation, chosen at the operation's first use; else one by NumPy."""
        chosen = self._choices.get(id(work))
        if chosen is None:
            chosen = self._choices[id(work)] = self._choose(work), work
        choice = chosen[0]
        return self._fallback.prepare(work, *arrays) if choice is None else choice.bind(*arrays)

    def plans(self) -> tuple[PlanChoice, ...]:
        """Return the implementations of each kind of operation that was launched: oneDNN's name, or "numpy".

        Operations are grouped by name and dtype. One entry per operation would make records ten times as large."""
        plans: dict[tuple[str, str], list[tuple[Choice | None, str]]] = {}
        for choice, work in self._choices.values():
            kind = f"{work.name} {_dtype(work)}", choice.name if choice else NUMPY
            plans.setdefault(kind, []).append((choice, f"{work.key} {choice.place if choice else 0}"))
        return tuple(
            PlanChoice(
                kind,
                name,
                0,
                from_cache=all(choice is not None and choice.from_cache for choice, _ in chosen),
                provisional=any(choice is not None and choice.provisional for choice, _ in chosen),
                choices=hashlib.sha256("\n".join(sorted({key for _, key in chosen})).encode()).hexdigest()[:8],
            )
            for (kind, name), chosen in plans.items()
        )

    def _choose(self, work: w.Work) -> Choice | None:
        """Return oneDNN's implementation of an operation, cached for the process; None if NumPy must do it. Operations
        in 16 bits work on float32 copies (`widened`) if neither they nor oneDNN convert fast."""
        choose, prepared = _CHOOSERS.get(type(work)), self.engine.prepared
        if choose is not None and work.key not in prepared:
            try:
                if type(work) in _CONVERTING or self.engine.converts(_dtype(work)):
                    prepared[work.key] = choose(self.engine, work)
                else:
                    prepared[work.key] = widened.choose(self.engine, work, choose)
            except Unimplemented:
                prepared[work.key] = None
        return prepared.get(work.key)


def _dtype(work: w.Work) -> str:
    """Return the dtype of the first operand with floating-point values; a batched update starts with tables."""
    return next(operand.dtype for operand in work.operands if "float" in operand.dtype)


_engine = functools.cache(Engine)
"""One engine per process and number of threads, so that primitives are prepared once for all accelerators."""
_CONVERTING = (
    *(w.BatchNormForward, w.BatchNormBackward),
    *(w.ToSingle, w.ToHalf, w.Unscale, w.BatchedUpdate, w.PackGradients),
)
"""Operations that convert 16-bit operands themselves."""
_CHOOSERS: dict[type[w.Work], Callable[..., Choice]] = {
    **dict.fromkeys((w.ConvFprop, w.ConvDgrad, w.ConvWgrad), convolution.choose),
    **dict.fromkeys((w.BatchNormForward, w.BatchNormBackward), batch_norm.choose),
    w.Relu: pointwise.relu,
    w.ReluBackward: pointwise.relu_backward,
    **dict.fromkeys((w.Add, w.AddRelu), pointwise.add),
    **dict.fromkeys((w.MaxPoolForward, w.MaxPoolBackward), pointwise.max_pool),
    **dict.fromkeys((w.GlobalAverageForward, w.GlobalAverageBackward), pointwise.global_average),
    **dict.fromkeys((w.AddBias, w.AddBiasRelu), bias.add),
    w.BiasGradient: bias.gradient,
    **dict.fromkeys((w.ToSingle, w.ToHalf), pointwise.convert),
    w.Unscale: update.unscale,
    w.BatchedUpdate: update.batched,
    w.PackGradients: update.pack,
}
"""Functions from an engine and an operation to oneDNN's implementation of it, by type of operation. They raise
Unimplemented if there is none."""

"""The processor as an accelerator through oneDNN: convolutions, batch normalisation, pooling and what goes over every
value, prepared once per work. All else, and dtypes that oneDNN lacks, by the accelerator that it falls back on."""

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
    """See `tcbench.engine.accelerators.protocol.Accelerator`."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self._fallback = NumpyAccelerator(threads)
        self.engine = _engine(threads)
        self.engine.met_nan = False
        # Keyed by id(), since the same shapes give the same work; holding the work keeps its id from being reused.
        self._chosen: dict[int, tuple[Choice | None, w.Work]] = {}

    def batch_norm(self, norm: w.Norm, eps: float, momentum: float) -> BatchNormRoute:
        if norm.dtype == "float64":
            return self._fallback.batch_norm(norm, eps, momentum)
        return batch_norm.route(norm, eps, momentum)

    def prepare(self, work: w.Work, *arrays: Array) -> Callable[[], None]:
        chosen = self._chosen.get(id(work))
        if chosen is None:
            chosen = self._chosen[id(work)] = self._choose(work), work
        choice = chosen[0]
        return self._fallback.prepare(work, *arrays) if choice is None else choice.bind(*arrays)

    def plans(self) -> tuple[PlanChoice, ...]:
        """The implementations of each kind of work that was launched, by its first dtype of values: oneDNN's name, or
        "numpy". Not work by work: that would make a record ten times as large."""
        plans: dict[tuple[str, str], list[Choice | None]] = {}
        taken: dict[tuple[str, str], set[str]] = {}
        for by, work in self._chosen.values():
            kind = f"{work.name} {_dtype(work)}", by.name if by else NUMPY
            plans.setdefault(kind, []).append(by)
            taken.setdefault(kind, set()).add(f"{work.key} {by.place if by else 0}")
        return tuple(
            PlanChoice(
                kind,
                name,
                0,
                from_cache=all(by is not None and by.from_cache for by in chosen),
                provisional=any(by is not None and by.provisional for by in chosen),
                choices=hashlib.sha256("\n".join(sorted(taken[kind, name])).encode()).hexdigest()[:8],
            )
            for (kind, name), chosen in plans.items()
        )

    def _choose(self, work: w.Work) -> Choice | None:
        choose, prepared = _CHOOSE.get(type(work)), self.engine.prepared
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
    """Of the values: a batched update first reads a table of addresses."""
    return next(operand.dtype for operand in work.operands if "float" in operand.dtype)


_engine = functools.cache(Engine)
"""By threads; one for the process: what was prepared once is prepared for all."""
_CONVERTING = (
    *(w.BatchNormForward, w.BatchNormBackward),
    *(w.ToSingle, w.ToHalf, w.Unscale, w.BatchedUpdate, w.PackGradients),
)
"""Work that converts by itself."""
_CHOOSE: dict[type[w.Work], Callable[..., Choice]] = {
    **dict.fromkeys((w.ConvFprop, w.ConvDgrad, w.ConvWgrad), convolution.choose),
    w.BatchNormForward: batch_norm.forward,
    w.BatchNormBackward: batch_norm.backward,
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

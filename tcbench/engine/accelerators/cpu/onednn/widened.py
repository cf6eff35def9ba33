"""Work of 16 bits where oneDNN converts them one value at a time: done in float32, between our own conversions.

oneDNN 3.2 has vectors of float16 from AVX512-FP16 on, and of bfloat16 from AVX-512 on. Without them a reorder of a
million values takes 38 ms (AMD EPYC, one core). Where a compiler is, update.c converts; else NumPy, which takes 2.4 ms
for a million values of float16 to float32, and 4.7 ms back (Xeon, one core)."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from tcbench.engine.accelerators.cpu.onednn import update
from tcbench.engine.accelerators.cpu.onednn.library import Array, Engine, Unimplemented, address
from tcbench.engine.accelerators.cpu.onednn.tuning import NUMPY, Choice
from tcbench.engine.accelerators.cpu.threads import scratch
from tcbench.engine.work import ITEM_BYTES, Work


def in_float32(work: Work) -> Work:
    """The same work on float32 in place of its 16 bits."""

    def single(part: Any) -> Any:
        """A work, or what describes it, as Conv2d does."""
        changes: dict[str, Any] = {}
        for field in fields(part):
            value = getattr(part, field.name)
            if field.name == "dtype" and ITEM_BYTES[value] == 2:
                changes["dtype"] = "float32"
            elif is_dataclass(value):
                changes[field.name] = single(value)
        return replace(part, **changes)

    widened: Work = single(work)
    return widened


def choose(engine: Engine, work: Work, choose_single: Callable[..., Choice]) -> Choice:
    """The choice of `choose_single` for the work in float32, on converted copies of its arrays of 16 bits. Raises
    Unimplemented as that does, and where that is NumPy, which converts what it is at work on, block by block."""
    wide = in_float32(work)
    choice = choose_single(engine, wide)
    if choice.name == NUMPY:
        raise Unimplemented(work.key)
    converted = [
        (i, given.role, given.shape)
        for i, (given, meant) in enumerate(zip(work.operands, wide.operands, strict=True))
        if given.dtype != meant.dtype
    ]

    def bind(*arrays: Array) -> Callable[[], None]:
        shaped = {i: arrays[i].reshape(shape) for i, _, shape in converted}
        bound: dict[tuple[int, ...], Callable[[], None]] = {}

        def run() -> None:
            # Asked for each time: the memory is shared by all work, and moves when it grows.
            copies = {i: scratch(f"onednn.widened {i}", shape, "float32") for i, _, shape in converted}
            for i, role, _ in converted:
                if role != "out":
                    update.cast(engine, shaped[i], copies[i])
            at = tuple(map(address, copies.values()))
            if at not in bound:
                bound.clear()
                bound[at] = choice.bind(*(copies.get(i, array) for i, array in enumerate(arrays)))
            bound[at]()
            for i, role, _ in converted:
                if role != "in":
                    update.cast(engine, copies[i], shaped[i])

        return run

    return replace(choice, bind=bind, name=f"converted, {choice.name}")

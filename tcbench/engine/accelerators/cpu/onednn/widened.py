"""16-bit operations on CPUs where oneDNN converts 16-bit values one at a time: computed on converted float32 copies.

oneDNN 3.2 has vectorised conversions for float16 from AVX512-FP16 on, and for bfloat16 from AVX-512 on. Without them a
reorder of a million values takes 38 ms (AMD EPYC, one core). Here update.c converts if the machine has a compiler;
otherwise NumPy does, in 2.4 ms for a million float16 values to float32 and 4.7 ms back (Xeon, one core)."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from tcbench.engine.accelerators.cpu.onednn import update
from tcbench.engine.accelerators.cpu.onednn.library import Array, Engine, Unimplemented, address
from tcbench.engine.accelerators.cpu.onednn.tuning import NUMPY, Choice
from tcbench.engine.accelerators.cpu.threads import scratch
from tcbench.engine.work import ITEM_BYTES, Work


def in_float32(work: Work) -> Work:
    """Return the same operation with float32 in place of 16-bit dtypes."""

    def single(description: Any) -> Any:
        """Return a copy, with float32, of an operation or of a description inside it such as a `Conv2d`."""
        changes: dict[str, Any] = {}
        for field in fields(description):
            attribute = getattr(description, field.name)
            if field.name == "dtype" and ITEM_BYTES[attribute] == 2:
                changes["dtype"] = "float32"
            elif is_dataclass(attribute):
                changes[field.name] = single(attribute)
        return replace(description, **changes)

    widened: Work = single(work)
    return widened


def choose(engine: Engine, work: Work, choose_single: Callable[..., Choice]) -> Choice:
    """Return the choice of `choose_single` for the operation in float32, on converted copies of its 16-bit arrays.

    Raises Unimplemented if `choose_single` does, or if it chooses NumPy, which converts block by block on its own."""
    wide = in_float32(work)
    choice = choose_single(engine, wide)
    if choice.name == NUMPY:
        raise Unimplemented(work.key)
    converted = [
        (i, narrow.role, narrow.shape)
        for i, (narrow, single) in enumerate(zip(work.operands, wide.operands, strict=True))
        if narrow.dtype != single.dtype
    ]

    def bind(*arrays: Array) -> Callable[[], None]:
        """Bind arrays, and return a launch."""
        shaped = {i: arrays[i].reshape(shape) for i, _, shape in converted}
        bound: dict[tuple[int, ...], Callable[[], None]] = {}

        def run() -> None:
            """Convert inputs to float32, run the operation, and convert its outputs back."""
            # Scratch memory is shared by all operations and moves when it grows.
            copies = {i: scratch(f"onednn.widened {i}", shape, "float32") for i, _, shape in converted}
            for i, role, _ in converted:
                if role != "out":
                    update.cast(engine, shaped[i], copies[i])
            addresses = tuple(map(address, copies.values()))
            if addresses not in bound:
                bound.clear()
                bound[addresses] = choice.bind(*(copies.get(i, array) for i, array in enumerate(arrays)))
            bound[addresses]()
            for i, role, _ in converted:
                if role != "in":
                    update.cast(engine, copies[i], shaped[i])

        return run

    return replace(choice, bind=bind, name=f"converted, {choice.name}")

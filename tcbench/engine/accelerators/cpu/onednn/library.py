"""oneDNN's C API through ctypes: the library, descriptors of arrays, and primitives that run on bare addresses.

Any oneDNN 3.x that runs its threads by OpenMP serves: the one of the package `onednn-cpu-gomp`, else one that the
loader finds. Source: oneAPI Deep Neural Network Library, developer guide and C API reference, v3.2.

Owns every foreign call to oneDNN and OpenMP."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint, c_void_p
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tcbench.core import variables
from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.onednn.team import Addresses, PrimitiveCall, team
from tcbench.engine.work import DType
from tcbench.hardware import load

PACKAGE = "onednn-cpu-gomp"
MAJOR = 3
Array = npt.NDArray[Any]

SPIN_COUNT = "2000"
"""Times that a thread of libgomp asks for work before it sleeps: about 0.1 ms. Its own default spins for 20 ms, on the
processor that other work needs next."""
_ALIGNMENT = 64
_LEAST_PART_BYTES = 1 << 16

# dnnl_types.h and dnnl_common_types.h
_UNIMPLEMENTED = 3
_OPENMP = 2
_DATA_TYPES: dict[DType | str, int] = {"float16": 1, "bfloat16": 2, "float32": 3, "uint8": 6}
_TAG_ANY = 1
_IMPLEMENTATION_NAME = 8
_SCRATCHPAD = 136
_USER_SCRATCHPAD = 1

SRC, SRC_1, DST, WEIGHTS = 1, 2, 17, 33
MEAN, VARIANCE, SCALE, SHIFT, WORKSPACE, SCRATCHPAD = 49, 50, 51, 52, 64, 80
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS, DIFF_SCALE, DIFF_SHIFT = 129, 145, 161, 255, 256
ATTRIBUTE_SCALE = 4096
"""With an argument's index: of the number that it is scaled by."""
_DESCRIPTORS = {
    SRC: (129, 0),
    SRC_1: (129, 1),
    DIFF_SRC: (130, 0),
    WEIGHTS: (131, 0),
    DIFF_WEIGHTS: (132, 0),
    DST: (133, 0),
    DIFF_DST: (134, 0),
    WORKSPACE: (135, 0),
}
"""The query of a primitive's own descriptor of an argument, and which of those that it may mean."""

FORWARD_TRAINING, BACKWARD = 64, 128
CONVOLUTION_DIRECT = 1
RELU, RELU_FROM_OUTPUT = 0x20, 0x100
POOLING_MAX, POOLING_AVERAGE = 0x1FF, 0x3FF
BINARY_ADD = 0x1FFF0
USE_SCALE, USE_SHIFT, FUSE_RELU = 2, 4, 8

REFERENCE = ("ref", "simple")
"""Implementations that take one value at a time."""


class Unimplemented(Exception):
    """oneDNN does not do this on this processor."""


class _Version(ctypes.Structure):
    _fields_ = (
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    )


class _Argument(ctypes.Structure):
    _fields_ = (("index", c_int), ("memory", c_void_p))


Dims = c_int64 * 12
_IN, _OUT = c_void_p, POINTER(c_void_p)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "engine_create": (_OUT, c_int, c_size_t),
    "stream_create": (_OUT, _IN, c_uint),
    "memory_desc_create_with_strides": (_OUT, c_int, Dims, c_int, Dims),
    "memory_desc_create_with_tag": (_OUT, c_int, Dims, c_int, c_int),
    "memory_desc_create_submemory": (_OUT, _IN, Dims, Dims),
    "memory_desc_equal": (_IN, _IN),
    "memory_create": (_OUT, _IN, _IN, _IN),
    "memory_set_data_handle": (_IN, _IN),
    "primitive_attr_create": (_OUT,),
    "primitive_attr_set_scratchpad_mode": (_IN, c_int),
    "primitive_attr_set_post_ops": (_IN, _IN),
    "primitive_attr_set_scales_mask": (_IN, c_int, c_int),
    "post_ops_create": (_OUT,),
    "post_ops_append_eltwise": (_IN, c_int, c_float, c_float),
    "post_ops_append_sum": (_IN, c_float, c_int32, c_int),
    "primitive_desc_query": (_IN, c_int, c_int, c_void_p),
    "primitive_desc_next_impl": (_IN,),
    "primitive_create": (_OUT, _IN),
    "primitive_execute": (_IN, _IN, c_int, POINTER(_Argument)),
    "convolution_forward_primitive_desc_create": (_OUT, _IN, c_int, c_int, *[_IN] * 4, *[Dims] * 4, _IN),
    "convolution_backward_data_primitive_desc_create": (_OUT, _IN, c_int, *[_IN] * 3, *[Dims] * 4, _IN, _IN),
    "convolution_backward_weights_primitive_desc_create": (_OUT, _IN, c_int, *[_IN] * 4, *[Dims] * 4, _IN, _IN),
    "batch_normalization_forward_primitive_desc_create": (_OUT, _IN, c_int, _IN, _IN, c_float, c_uint, _IN),
    "batch_normalization_backward_primitive_desc_create": (_OUT, _IN, c_int, *[_IN] * 3, c_float, c_uint, _IN, _IN),
    "pooling_forward_primitive_desc_create": (_OUT, _IN, c_int, c_int, _IN, _IN, *[Dims] * 5, _IN),
    "pooling_backward_primitive_desc_create": (_OUT, _IN, c_int, _IN, _IN, *[Dims] * 5, _IN, _IN),
    "eltwise_forward_primitive_desc_create": (_OUT, _IN, c_int, c_int, _IN, _IN, c_float, c_float, _IN),
    "eltwise_backward_primitive_desc_create": (_OUT, _IN, c_int, *[_IN] * 3, c_float, c_float, _IN, _IN),
    "binary_primitive_desc_create": (_OUT, _IN, c_int, *[_IN] * 3, _IN),
    "matmul_primitive_desc_create": (_OUT, _IN, *[_IN] * 4, _IN),
    "reorder_primitive_desc_create": (_OUT, _IN, _IN, _IN, _IN, _IN),
}
"""Arguments of the functions whose result is a status."""


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """The library, or one line that says what is wrong with it and which command repairs that."""
    try:
        files = importlib.metadata.files(PACKAGE) or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    own = [str(file.locate()) for file in files if file.name == f"libdnnl.so.{MAJOR}"]
    try:
        # For this library alone: other processes that start from here spin as the user says.
        with variables.changed(GOMP_SPINCOUNT=os.environ.get("GOMP_SPINCOUNT", SPIN_COUNT)):
            library = ctypes.CDLL((own or [f"libdnnl.so.{MAJOR}"])[0])
    except OSError as error:
        if "libgomp" in str(error):
            return None, "oneDNN needs libgomp.so.1: apt-get install libgomp1"
        return None, f"oneDNN (libdnnl.so.{MAJOR}) is not installed: uv pip install {PACKAGE}"
    library.dnnl_version.restype = POINTER(_Version)
    version = library.dnnl_version().contents
    if version.major != MAJOR:
        return None, f"oneDNN is {_text(version)}, expected {MAJOR}.x: uv pip install --reinstall {PACKAGE}"
    if version.cpu_runtime != _OPENMP:
        return None, f"oneDNN {_text(version)} does not use OpenMP, expected one that does: uv pip install {PACKAGE}"
    for name, arguments in _SIGNATURES.items():
        getattr(library, f"dnnl_{name}").argtypes = arguments
    library.dnnl_primitive_desc_query_md.restype = c_void_p
    library.dnnl_primitive_desc_query_md.argtypes = (_IN, c_int, c_int)
    library.dnnl_memory_desc_get_size.restype = c_size_t
    library.dnnl_memory_desc_get_size.argtypes = (_IN,)
    return library, None


def _text(version: Any) -> str:
    return f"{version.major}.{version.minor}.{version.patch}"


def problem() -> str | None:
    """Why oneDNN cannot be used in this process, with the command that repairs it; None: it can."""
    return _load()[1]


def version() -> str | None:
    """oneDNN's version, as in "3.2.0"; None where it cannot be used."""
    library, _ = _load()
    return None if library is None else _text(library.dnnl_version().contents)


_INSTRUCTIONS = {"avx512_bf16": 0x80, "avx512_fp16": 0x100, "amx_bf16": 0xE00, "amx_int8": 0xE00, "amx_fp16": 0x1000}
"""The bits of `dnnl_cpu_isa_t` that stand for low precision, by Linux's names of the instructions."""


def instructions() -> int:
    """Return the instruction sets that oneDNN uses here, as a `dnnl_cpu_isa_t`; 0 where it cannot be used.
    ONEDNN_MAX_CPU_ISA limits them."""
    library, _ = _load()
    return 0 if library is None else int(library.dnnl_get_effective_cpu_isa())


def withheld() -> frozenset[str]:
    """Return the instructions for low precision that oneDNN does not use here, as ONEDNN_MAX_CPU_ISA says."""
    used = instructions()
    return frozenset(name for name, bits in _INSTRUCTIONS.items() if used and used & bits != bits)


def dims(sizes: Sequence[int]) -> Any:
    """oneDNN's array of sizes."""
    return Dims(*sizes)


_DATA = object.__basicsize__
"""Bytes from the start of an array object to the address of its data, the first field of PyArrayObject_fields after the
object's head (NumPy C-API, "Python types and C-structures")."""


def address(array: Array) -> int:
    """The address of an array's first value, read from the array object: NumPy's own ways, `ctypes.data` and
    `__array_interface__`, take six times as long, 2.5 us, and a step asks for a thousand."""
    return c_void_p.from_address(id(array) + _DATA).value or 0


@dataclass(frozen=True)
class Descriptor:
    """oneDNN's description of an array in memory. `sizes`: its logical ones, where we have made it."""

    handle: int
    bytes: int
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Binding:
    """An argument of a primitive. `index`: which argument it is. `stored`: how its array is stored, or the slice of it
    that a primitive takes. `written`: the primitive writes it. `step`: bytes from one slice to the next; 0: all take
    the whole array."""

    index: int
    stored: Descriptor
    written: bool = False
    step: int = 0


class Engine:
    """The processor as oneDNN has it, on so many threads. Raises RuntimeError where `problem` says something. `began`:
    the counts of the processors' time when it was made. `met_nan`: whether a batch normalisation or a bias has met what
    is not a number. oneDNN's ReLU and pooling make 0 of NaN, so that a training that has diverged would go on with a
    loss that looks well; from then on NumPy does such work."""

    def __init__(self, n_threads: int) -> None:
        library, trouble = _load()
        if library is None:
            raise RuntimeError(trouble)
        self._library = library
        # These take less time than giving the interpreter lock to another thread and waiting to get it back.
        quick = ctypes.PyDLL(library._name)
        self.set_handle, self.set_threads = quick.dnnl_memory_set_data_handle, quick.omp_set_num_threads
        self.set_handle.argtypes = _SIGNATURES["memory_set_data_handle"]
        self.n_threads = n_threads
        self.began = load.own_counts()
        self.met_nan = False
        self.set_threads(1)
        self._engine = self._create("engine_create", 1, 0)
        self.plain, self.adding = self.attributes(), self.attributes(added=1.0)
        self.team = team(self.set_threads, self.set_handle, n_threads)
        self.execute = ctypes.cast(library.dnnl_primitive_execute, c_void_p)
        self._descriptors: dict[Any, Descriptor] = {}
        self.shared: dict[str, Array] = {}
        self.changes = 0  # of where shared memory lies
        self._growing = threading.Lock()
        self.prepared: dict[str, Any] = {}
        self._converts = {"float32": True}

    def slices(self, extent: int) -> int:
        """Into how many equal slices an extent is cut: one for each thread, where it divides so."""
        return max(n for n in range(1, self.n_threads + 1) if max(extent, 1) % n == 0)

    @contextlib.contextmanager
    def threads(self, n: int) -> Iterator[None]:
        """Within it primitives are made for so many threads."""
        self.set_threads(n)
        try:
            yield
        finally:
            self.set_threads(1)

    # -- what primitives are made of --------------------------------------------------------------------------------

    def descriptor(self, dtype: str, sizes: Sequence[int], strides: Sequence[int] | None = None) -> Descriptor:
        """An array's logical sizes and strides, in values; without strides oneDNN chooses the layout. Raises
        Unimplemented for a dtype that oneDNN has not."""
        key = dtype, tuple(sizes), None if strides is None else tuple(strides)
        if key not in self._descriptors:
            if dtype not in _DATA_TYPES:
                raise Unimplemented(dtype)
            head = len(sizes), dims(sizes), _DATA_TYPES[dtype]
            if strides is None:
                handle = self._create("memory_desc_create_with_tag", *head, _TAG_ANY)
            else:
                handle = self._create("memory_desc_create_with_strides", *head, dims(strides))
            self._descriptors[key] = replace(self._described(handle), sizes=tuple(sizes))
        return self._descriptors[key]

    def attributes(self, *, relu_after: bool = False, added: float = 0.0, scaled: Sequence[int] = ()) -> int:
        """Attributes of a primitive: its scratchpad is ours; `scaled` arguments are multiplied by a number each, which
        is an argument of its own (ATTRIBUTE_SCALE); so many times what the output holds is `added`; ReLU follows."""
        made = self._create("primitive_attr_create")
        self._call("primitive_attr_set_scratchpad_mode", made, _USER_SCRATCHPAD)
        then = self._create("post_ops_create")
        for argument in scaled:
            self._call("primitive_attr_set_scales_mask", made, argument, 0)
        if added:
            self._call("post_ops_append_sum", then, added, 0, 0)
        if relu_after:
            self._call("post_ops_append_eltwise", then, RELU, 0.0, 0.0)
        self._call("primitive_attr_set_post_ops", made, then)
        return made

    def describe(self, kind: str, *arguments: Any) -> int:
        """The description of a primitive: its arguments without the engine. Raises Unimplemented."""
        return self._create(f"{kind}_primitive_desc_create", self._engine, *arguments)

    def descriptor_of(self, primitive: int, index: int) -> Descriptor:
        """The descriptor of an argument as a described primitive wants it to be stored."""
        return self._described(self._library.dnnl_primitive_desc_query_md(primitive, *_DESCRIPTORS[index]))

    def implementation(self, primitive: int) -> str:
        """oneDNN's name of what does it, as in "brgconv:avx512_core"."""
        name = c_char_p()
        self._call("primitive_desc_query", primitive, _IMPLEMENTATION_NAME, 0, byref(name))
        return (name.value or b"").decode()

    def other_implementation(self, primitive: int) -> bool:
        """Turn a description into that of oneDNN's next implementation; False where there is none, and it is spoilt."""
        return bool(self._library.dnnl_primitive_desc_next_impl(primitive) == 0)

    # -- primitives -------------------------------------------------------------------------------------------------

    def primitive(self, described: int, operands: Sequence[Binding], slices: int = 1) -> Primitive:
        """A primitive of a description, on arrays in the order of `operands`, slice by slice, which run side by side:
        the description and its operands are those of one slice. An operand that is stored otherwise than the primitive
        wants it goes through a reorder before or after. One that is not sliced is common to all: read, it is reordered
        once; written, the slices' results are added up. Both are done in parts, on all threads."""
        before: list[list[PreparedPrimitive]] = []
        chunks: list[list[PreparedPrimitive]] = [[] for _ in range(slices)]
        after: list[list[PreparedPrimitive]] = []
        tails: list[list[PreparedPrimitive]] = [[] for _ in range(slices)]
        places: list[list[Place]] = [[] for _ in range(slices)]
        every = [
            self.descriptor_of(described, operand.index) if operand.index in _DESCRIPTORS else operand.stored
            for operand in operands
        ]
        for position, (operand, wanted) in enumerate(zip(operands, every, strict=True)):
            stored = operand.stored
            as_stored = bool(self._library.dnnl_memory_desc_equal(wanted.handle, stored.handle))
            partial = operand.written and not operand.step
            for i in range(slices):
                given = Place(position, i * operand.step)
                if as_stored and not (partial and i):
                    places[i].append(given)
                    continue
                if not operand.written and not operand.step:
                    room = Place(f"common {position}", n_bytes=wanted.bytes)
                    if i == 0:
                        parts = self._parts(stored, wanted, slices)
                        before += [
                            [self._reorder(from_, given, to, room, part)] for part, (from_, to) in enumerate(parts)
                        ]
                else:
                    room = Place(f"operand {position} of slice {i}", n_bytes=wanted.bytes)
                    if not operand.written:
                        chunks[i].append(self._reorder(stored, given, wanted, room, i))
                    elif operand.step:
                        tails[i].append(self._reorder(wanted, room, stored, given, i))
                places[i].append(room)
            if partial and (slices > 1 or not as_stored):
                first, *others = (places[i][position] for i in range(slices))
                for part, (to, from_) in enumerate(self._parts(stored, wanted, slices)):
                    after.append([self._reorder(from_, other, from_, first, part, added=True) for other in others])
                    if not as_stored:
                        after[-1].append(self._reorder(from_, first, to, Place(position), part))
        indices = [operand.index for operand in operands]
        for i, chunk in enumerate(chunks):
            arguments = list(zip(indices, every, places[i], strict=True))
            chunk += [self._prepare(described, arguments, i), *tails[i]]
        return Primitive(self, self.implementation(described), before, chunks, after)

    def _parts(self, one: Descriptor, other: Descriptor, parts: int) -> list[tuple[Descriptor, Descriptor]]:
        """Two descriptors of one array in parts of its first axis: whole where it is small, or where a part would not
        begin at the start of a block of the other's layout."""
        whole = [(one, other)]
        if parts == 1 or one.bytes < _LEAST_PART_BYTES * parts or one.sizes[0] % parts:
            return whole
        length = one.sizes[0] // parts
        try:
            return [
                (self._region(one, one.sizes, i * length, length), self._region(other, one.sizes, i * length, length))
                for i in range(parts)
            ]
        except Unimplemented:  # A layout in blocks that a part would cut, as those of 48.
            return whole

    def _region(self, whole: Descriptor, sizes: Sequence[int], start: int, length: int) -> Descriptor:
        part, offsets = (length, *sizes[1:]), (start, *(0 for _ in sizes[1:]))
        return self._described(self._create("memory_desc_create_submemory", whole.handle, dims(part), dims(offsets)))

    def conversion(self, source: Descriptor, target: Descriptor) -> Primitive:
        """A copy in another dtype or layout."""
        return self.reorder(Binding(SRC, source), Binding(DST, target, True))

    def converts(self, dtype: str) -> bool:
        """Whether it has vectors of a dtype on this processor: conversions to float32 and back that take more than one
        value at a time."""
        if dtype not in self._converts:
            either = self.descriptor(dtype, (64,), (1,)), self.descriptor("float32", (64,), (1,))
            ways = self.conversion(*either), self.conversion(*reversed(either))
            self._converts[dtype] = not any(way.name.startswith(REFERENCE) for way in ways)
        return self._converts[dtype]

    def reorder(self, source: Binding, target: Binding, slices: int = 1) -> Primitive:
        """As `conversion`, slice by slice."""
        made = self._described_reorder(source.stored, target.stored, self.plain)
        return self.primitive(made, [source, target], slices)

    def _described_reorder(self, source: Descriptor, target: Descriptor, attributes: int) -> int:
        return self._create(
            "reorder_primitive_desc_create", source.handle, self._engine, target.handle, self._engine, attributes
        )

    def room(self, name: str, n_bytes: int) -> Array:
        """Memory that all primitives share, one after another; it grows as it is used."""
        with self._growing:
            kept = self.shared.get(name)
            if kept is None or kept.nbytes < n_bytes:
                room = np.empty(n_bytes + _ALIGNMENT, np.uint8)
                start = -address(room) % _ALIGNMENT
                kept = self.shared[name] = room[start : start + n_bytes]
                self.changes += 1
            return kept

    @contextlib.contextmanager
    def rooms_given_back(self) -> Iterator[None]:
        """After it shared memory is what it was: no larger for primitives that were tried and not taken."""
        before = dict(self.shared)
        try:
            yield
        finally:
            self.shared.clear()
            self.shared.update(before)
            self.changes += 1

    def _reorder(
        self, source: Descriptor, from_: Place, target: Descriptor, to: Place, chunk: int, *, added: bool = False
    ) -> PreparedPrimitive:
        """`chunk`: its number among those that run side by side."""
        made = self._described_reorder(source, target, self.adding if added else self.plain)
        return self._prepare(made, [(SRC, source, from_), (DST, target, to)], chunk)

    def _prepare(
        self, described: int, arguments: Sequence[tuple[int, Descriptor, Place]], chunk: int
    ) -> PreparedPrimitive:
        scratchpad = self._described(self._library.dnnl_primitive_desc_query_md(described, _SCRATCHPAD, 0))
        room = Place(f"scratchpad of chunk {chunk}", n_bytes=max(scratchpad.bytes, _ALIGNMENT))
        every = [*arguments, (SCRATCHPAD, scratchpad, room)]
        memories = [self._create("memory_create", d.handle, self._engine, None) for _, d, _ in every]
        table = (_Argument * len(every))(
            *(_Argument(index, memory) for (index, _, _), memory in zip(every, memories, strict=True))
        )
        primitive = self._create("primitive_create", described)
        stream = self._create("stream_create", self._engine, 1)
        return PreparedPrimitive(self, primitive, stream, table, tuple(memories), tuple(place for *_, place in every))

    def run(self, primitive: int, stream: int, n: int, arguments: Any) -> None:
        """Execute on the calling thread. Raises RuntimeError with oneDNN's status."""
        status = self._library.dnnl_primitive_execute(primitive, stream, n, arguments)
        if status:
            raise RuntimeError(f"oneDNN: dnnl_primitive_execute: status {status}")

    def _described(self, handle: int) -> Descriptor:
        return Descriptor(handle, int(self._library.dnnl_memory_desc_get_size(handle)))

    def _create(self, function: str, *arguments: Any) -> int:
        made = c_void_p()
        self._call(function, byref(made), *arguments)
        return made.value or 0

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, f"dnnl_{function}")(*arguments)
        if status == _UNIMPLEMENTED:
            raise Unimplemented(function)
        if status:
            raise RuntimeError(f"oneDNN: dnnl_{function}: status {status}")


@dataclass(frozen=True)
class Place:
    """The place of an argument: in one of the caller's arrays by number, `offset` bytes from its start; or in shared
    memory by name, of which it takes `n_bytes`."""

    of: int | str
    offset: int = 0
    n_bytes: int = 0


class PreparedPrimitive:
    """A primitive of oneDNN with its memory objects."""

    def __init__(
        self,
        engine: Engine,
        primitive: int,
        stream: int,
        arguments: Any,
        memories: tuple[int, ...],
        places: tuple[Place, ...],
    ) -> None:
        every = list(zip(memories, places, strict=True))
        self.call = PrimitiveCall(engine.execute, primitive, stream, ctypes.addressof(arguments), len(memories))
        self._arguments = arguments  # which the call points to
        self._shared, self._room = engine.shared, engine.room
        self._run = functools.partial(engine.run, primitive, stream, len(memories), arguments)
        self.given = [(memory, place.of, place.offset) for memory, place in every if isinstance(place.of, int)]
        self._kept = [(memory, place.of, place.n_bytes) for memory, place in every if isinstance(place.of, str)]
        self._lying: dict[str, Array] = {}
        self._set_to: Addresses | None = None
        self._set = engine.set_handle

    def make_room(self) -> None:
        """Tell oneDNN where its shared memory lies."""
        for memory, name, n_bytes in self._kept:
            room = self._shared.get(name)
            if room is None or self._lying.get(name) is not room:  # it has to grow, or has grown
                room = self._lying[name] = self._room(name, n_bytes)
                self._set(memory, address(room))

    def __call__(self, addresses: Addresses) -> None:
        """Run on arrays at these addresses. The same list again costs nothing to set."""
        if addresses is not self._set_to:
            for memory, position, offset in self.given:
                self._set(memory, addresses[position] + offset)
            self._set_to = addresses
        self.make_room()
        self._run()


class Primitive:
    """A primitive over all its slices, with the reorders before and after: stages one after another, of chunks that run
    side by side. `name`: oneDNN's of the implementation."""

    def __init__(self, engine: Engine, name: str, *stages: Sequence[Sequence[PreparedPrimitive]]) -> None:
        self.name = name
        self._engine = engine
        self._stages = [stage for stage in stages if stage]
        self._every = [prepared for stage in self._stages for chunk in stage for prepared in chunk]
        self._launch: Callable[[], int] | None = None
        self._place: Callable[[Addresses], int] = lambda _: 0
        self._set_to: Addresses | None = None
        self._changes = -1

    def bind(self, *arrays: Array) -> Callable[[], None]:
        """The launch on these arrays, whose memory the caller keeps."""
        return functools.partial(self.at, (c_size_t * len(arrays))(*map(address, arrays)))

    def __call__(self, *arrays: Array) -> None:
        self.bind(*arrays)()

    def at(self, addresses: Addresses) -> None:
        """The launch on arrays at these addresses. Raises RuntimeError with oneDNN's status."""
        engine = self._engine
        if engine.team is None:
            self._by_threads_of_python(addresses)
            return
        if self._launch is None:
            self._launch = engine.team.bind([[[p.call for p in chunk] for chunk in stage] for stage in self._stages])
            self._place = engine.team.places([given for prepared in self._every for given in prepared.given])
        while self._changes != engine.changes:
            self._changes = engine.changes
            for prepared in self._every:
                prepared.make_room()  # may change where the memory of those before it lies
        status = 0 if addresses is self._set_to else self._place(addresses)
        self._set_to = None if status else addresses
        if status := status or self._launch():
            raise RuntimeError(f"oneDNN: status {status}")

    def _by_threads_of_python(self, addresses: Addresses) -> None:
        for stage in self._stages:
            if len(stage) == 1:
                for prepared in stage[0]:
                    prepared(addresses)
            else:
                threads.run(functools.partial(self._run_slice, addresses), stage)

    def _run_slice(self, addresses: Addresses, chunk: Sequence[PreparedPrimitive]) -> None:
        self._engine.set_threads(1)  # OpenMP keeps the number by thread
        for prepared in chunk:
            prepared(addresses)


def contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    """Strides of a C-contiguous array."""
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))

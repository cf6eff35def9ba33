"""oneDNN's C API through ctypes: the library, array descriptors, and primitives that run on memory addresses.

Any oneDNN 3.x with the OpenMP runtime works: the one from the package `onednn-cpu-gomp` or, without it, the one that
the loader finds. All foreign calls to oneDNN and OpenMP are in this module.

Source: oneAPI Deep Neural Network Library, developer guide and C API reference, v3.2."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import math
import os
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint, c_void_p
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tcbench.core import variables
from tcbench.engine.accelerators.cpu.onednn.team import Addresses, PrimitiveCall, new_team
from tcbench.engine.work import DType
from tcbench.hardware import load

PACKAGE = "onednn-cpu-gomp"
MAJOR = 3
Array = npt.NDArray[Any]

SPIN_COUNT = "2000"
"""How often a libgomp thread polls for work before it sleeps: about 0.1 ms. The default spins for 20 ms, on cores that
other work needs next."""
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
"""The oneDNN query that returns the descriptor of an argument, and the index to pass with it."""

FORWARD_TRAINING, BACKWARD = 64, 128
CONVOLUTION_DIRECT = 1
RELU, RELU_FROM_OUTPUT = 0x20, 0x100
POOLING_MAX, POOLING_AVERAGE = 0x1FF, 0x3FF
BINARY_ADD = 0x1FFF0
USE_SCALE, USE_SHIFT, FUSE_RELU = 2, 4, 8

REFERENCE = ("ref", "simple")
"""Prefixes of implementations that process one value at a time."""


class Unimplemented(Exception):
    """oneDNN does not implement this operation on this processor."""


class _Version(ctypes.Structure):
    """oneDNN's `dnnl_version_t`."""

    _fields_ = (
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    )


class _Argument(ctypes.Structure):
    """oneDNN's `dnnl_exec_arg_t`."""

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
"""Argument types of the functions that return a status."""


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """Return the library, or None and a one-line message: what is wrong, and the command that fixes it."""
    try:
        files = importlib.metadata.files(PACKAGE) or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    packaged = [str(file.locate()) for file in files if file.name == f"libdnnl.so.{MAJOR}"]
    try:
        # Set for this library only: child processes keep the user's setting.
        with variables.changed(GOMP_SPINCOUNT=os.environ.get("GOMP_SPINCOUNT", SPIN_COUNT)):
            library = ctypes.CDLL((packaged or [f"libdnnl.so.{MAJOR}"])[0])
    except OSError as error:
        if "libgomp" in str(error):
            return None, "oneDNN needs libgomp.so.1: apt-get install libgomp1"
        return None, f"oneDNN (libdnnl.so.{MAJOR}) is not installed: uv pip install {PACKAGE}"
    library.dnnl_version.restype = POINTER(_Version)
    version = library.dnnl_version().contents
    if version.major != MAJOR:
        return None, f"oneDNN is {_text(version)}, expected {MAJOR}.x: uv pip install --reinstall {PACKAGE}"
    if version.cpu_runtime != _OPENMP:
        return None, f"oneDNN {_text(version)} is built without OpenMP, which tcbench needs: uv pip install {PACKAGE}"
    for name, arguments in _SIGNATURES.items():
        getattr(library, f"dnnl_{name}").argtypes = arguments
    library.dnnl_primitive_desc_query_md.restype = c_void_p
    library.dnnl_primitive_desc_query_md.argtypes = (_IN, c_int, c_int)
    library.dnnl_memory_desc_get_size.restype = c_size_t
    library.dnnl_memory_desc_get_size.argtypes = (_IN,)
    return library, None


def _text(version: Any) -> str:
    """Return a `_Version` as text such as "3.2.0"."""
    return f"{version.major}.{version.minor}.{version.patch}"


def problem() -> str | None:
    """Return why oneDNN cannot be used in this process and the command that fixes it, or None if it can be used."""
    return _load()[1]


def version() -> str | None:
    """Return oneDNN's version such as "3.2.0", or None if it cannot be used."""
    library, _ = _load()
    return None if library is None else _text(library.dnnl_version().contents)


_INSTRUCTIONS = {"avx512_bf16": 0x80, "avx512_fp16": 0x100, "amx_bf16": 0xE00, "amx_int8": 0xE00, "amx_fp16": 0x1000}
"""The bits of `dnnl_cpu_isa_t` for low-precision instructions, by the CPU flag that Linux shows."""


def instructions() -> int:
    """Return the instruction sets that oneDNN uses, as a `dnnl_cpu_isa_t`, or 0 if oneDNN cannot be used.
    ONEDNN_MAX_CPU_ISA limits them."""
    library, _ = _load()
    return 0 if library is None else int(library.dnnl_get_effective_cpu_isa())


def withheld() -> frozenset[str]:
    """Return the CPU flags of low-precision instructions that ONEDNN_MAX_CPU_ISA keeps oneDNN from using."""
    used = instructions()
    return frozenset(name for name, bits in _INSTRUCTIONS.items() if used and used & bits != bits)


def dims(sizes: Sequence[int]) -> Any:
    """Return sizes as oneDNN's fixed-length array `dnnl_dims_t`."""
    return Dims(*sizes)


_DATA = object.__basicsize__
"""Offset of the data pointer in an array object: the first field of PyArrayObject_fields after the object header (NumPy
C-API, "Python types and C-structures")."""


def address(array: Array) -> int:
    """Return the address of an array's first value.

    It is read from the array object, since NumPy's `ctypes.data` and `__array_interface__` take six times as long
    (2.5 us), and a step asks for a thousand addresses."""
    return c_void_p.from_address(id(array) + _DATA).value or 0


@dataclass(frozen=True)
class Descriptor:
    """A oneDNN memory descriptor: an array's dtype, sizes and layout."""

    handle: int
    bytes: int
    sizes: tuple[int, ...] = ()
    """Logical sizes; empty for descriptors that oneDNN created."""


@dataclass(frozen=True)
class Binding:
    """An argument of a primitive, and how its array is stored."""

    index: int
    """oneDNN's number of the argument, such as SRC."""
    stored: Descriptor
    """The array as the caller stores it, or the slice of it that one primitive gets."""
    written: bool = False
    """Whether the primitive writes the argument."""
    step: int = 0
    """Bytes from one slice to the next; 0 if every slice gets the whole array."""


class Engine:
    """A oneDNN engine for the host's processor, with a number of threads and scratch memory for its primitives.

    Raises RuntimeError if `problem` returns a message.

    Attributes:
        began: CPU times when the engine was created.
        met_nan: whether a batch normalisation or a bias addition has met NaN. oneDNN's ReLU and pooling turn NaN into
            0, which would hide that training has diverged, so NumPy does such operations from then on.
        shared: scratch memory by name.
        changes: how often scratch memory has moved.
        prepared: the choice of each operation, by its key."""

    def __init__(self, n_threads: int) -> None:
        library, message = _load()
        if library is None:
            raise RuntimeError(message)
        self._library = library
        # PyDLL keeps the interpreter lock: these calls take less time than releasing and reacquiring it.
        holding_lock = ctypes.PyDLL(library._name)
        self.set_handle = holding_lock.dnnl_memory_set_data_handle
        self.set_threads = holding_lock.omp_set_num_threads
        self.set_handle.argtypes = _SIGNATURES["memory_set_data_handle"]
        self.n_threads = n_threads
        self.began = load.own_counts()
        self.met_nan = False
        self.set_threads(1)
        self._engine = self._create("engine_create", 1, 0)
        self.plain, self.adding = self.attributes(), self.attributes(added=True)
        self.team = new_team(self.set_threads, self.set_handle, n_threads)
        self.execute = ctypes.cast(library.dnnl_primitive_execute, c_void_p)
        self._descriptors: dict[Any, Descriptor] = {}
        self.shared: dict[str, Array] = {}
        self.changes = 0
        self.prepared: dict[str, Any] = {}
        self._converts = {"float32": True}

    def has_nan(self, array: Array) -> bool:
        """Return whether an array has NaN, and remember it in `met_nan`."""
        has_nan = bool(np.isnan(array.sum()))
        self.met_nan |= has_nan
        return has_nan

    def slices(self, extent: int) -> int:
        """Return the largest number of equal slices into which `extent` can be cut, at most the number of threads."""
        return max(n for n in range(1, self.n_threads + 1) if max(extent, 1) % n == 0)

    @contextlib.contextmanager
    def threads(self, n: int) -> Iterator[None]:
        """Create primitives for n OpenMP threads within a `with` block."""
        self.set_threads(n)
        try:
            yield
        finally:
            self.set_threads(1)

    # -- descriptions of arrays and primitives ----------------------------------------------------------------------

    def descriptor(self, dtype: str, sizes: Sequence[int], strides: Sequence[int] | None = None) -> Descriptor:
        """Return the descriptor of an array with these logical sizes and strides (in values).

        Without strides oneDNN chooses the layout. Raises Unimplemented if oneDNN does not support the dtype."""
        key = dtype, tuple(sizes), None if strides is None else tuple(strides)
        if key not in self._descriptors:
            if dtype not in _DATA_TYPES:
                raise Unimplemented(dtype)
            arguments = len(sizes), dims(sizes), _DATA_TYPES[dtype]
            if strides is None:
                handle = self._create("memory_desc_create_with_tag", *arguments, _TAG_ANY)
            else:
                handle = self._create("memory_desc_create_with_strides", *arguments, dims(strides))
            self._descriptors[key] = replace(self._described(handle), sizes=tuple(sizes))
        return self._descriptors[key]

    def attributes(self, *, relu_after: bool = False, added: bool = False) -> int:
        """Return the attributes of a primitive, whose scratchpad is always the engine's scratch memory.

        Args:
            relu_after: apply ReLU to the result.
            added: add the result to the previous output."""
        attributes = self._create("primitive_attr_create")
        self._call("primitive_attr_set_scratchpad_mode", attributes, _USER_SCRATCHPAD)
        post_ops = self._create("post_ops_create")
        if added:
            self._call("post_ops_append_sum", post_ops, 1.0, 0, 0)
        if relu_after:
            self._call("post_ops_append_eltwise", post_ops, RELU, 0.0, 0.0)
        self._call("primitive_attr_set_post_ops", attributes, post_ops)
        return attributes

    def describe(self, kind: str, *arguments: Any) -> int:
        """Return the handle of a primitive description; `arguments` are oneDNN's. Raises Unimplemented."""
        return self._create(f"{kind}_primitive_desc_create", self._engine, *arguments)

    def descriptor_of(self, primitive: int, index: int) -> Descriptor:
        """Return the descriptor that a described primitive requires of an argument."""
        return self._described(self._library.dnnl_primitive_desc_query_md(primitive, *_DESCRIPTORS[index]))

    def implementation(self, primitive: int) -> str:
        """Return oneDNN's name of the implementation of a described primitive, such as "brgconv:avx512_core"."""
        name = c_char_p()
        self._call("primitive_desc_query", primitive, _IMPLEMENTATION_NAME, 0, byref(name))
        return (name.value or b"").decode()

    def advance_implementation(self, primitive: int) -> bool:
        """Advance a description to oneDNN's next implementation. If there is none, invalidate it and return False."""
        return bool(self._library.dnnl_primitive_desc_next_impl(primitive) == 0)

    # -- primitives -------------------------------------------------------------------------------------------------

    def primitive(self, described: int, operands: Sequence[Binding], slices: int = 1) -> Primitive:
        """Create a primitive that runs once per slice, all slices in parallel.

        `described` and `operands` describe one slice; arrays are passed in the order of `operands`. An operand that is
        not stored as the primitive requires is reordered before or after. An operand without a step is common to all
        slices: if it is read, it is reordered once; if it is written, the results of the slices are added up. All
        threads take part in these steps."""
        before: list[list[PreparedPrimitive]] = []
        chunks: list[list[PreparedPrimitive]] = [[] for _ in range(slices)]
        after: list[list[PreparedPrimitive]] = []
        tails: list[list[PreparedPrimitive]] = [[] for _ in range(slices)]
        places: list[list[Place]] = [[] for _ in range(slices)]
        required = [
            self.descriptor_of(described, operand.index) if operand.index in _DESCRIPTORS else operand.stored
            for operand in operands
        ]
        for position, (operand, descriptor) in enumerate(zip(operands, required, strict=True)):
            stored = operand.stored
            as_stored = bool(self._library.dnnl_memory_desc_equal(descriptor.handle, stored.handle))
            partial = operand.written and not operand.step
            for i in range(slices):
                place: Place = ArrayPlace(position, i * operand.step)
                if as_stored and not (partial and i):  # use the caller's array directly
                    places[i].append(place)
                    continue
                if not operand.written and not operand.step:  # reorder an array common to all slices once
                    copy = ScratchPlace(f"common {position}", descriptor.bytes)
                    if i == 0:
                        parts = self._parts(stored, descriptor, slices)
                        before += [
                            [self._reorder(source, place, target, copy, part)]
                            for part, (source, target) in enumerate(parts)
                        ]
                else:
                    copy = ScratchPlace(f"operand {position} of slice {i}", descriptor.bytes)
                    if not operand.written:  # reorder each slice of an input
                        chunks[i].append(self._reorder(stored, place, descriptor, copy, i))
                    elif operand.step:  # reorder each slice of an output
                        tails[i].append(self._reorder(descriptor, copy, stored, place, i))
                places[i].append(copy)
            if partial and (slices > 1 or not as_stored):  # add up the slices' results
                total, *addends = (places[i][position] for i in range(slices))
                for part, (target, source) in enumerate(self._parts(stored, descriptor, slices)):
                    after.append([self._reorder(source, place, source, total, part, added=True) for place in addends])
                    if not as_stored:
                        after[-1].append(self._reorder(source, total, target, ArrayPlace(position), part))
        indices = [operand.index for operand in operands]
        for i, chunk in enumerate(chunks):
            arguments = list(zip(indices, required, places[i], strict=True))
            chunk += [self._prepare(described, arguments, i), *tails[i]]
        return Primitive(self, self.implementation(described), before, chunks, after)

    def _parts(self, stored: Descriptor, required: Descriptor, parts: int) -> list[tuple[Descriptor, Descriptor]]:
        """Cut an array's stored and required descriptors along the first axis into parts, to reorder them in parallel.

        Returns the whole array as one part if it is small, or if a part would cut a block of the required layout."""
        if parts == 1 or stored.bytes < _LEAST_PART_BYTES * parts or stored.sizes[0] % parts:
            return [(stored, required)]
        length, rest = stored.sizes[0] // parts, stored.sizes[1:]

        def part(descriptor: Descriptor, i: int) -> Descriptor:
            sizes, offsets = dims((length, *rest)), dims((i * length, *(0 for _ in rest)))
            return self._described(self._create("memory_desc_create_submemory", descriptor.handle, sizes, offsets))

        try:
            return [(part(stored, i), part(required, i)) for i in range(parts)]
        except Unimplemented:  # the layout has blocks that a part would cut, such as blocks of 48 channels
            return [(stored, required)]

    def converts(self, dtype: str) -> bool:
        """Return whether oneDNN converts between `dtype` and float32 with vector instructions on this processor."""
        if dtype not in self._converts:
            half, single = self.descriptor(dtype, (64,), (1,)), self.descriptor("float32", (64,), (1,))
            described = (self._describe_reorder(*pair, self.plain) for pair in ((half, single), (single, half)))
            self._converts[dtype] = not any(self.implementation(d).startswith(REFERENCE) for d in described)
        return self._converts[dtype]

    def reorder(self, source: Binding, target: Binding, slices: int = 1) -> Primitive:
        """Create a primitive that copies an array slice by slice to another dtype or layout."""
        described = self._describe_reorder(source.stored, target.stored, self.plain)
        return self.primitive(described, [source, target], slices)

    def _describe_reorder(self, source: Descriptor, target: Descriptor, attributes: int) -> int:
        """Return the handle of the description of a copy from one array to another. Raises Unimplemented."""
        return self._create(
            "reorder_primitive_desc_create", source.handle, self._engine, target.handle, self._engine, attributes
        )

    def scratch(self, name: str, n_bytes: int) -> Array:
        """Return at least `n_bytes` of the scratch memory of this name, which all primitives share in turn."""
        memory = self.shared.get(name)
        if memory is None or memory.nbytes < n_bytes:
            allocated = np.empty(n_bytes + _ALIGNMENT, np.uint8)
            start = -address(allocated) % _ALIGNMENT
            memory = self.shared[name] = allocated[start : start + n_bytes]
            self.changes += 1
        return memory

    @contextlib.contextmanager
    def restoring_scratch(self) -> Iterator[None]:
        """Restore the scratch memory after a `with` block, so that primitives that are only tried do not enlarge it."""
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
        """Prepare a copy, or with `added` an addition, from one place to another. See `_prepare` for `chunk`."""
        described = self._describe_reorder(source, target, self.adding if added else self.plain)
        return self._prepare(described, [(SRC, source, from_), (DST, target, to)], chunk)

    def _prepare(
        self, described: int, arguments: Sequence[tuple[int, Descriptor, Place]], chunk: int
    ) -> PreparedPrimitive:
        """Create a described primitive with its memory objects. `chunk`: its number among those that run in parallel,
        each of which has a scratchpad of its own."""
        scratchpad = self._described(self._library.dnnl_primitive_desc_query_md(described, _SCRATCHPAD, 0))
        place = ScratchPlace(f"scratchpad of chunk {chunk}", max(scratchpad.bytes, _ALIGNMENT))
        arguments = [*arguments, (SCRATCHPAD, scratchpad, place)]
        memories = [self._create("memory_create", d.handle, self._engine, None) for _, d, _ in arguments]
        table = (_Argument * len(memories))(*map(_Argument, (index for index, *_ in arguments), memories))
        primitive = self._create("primitive_create", described)
        stream = self._create("stream_create", self._engine, 1)
        return PreparedPrimitive(self, primitive, stream, table, memories, [place for *_, place in arguments])

    def _described(self, handle: int) -> Descriptor:
        return Descriptor(handle, int(self._library.dnnl_memory_desc_get_size(handle)))

    def _create(self, function: str, *arguments: Any) -> int:
        """Call a function of oneDNN that creates an object, and return the object's handle."""
        handle = c_void_p()
        self._call(function, byref(handle), *arguments)
        return handle.value or 0

    def _call(self, function: str, *arguments: Any) -> None:
        """Call a function of oneDNN. Raises Unimplemented, or RuntimeError with the function's status."""
        status = getattr(self._library, f"dnnl_{function}")(*arguments)
        if status == _UNIMPLEMENTED:
            raise Unimplemented(function)
        if status:
            raise RuntimeError(f"oneDNN: dnnl_{function}: status {status}")


@dataclass(frozen=True)
class ArrayPlace:
    """An argument's place in one of the caller's arrays: the array's position, and an offset in bytes."""

    position: int
    offset: int = 0


@dataclass(frozen=True)
class ScratchPlace:
    """An argument's place in the engine's scratch memory: the first `n_bytes` of the memory of that name."""

    name: str
    n_bytes: int


Place = ArrayPlace | ScratchPlace


class PreparedPrimitive:
    """A call of a oneDNN primitive with a memory object for each argument.

    A team runs `call`. Before that, `bind_scratch` must be called and addresses be set for `array_arguments`: tuples of
    a memory object, the position of its array, and the offset in that array in bytes."""

    def __init__(
        self,
        engine: Engine,
        primitive: int,
        stream: int,
        arguments: Any,
        memories: Sequence[int],
        places: Sequence[Place],
    ) -> None:
        pairs = list(zip(memories, places, strict=True))
        self.call = PrimitiveCall(engine.execute, primitive, stream, ctypes.addressof(arguments), len(memories))
        self._arguments = arguments  # `call` points to them
        self._engine = engine
        self.array_arguments = [
            (m, place.position, place.offset) for m, place in pairs if isinstance(place, ArrayPlace)
        ]
        self._scratch_arguments = [(m, place) for m, place in pairs if isinstance(place, ScratchPlace)]
        self._bound_scratch: dict[str, Array] = {}

    def bind_scratch(self) -> None:
        """Give oneDNN the current addresses of the scratch memory, which grows if this primitive needs more."""
        for memory, place in self._scratch_arguments:
            scratch = self._engine.shared.get(place.name)
            if scratch is None or self._bound_scratch.get(place.name) is not scratch:
                scratch = self._bound_scratch[place.name] = self._engine.scratch(place.name, place.n_bytes)
                self._engine.set_handle(memory, address(scratch))


class Primitive:
    """A primitive over all slices, with the reorders before and after it.

    It consists of stages that run one after another; a stage consists of chunks that run in parallel. `name` is
    oneDNN's name of the implementation."""

    def __init__(self, engine: Engine, name: str, *stages: Sequence[Sequence[PreparedPrimitive]]) -> None:
        self.name = name
        self._engine = engine
        nonempty = [stage for stage in stages if stage]
        self._prepared = [prepared for stage in nonempty for chunk in stage for prepared in chunk]
        self._launch = engine.team.bind([[[p.call for p in chunk] for chunk in stage] for stage in nonempty])
        self._set_places = engine.team.places([place for p in self._prepared for place in p.array_arguments])
        self._bound_addresses: Addresses | None = None
        self._changes = -1

    def bind(self, *arrays: Array) -> Callable[[], None]:
        """Return a function that runs the primitive on these arrays. The caller keeps their memory alive."""
        return functools.partial(self.run_at, (c_size_t * len(arrays))(*map(address, arrays)))

    def run_at(self, addresses: Addresses) -> None:
        """Run on arrays at these addresses. Raises RuntimeError with oneDNN's status if it is not 0."""
        engine = self._engine
        while self._changes != engine.changes:
            self._changes = engine.changes
            for prepared in self._prepared:
                prepared.bind_scratch()  # may move scratch memory that earlier primitives use
        status = 0 if addresses is self._bound_addresses else self._set_places(addresses)
        self._bound_addresses = None if status else addresses
        if status := status or self._launch():
            raise RuntimeError(f"oneDNN: status {status}")


def contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in values, of a C-contiguous array."""
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))

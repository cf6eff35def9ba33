"""Names of GPU kernels, cut down to what tells them apart. Pure functions.

A compiler writes a kernel's template arguments and parameters into its name: often hundreds of characters, of which a
few words distinguish one kernel from the next.
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterable
from functools import cache

MOST_CHARACTERS = 60
"""The length of a short name is at most this."""

_LONGEST_END = 38  # of a name that is cut: the end tells more kernels apart than the begin

_LONGEST_SIGNATURE = 2000
"""Signatures are cut to this length, because a rule may take time that grows with its square. The longest signature in
public traces has 1,023 characters."""

_DTYPES = {  # with the letters that mangled names have for them
    name: dtype
    for dtype, names in {
        "fp64": "double d",
        "fp32": "float f",
        "fp16": "Half __half half half_t _Float16 DF16_ Dh",
        "bf16": "BFloat16 __nv_bfloat16 __hip_bfloat16 bfloat16_t bf16_t DF16b",
        "fp8": "Float8_e4m3fn Float8_e5m2 __nv_fp8_e4m3 float8_e4m3_t",
        "int64": "long longlong l x",
        "uint64": "unsignedlong unsignedlonglong m y",
        "int32": "int i",
        "uint32": "unsignedint unsigned j",
        "int8": "char signedchar a c",
        "uint8": "unsignedchar h",
        "bool": "bool b",
    }.items()
    for name in names.split()
}

# Between the identifiers of a mangled name: constants, references back, the "void" behind the template arguments, the
# length of the next identifier, and types.
_MANGLED = re.compile(
    r"LN[^L]{0,200}?E\d{1,20}E|L[a-z]n?\d{1,20}E|S[0-9A-Z]{0,3}_|T\d{0,3}_|St|cl|X[a-z]{2}"
    r"|(?P<end>Ev)|(?P<length>\d{1,4})|(?P<type>DF16[b_]|Dh|[a-z])"
)
_LAMBDA = re.compile(r"(?:::)?[{\[]lambda\(([^(){}]*)\)(?:#\d+| \(instance \d+\))[}\]]")  # as c++filt and nvcc write it
_NOISE = re.compile(
    r"\(anonymous namespace\)::|_GLOBAL__N_1::|<unnamed>::|::operator ?\(\)| ?\b(const|volatile)\b|[*&]"
    r"| ?\[clone[^][]*\]|\.kd$"
)
# Functions that run whatever their template arguments say.
_GENERIC = re.compile(r"(global|device|trampoline)?_?k(ernel|entry)_?\d*", re.IGNORECASE)
# Templates that tell how memory is laid out or reached, not what is computed.
_LAYOUT = (
    r"(?:array|tuple|pair|\w*(?:Array|Accessor|ListMetadata|TensorInfo|Calculator|(?<!Kernel)Params(?:Ex)?|Traits|StridedBatched"
    r"|Iterator|_traits|_config|_iterator)|(?:Load|Store)With\w*|decltype)"
)
_LAYOUT_ARGUMENTS = re.compile(rf"\b{_LAYOUT}<[^<>]*>")
# Template arguments that add nothing to the names of their own arguments, and numbers.
_WRAPPER = re.compile(
    rf"ReduceOp|func_wrapper_t|\w+_impl|type|\w*Policy\d*|KernelParams|\w*_launcher|apply|-?\d\w*|true|false|{_LAYOUT}"
)
_KERNEL = re.compile(r"(?<=\w)_kernel(?=_|\b)|(?<=\w)_cuda\b")
# What Triton appends to a name: which arguments are divisible by 16, or constant.
_TRITON_SIGNATURE = re.compile(r"(?<=[A-Za-z])_0\d*[cd][0-9cde]*$")
# Kernels of rocBLAS and hipBLASLt: operands and data types, then many parameters, of which the tile is one.
_TENSILE = re.compile(r"^(Cijk_[A-Za-z]+_[A-Za-z]+_[A-Z]+(?:_[A-Z]+)?)(?=_)\w*?_(MT\w+?)_.*")


def short_kernel_names(names: Iterable[str]) -> dict[str, str]:
    """Return the short name of each kernel of a trace, with a checksum where names would be equal only because they are
    cut."""
    texts = {name: _distinction(name) for name in names}
    n_equal = Counter(map(_cut, set(texts.values())))
    return {
        name: _cut(text, f"…{zlib.crc32(text.encode()) & 0xFFFF:04x}…" if n_equal[_cut(text)] > 1 else "…")
        for name, text in texts.items()
    }


@cache
def short_kernel_name(name: str) -> str:
    """Return what tells a kernel apart, in at most MOST_CHARACTERS: the function's name, the functors that it runs, and
    its data types. A short name stays as it is."""
    return _cut(_distinction(name))


def _distinction(name: str) -> str:
    """Return what tells a kernel apart, in any length."""
    text = _TENSILE.sub(r"\1 \2", _TRITON_SIGNATURE.sub("", signature(name)))
    if "<" not in text and "::" not in text:
        return text
    function, _, arguments = text.partition("<")
    *namespaces, function = function.split("::")
    words, dtypes = _argument_words(arguments)
    if _GENERIC.fullmatch(function):
        function = " ".join(words[:1] or [*namespaces[-1:], function])
    return " ".join(filter(None, [function, *(word for word in words if word != function), ",".join(dtypes)]))


def _cut(text: str, middle: str = "…") -> str:
    """Return a text of at most MOST_CHARACTERS: if it is longer, without "kernel" in its words, or with `middle` in
    place of words between its begin and its end."""
    if len(text) <= MOST_CHARACTERS or len(text := _KERNEL.sub("", text)) <= MOST_CHARACTERS:
        return text
    end = re.sub(r"^[^ _,]*[ _,]", "", text[-_LONGEST_END - 1 :])[-_LONGEST_END:]
    length = MOST_CHARACTERS - len(middle) - len(end)
    return re.sub(r"[ _,][^ _,]*$", "", text[: length + 1])[:length] + middle + end


def _argument_words(arguments: str) -> tuple[list[str], list[str]]:
    """Return the names in template arguments that tell what is computed, and the data types, each once."""
    for _ in range(3):  # one may be in another
        arguments = _LAYOUT_ARGUMENTS.sub("", arguments)
    words, dtypes = dict[str, None](), dict[str, None]()
    for argument, is_namespace in re.findall(r"([^<>,:]+)(::)?", arguments):
        word = argument.strip().removeprefix("gpu_kernel_impl_")  # whether types are cast tells kernels apart
        if dtype := _DTYPES.get(word.replace(" ", "")):
            dtypes[dtype] = None
        elif word and not is_namespace and not _WRAPPER.fullmatch(word):
            words[word] = None
    return list(words), list(dtypes)


@cache
def signature(name: str) -> str:
    """Return a kernel's qualified name with its template arguments: without return type, parameters, lambdas and
    unnamed namespaces, and demangled if it is mangled."""
    text = _demangled(name) if name.startswith("_Z") else name
    if not re.search(r"[\w>]\(|<", text):
        return text[:_LONGEST_SIGNATURE]
    shortened, angles, parentheses = "", 0, 0
    for character in _LAMBDA.sub(r"[\1]", _NOISE.sub("", text)).strip():
        if character in "()":
            parentheses = max(0, parentheses + (1 if character == "(" else -1))
        elif parentheses == 0:
            angles += (character in "<[") - (character in ">]")
            shortened = "" if character == " " and angles == 0 else shortened + character
    # A lambda's parameters are its types, if the function around it does not have them as template arguments.
    shortened = re.sub(r">(\[[^][]*\])+", ">", shortened[:_LONGEST_SIGNATURE])
    return re.sub(r"[{}]", "", shortened.replace("[", "<").replace("]", ">"))


def _demangled(name: str) -> str:
    """Return the name of a function that was mangled by the Itanium C++ ABI, with the identifiers and the types of
    numbers in its template arguments, but without namespaces."""
    words, place = list[str](), len("_Z")
    while (match := _MANGLED.search(name, place)) and not match["end"]:
        place = match.end() + int(match["length"] or 0)
        if match["type"] in _DTYPES and words:
            words.append(match["type"])
        elif match["length"] and not name[place : place + 1].isdecimal():
            words.append(name[match.end() : place])
            if len(words) == 1 and name[place : place + 1] != "I":
                break  # no template arguments, but parameters follow
    function, *arguments = words or [name]
    return f"{function}<{','.join(arguments)}>" if arguments else function

"""Names of GPU kernels, cut down to what tells them apart. Pure functions.

A compiler writes a kernel's template arguments and parameters into its name: often hundreds of characters, of which a
few words distinguish one kernel from the next.
"""

import itertools
import re
import zlib
from functools import cache

_MOST_READ = 8000
"""Characters of a name that are read. Public traces have names of up to 5,200."""

MOST_CHARACTERS = 60
"""The length of a short name is at most this."""

_DTYPES = {  # with the letters that mangled names have for them
    name: dtype
    for dtype, names in {
        "fp64": ("double", "d"),
        "fp32": ("float", "f"),
        "fp16": ("Half", "__half", "half", "half_t", "_Float16", "DF16_", "Dh"),
        "bf16": ("BFloat16", "__nv_bfloat16", "__hip_bfloat16", "bfloat16_t", "bf16_t", "DF16b"),
        "fp8": ("Float8_e4m3fn", "Float8_e5m2", "__nv_fp8_e4m3", "float8_e4m3_t"),
        "int64": ("long", "long long", "l", "x"),
        "uint64": ("unsigned long", "unsigned long long", "m", "y"),
        "int32": ("int", "i"),
        "uint32": ("unsigned int", "unsigned", "j"),
        "int8": ("char", "signed char", "a", "c"),
        "uint8": ("unsigned char", "h"),
        "bool": ("bool", "b"),
    }.items()
    for name in names
}

_MANGLED = re.compile(
    r"L[a-z]n?\d+E|S[0-9A-Z]*_|St|T\d*_|(?<=X)[a-z]{2}|(?P<length>\d{1,4})|(?P<type>DF16[b_]|Dh|[a-z])|.", re.DOTALL
)

_ENUMERATOR = re.compile(r"LN[^L]*?E\d+E")
_LAMBDA = re.compile(r"(?:::)?[{\[]lambda\(([^(){}]*)\)(?:#\d+| \(instance \d+\))[}\]]")  # as c++filt and nvcc write it
_NOISE = re.compile(
    r"\(anonymous namespace\)::|_GLOBAL__N_1::|<unnamed>::|::operator ?\(\)|\s*\bconst\b|\bvolatile\b|[*&]"
    r"|\s*\[clone[^\]]*\]|\.kd$"
)
_GENERIC = re.compile(r"(global|device|trampoline)?_?k(ernel|entry)_?\d*", re.IGNORECASE)
"""Names of functions that run whatever their template arguments say."""

_WRAPPER = re.compile(
    r"ReduceOp|func_wrapper_t|\w+_impl|type|\w*Policy\d*|KernelParams|\w*_launcher|apply|-?\d+\w*|true|false"
)
"""Template arguments that add nothing to the names of their own arguments, and numbers."""

_LAYOUT = re.compile(
    r"array|tuple|pair|\w*(Array|Accessor|ListMetadata|TensorInfo|Calculator|Params(Ex)?|Traits|StridedBatched"
    r"|Iterator|_traits|_config|_iterator)|(Load|Store)With\w*|decltype",
)
"""Templates that tell how memory is laid out or reached, not what is computed."""

_TRITON_SIGNATURE = re.compile(r"(?<=[A-Za-z])_0(?=\w*[dc])(de?|c)?(\d+(de?|c)?)*$")
"""The specialisation that Triton appends to a name: which arguments are divisible by 16, or constant."""

_TENSILE = re.compile(r"(Cijk_[A-Za-z]+_[A-Za-z]+_[A-Z]+(?:_[A-Z]+)?)(?=_)\w*?_(MT\w+?)_.*")
"""A kernel of rocBLAS or hipBLASLt: operands and data types, then many parameters, of which the tile is one."""

_TAIL = 14
"""Characters that are kept of the end of a name that is cut."""

_PARENTHESES = re.compile(r"\([^()]*\)")


@cache
def short_kernel_name(name: str) -> str:
    """Return what tells a kernel apart, in at most MOST_CHARACTERS: the function's name, the functors that it runs, and
    its data types. A short name stays as it is."""
    text = _TENSILE.sub(r"\1 \2", _TRITON_SIGNATURE.sub("", signature(name)))
    function, _, arguments = text.partition("<")
    if function != text or "::" in text:
        *namespaces, function = function.split("::")
        words, dtypes = _argument_words(arguments)
        if _GENERIC.fullmatch(function):
            function = " ".join(words[:1] or [*namespaces[-1:], function])
        text = " ".join([function, *(word for word in words if word != function), *_runs(dtypes)])
    return text if len(text) <= MOST_CHARACTERS else _cut(text, signature(name))


def _cut(text: str, full_name: str) -> str:
    """Return a name of at most MOST_CHARACTERS: with each word cut, or if that is not enough, with a checksum of the
    full name in place of its middle. Names of TorchInductor end in a number, which tells them apart without either."""
    bare = re.sub(r"(?<=\w)_?kernel(?=_|\b)|(?<=\w)_cuda\b", "", text)
    for length in () if text.startswith("triton_") else (len(text), 8, 6, 5, 4, 3):
        words = "".join(part[:length] for part in re.findall(r"[A-Z]*[a-z]+|[^a-z]", bare))
        if len(words) <= MOST_CHARACTERS:
            return words
    middle = "…" if text.startswith("triton_") else f"…{zlib.crc32(full_name.encode()) & 0xFFFF:04x}…"
    return f"{text[: MOST_CHARACTERS - _TAIL - len(middle)]}{middle}{text[-_TAIL:]}"


def _runs(dtypes: list[str]) -> list[str]:
    """Return data types as one word, such as "fp32" or "bf16x2,fp32"; nothing if there are none."""
    runs = [(name, len(list(group))) for name, group in itertools.groupby(dtypes)]
    word = ",".join(name if n == 1 or len(runs) == 1 else f"{name}x{n}" for name, n in runs)
    return [word] if word else []


def _argument_words(arguments: str) -> tuple[list[str], list[str]]:
    """Return the names in template arguments that tell what is computed, and the data types, in their order."""
    words, dtypes, depth, layout_depth = dict[str, None](), list[str](), 0, None
    tokens = [token.strip() for token in re.findall(r"::|[<>,]|[^<>,:]+", arguments)]
    for token, following in itertools.pairwise([*tokens, ""]):
        token = token.removeprefix("gpu_kernel_impl_")  # whether types are cast tells kernels apart
        depth += (token == "<") - (token == ">")
        if layout_depth is not None:
            layout_depth = None if depth <= layout_depth and token == ">" else layout_depth
        elif token in ("", "<", ">", ",", "::") or following == "::" or _WRAPPER.fullmatch(token):
            continue
        elif _LAYOUT.fullmatch(token):
            layout_depth = depth if following == "<" else None
        elif token in _DTYPES:
            dtypes.append(_DTYPES[token])
        else:
            words[token] = None
    return list(words), dtypes


@cache
def signature(name: str) -> str:
    """Return a kernel's qualified name with its template arguments: without return type, parameters, lambdas and
    unnamed namespaces, and demangled if it is mangled."""
    name = name[:_MOST_READ]
    text = _demangled(name) if name.startswith("_Z") else name
    if not re.search(r"[\w>]\(|<", text):
        return text
    text = _LAMBDA.sub(r"[\1]", _NOISE.sub("", text))
    while text != (shorter := _PARENTHESES.sub("", text)):
        text = shorter
    # A lambda's parameters are its types, if the function around it does not have them as template arguments.
    text = re.sub(r">(\[[^\[\]]*\])+", ">", text).replace("[", "<").replace("]", ">")
    depth, begin = 0, 0
    for place, character in enumerate(text):
        depth += (character == "<") - (character == ">")
        if character == " " and depth == 0:
            begin = place + 1
    return re.sub(r"[][(){}]", "", text[begin:] or text).strip()


def _demangled(name: str) -> str:
    """Return the qualified name and the template arguments of a name that was mangled by the Itanium C++ ABI. Only
    identifiers and types of numbers are read."""
    name = _ENUMERATOR.sub("", name)
    text, nesting, place = "", "", len("_Z")
    while match := _MANGLED.match(name, place):
        place, token = match.end(), match[0]
        if match["length"]:
            identifier, place = name[place : place + int(token)], place + int(token)
            text += ("::" if nesting.endswith("N") and text[-1:] not in ("", "<", ",") else "") + identifier
        elif match["type"]:
            text += token + "," if token in _DTYPES else ""
        elif token in ("N", "I", "J", "X"):
            nesting += token
            text += "<" if token == "I" else ""
        elif token == "E":
            text = text.rstrip(",") + (">" if nesting.endswith("I") else ",")
            nesting = nesting[:-1]
            if not nesting:
                break
    return text.rstrip(",") or name

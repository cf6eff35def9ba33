"""Names of GPU kernels, cut down to what tells them apart. Pure functions.

A compiler writes a kernel's template arguments and parameters into its name: often hundreds of characters, of which a
few words distinguish one kernel from the next.
"""

import re
from functools import cache

_MOST_READ = 8000
"""Characters of a name that are read. Public traces have names of up to 5,200."""

_MANGLED_TYPES = {"DF16b": "bf16_t", "DF16_": "half", "Dh": "half", "f": "float", "d": "double", "i": "int"}
_MANGLED_TYPES |= {"l": "long", "x": "long", "j": "unsigned int", "m": "unsigned long", "h": "unsigned char"}
_MANGLED_TYPES |= {"a": "char", "b": "bool"}
_MANGLED = re.compile(r"L[a-z]n?\d+E|S\w?_|St|T\w?_|(?P<length>\d{1,4})|(?P<type>DF16[b_]|Dh|[a-z])|.", re.DOTALL)

_LAMBDA = re.compile(r"(::)?\{lambda\(([^(){}]*)\)#\d+\}")
_NOISE = re.compile(
    r"\(anonymous namespace\)::|_GLOBAL__N_1::|<unnamed>::|::operator\(\)|\s*\bconst\b|\bvolatile\b|[*&]"
    r"|\s*\[clone[^\]]*\]|\.kd$"
)
_PARENTHESES = re.compile(r"\([^()]*\)")


@cache
def signature(name: str) -> str:
    """Return a kernel's qualified name with its template arguments: without return type, parameters, lambdas and
    unnamed namespaces, and demangled if it is mangled."""
    name = name[:_MOST_READ]
    text = _demangled(name) if name.startswith("_Z") else name
    if not re.search(r"[\w>]\(|<", text):
        return text
    text = _NOISE.sub("", _LAMBDA.sub(r"<\2>", text))
    while text != (shorter := _PARENTHESES.sub("", text)):
        text = shorter
    depth, begin = 0, 0
    for place, character in enumerate(text):
        depth += (character == "<") - (character == ">")
        if character == " " and depth == 0:
            begin = place + 1
    return text[begin:] or text


def _demangled(name: str) -> str:
    """Return the qualified name and the template arguments of a name that was mangled by the Itanium C++ ABI. Only
    identifiers and types of numbers are read."""
    text, nesting, place = "", "", len("_Z")
    while match := _MANGLED.match(name, place):
        place, token = match.end(), match[0]
        if match["length"]:
            identifier, place = name[place : place + int(token)], place + int(token)
            text += ("::" if nesting.endswith("N") and text[-1:] not in ("", "<", ",") else "") + identifier
        elif match["type"]:
            text += _MANGLED_TYPES.get(token, "") + ","
        elif token in ("N", "I", "J", "X"):
            nesting += token
            text += "<" if token == "I" else ""
        elif token == "E":
            text = text.rstrip(",") + (">" if nesting.endswith("I") else ",")
            nesting = nesting[:-1]
            if not nesting:
                break
    return text.rstrip(",") or name

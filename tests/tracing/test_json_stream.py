"""`tcbench.tracing.json_stream`: a trace parsed in pieces has the same members as one parsed as a whole."""

import io
import json

import pytest

from tcbench.tracing import json_stream

TRACE = r"""{"whole": 1712195495, "negative": -1.5e+3 , "large": 1E-07,"fraction": 16.25, "zero": 0,
 "é\u00e9\uD83D\uDE00😀": "\"\\\n\ud83d", "none": null, "yes": true, "no": [false, -Infinity, NaN],
 "nested": [[], [[1, 2.5e-3], {"a": {"b": [{}, "]"]}}]], "traceEvents" : [{"ts": 12.125, "dur": 1e3}, [], -7 , 1.5E+2 ],
 "last": 123456789012345678901234567890.5e-12}
"""


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("text", [TRACE, '[{"a": 1}, 2.5e1 ,"x", -1.25e-3]', '{"traceEvents": [1.5e+10]}'])
def test_a_trace_in_pieces_has_the_members_of_the_whole(text, piece_bytes):
    expected = json.loads(text, parse_float=str, parse_constant=str)
    members = expected.items() if isinstance(expected, dict) else [("traceEvents", expected)]
    flat = [(key, each) for key, member in members for each in (member if key == "traceEvents" else [member])]
    # Blanks in front shift the ends of the pieces.
    for shift in range(8):
        file = io.BytesIO((" " * shift + text).encode())
        assert list(json_stream._Parser(file, 1 << 20, piece_bytes).members()) == flat

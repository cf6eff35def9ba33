"""Characters on which a terminal would act."""

import json
import re

_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Controls (C0 but for tab and line feed, DEL, C1), marks of direction, separators of lines, what is invisible."""


def harmless(text: str) -> str:
    """Text whose characters a terminal would act on are shown as their escapes; as JSON writes them, which so stays
    the same JSON."""
    return _ACTIVE.sub(lambda match: json.dumps(match[0])[1:-1] if match[0] != "\x7f" else "\\u007f", text)

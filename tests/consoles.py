"""What a console shows.

Imported as `import consoles`: the suite's `pythonpath` is `tests`.
"""

import io

from rich.console import Console, RenderableType


def printed(*shown: RenderableType, width: int = 132) -> str:
    """Everything that is printed, on a console of so many columns without colours."""
    out = io.StringIO()
    console = Console(file=out, width=width)
    for renderable in shown:
        console.print(renderable, highlight=False)
    return out.getvalue()

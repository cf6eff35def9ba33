"""The text that a console shows for tables and other renderables.

Imported as `import consoles`: the suite's `pythonpath` is `tests`.
"""

import io
from typing import Any

from rich.console import Console, RenderableType

from tcbench.show.tables import Table


def printed(*shown: RenderableType, width: int = 132) -> str:
    """Everything that is printed, on a console of so many columns without colours."""
    out = io.StringIO()
    console = Console(file=out, width=width)
    for renderable in shown:
        console.print(renderable, highlight=False)
    return out.getvalue()


def texts(table: Table[Any]) -> list[dict[str, str]]:
    """Each row's texts by the names of the columns that a wide console shows."""
    return [{head.name: head.text(row) for head in table.columns_at(132)} for row in table.rows if row is not None]

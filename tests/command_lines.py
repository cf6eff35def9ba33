"""tcbench's command line as its pages write it: parsed, not run."""

from collections.abc import Sequence
from typing import Any

import typer

from tcbench.commands import app


def parse(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """The command that words name, with its parameters. Raises click's UsageError for what there is not."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("tcbench", list(words))
    while isinstance(group, typer.core.TyperGroup):
        name, group, rest = group.resolve_command(context, [*context._protected_args, *context.args])
        context = group.make_context(name, rest, parent=context)
    return context.info_name, context.params

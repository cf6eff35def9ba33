"""Words of the legend: one row per dtype, columns that line up rung by rung.

Owns which words stand beside each config's swatch. Knows configs by name only, nothing of their results.
"""

from collections.abc import Sequence

from tcbench.present.charts.palette import family
from tcbench.present.charts.text import config_name


def legend_rows(configs: Sequence[str]) -> list[list[tuple[str, str]]]:
    """A row per backend and family; a config that goes on from the one before it is named by what it adds."""
    rows: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for config in configs:
        row = rows.setdefault((config.rpartition("/")[0], family(config)), [])
        before = row[-1][0] if row else None
        extends = before is not None and config.startswith(before + "+")
        words = config.removeprefix(before or "")[1:] if extends else config
        row.append((config, ("+ " if extends else "") + config_name(words)))
    return list(rows.values())

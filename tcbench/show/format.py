"""Numbers as people read them: the one place that decides digits, units, signs and plurals.

Consoles, charts and the page write their figures with it. Knows nothing of fonts, tables or records.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from tcbench.analysis.stats import Interval
from tcbench.core.record import Environment
from tcbench.core.text import digits

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def number(value: float, as_part_of: float | None = None) -> str:
    """Three digits, or all of a whole number's: 0.0123, 78.9, 1234, 12.3k. Prefix and decimals as of `as_part_of`."""
    size = float(f"{abs(value if as_part_of is None else as_part_of):.3g}")  # 9.999 is written as 10.0
    unit, prefix = 1.0, ""
    if size and not 0.01 <= size < 1e4:  # else plain digits read better
        unit, prefix = next((pair for pair in _PREFIXES if size >= pair[0]), _PREFIXES[-1])
    decimals = max(0, 2 - math.floor(math.log10(size / unit))) if size else 0
    return f"{value / unit:.{decimals}f}{prefix}"


def rate(images_per_s: float) -> str:
    """A throughput: "81.2", "11.6k"; without a limit "any"."""
    return number(images_per_s) if math.isfinite(images_per_s) else "any"


def milliseconds(seconds: float) -> str:
    """A step time, three digits or more: 8.12 ms, 1234 ms."""
    ms = seconds * 1e3
    return f"{ms:.0f} ms" if ms >= 100 else f"{digits(ms)} ms"


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `1 h 05 min`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def size(n_bytes: float) -> str:
    """Binary units, as memory is sold: 512 MiB, 15.90 GiB."""
    gib = n_bytes / 2**30
    return f"{gib:.2f} GiB" if gib >= 1 else f"{n_bytes / 2**20:.0f} MiB"


def percent(share: float, decimals: int = 1) -> str:
    """12.3%; a share that would round to nothing is "<0.1%"."""
    least = 10 ** -(decimals + 2)
    return f"<{least:.{decimals}%}" if 0 < share < least else f"{share:.{decimals}%}"


def threshold(share: float) -> str:
    """A setting as it was given: 3%, 2.5%."""
    return f"{digits(share * 100)}%"


def factor(value: float) -> str:
    """A speed-up: 0.045×, 1.23×, 12.3×."""
    if value < 0.1:
        return f"{digits(value, 2)}×"
    return f"{value:.2f}×" if value < 10 else f"{number(value)}×"


def quotient(value: float) -> str:
    """A ratio of two like figures, to the thousandth: 0.950, 12.3, >1000."""
    if not math.isfinite(value) or value >= 1000:
        return ">1000"
    return f"{value:.3f}" if value < 10 else f"{value:.3g}"


def ratio(interval: Interval | None) -> str:
    """`0.950 (0.938 to 0.962)`; empty where there is none."""
    if interval is None:
        return ""
    return f"{quotient(interval.value)} ({quotient(interval.low)} to {quotient(interval.high)})"


def change(value: float) -> str:
    """A ratio as a signed percentage: -5.2%."""
    percentage = (value - 1) * 100
    if not math.isfinite(percentage) or percentage > 1000:
        return ">+1000%"
    return f"{percentage:+.1f}%"


def changes(interval: Interval) -> str:
    """A ratio's interval as signed percentages: `-5.2% (-6.1% to -4.3%)`."""
    return f"{change(interval.value)} ({change(interval.low)} to {change(interval.high)})"


def plus_minus(interval: Interval) -> str:
    """ "± 1.2%"; an interval wider than the value says no more than that; "or more", "± unknown" where nothing limits
    it."""
    if math.isnan(interval.high):
        return "± unknown"
    if math.isinf(interval.high) and interval.low == interval.value:
        return "or more"
    share = interval.relative_half_width
    return f"± {share:.1%}" if share < 1 else "± >100%"


def limits(interval: Interval | None, write: Callable[[float], str] = number) -> str:
    """ "12.1 to 12.9"; an open end says so; empty where there is none."""
    if interval is None:
        return ""
    high = write(interval.high) if math.isfinite(interval.high) else "no limit"
    return f"{write(interval.low)} to {high}"


def plural(n: int, noun: str, several: str = "") -> str:
    """The noun for so many: "cell", "cells"."""
    return noun if n == 1 else several or noun + "s"


def counted(n: int, noun: str, several: str = "") -> str:
    """ "1 cell", "2 cells"."""
    return f"{n} {plural(n, noun, several)}"


def listed(items: Sequence[str]) -> str:
    """ "a, b and c"."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def numbers(values: Iterable[int]) -> str:
    """Batch sizes and the like: "4 and 8"."""
    return listed([str(value) for value in sorted(set(values))])


def libraries(environments: Iterable[Environment]) -> list[str]:
    """The libraries that computed, each with why it was not a faster one: `oneDNN 3.2.0`."""
    named = dict.fromkeys((one.accelerator, one.shortfall) for one in environments if one.accelerator)
    return [name + (f" ({shortfall})" if shortfall else "") for name, shortfall in named if name]

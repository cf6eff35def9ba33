"""Numbers for people to read: digits, units, signs and plurals, for consoles, charts and the page alike."""

import math
from collections.abc import Callable, Iterable, Sequence

from tcbench.analysis.stats import Interval
from tcbench.core.record import Environment
from tcbench.core.text import digits

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def number(value: float, as_part_of: float | None = None) -> str:
    """Format a number with three digits, or all digits of its whole part: 0.0123, 78.9, 1234, 12.3k.

    With `as_part_of`, such as a total, the SI prefix and the number of decimals suit that number instead of `value`."""
    size = float(f"{abs(value if as_part_of is None else as_part_of):.3g}")  # 9.999 is written as 10.0
    unit, prefix = 1.0, ""
    if size and not 0.01 <= size < 1e4:  # else plain digits read better
        unit, prefix = next((pair for pair in _PREFIXES if size >= pair[0]), _PREFIXES[-1])
    decimals = max(0, 2 - math.floor(math.log10(size / unit))) if size else 0
    return f"{value / unit:.{decimals}f}{prefix}"


def rate(images_per_s: float) -> str:
    """Format a throughput: 81.2, 11.6k; "any" if it is infinite."""
    return number(images_per_s) if math.isfinite(images_per_s) else "any"


def milliseconds(seconds: float) -> str:
    """Format a step time with three digits or more: 8.12 ms, 1234 ms."""
    ms = seconds * 1e3
    return f"{ms:.0f} ms" if ms >= 100 else f"{digits(ms)} ms"


def duration(seconds: float) -> str:
    """Format a duration: 45 s, 3 min 20 s, 1 h 05 min."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def size(n_bytes: float) -> str:
    """Format a size in binary units: 512 MiB, 15.90 GiB."""
    gib = n_bytes / 2**30
    return f"{gib:.2f} GiB" if gib >= 1 else f"{n_bytes / 2**20:.0f} MiB"


def percent(share: float, decimals: int = 1) -> str:
    """Format a share as a percentage: 12.3%. One that would round to zero is "<0.1%"."""
    least = 10 ** -(decimals + 2)
    return f"<{least:.{decimals}%}" if 0 < share < least else f"{share:.{decimals}%}"


def threshold(share: float) -> str:
    """Format a threshold without trailing zeros: 3%, 2.5%."""
    return f"{digits(share * 100)}%"


def factor(value: float) -> str:
    """Format a speed-up: 0.045×, 1.23×, 12.3×."""
    if value < 0.1:
        return f"{digits(value, 2)}×"
    return f"{value:.2f}×" if value < 10 else f"{number(value)}×"


def quotient(value: float) -> str:
    """Format a ratio with three decimals, or three digits from 10 on: 0.950, 12.3, >1000."""
    if not math.isfinite(value) or value >= 1000:
        return ">1000"
    return f"{value:.3f}" if value < 10 else f"{value:.3g}"


def ratio(interval: Interval | None) -> str:
    """Format a ratio with its interval: 0.950 (0.938 to 0.962). None gives an empty text."""
    if interval is None:
        return ""
    return f"{quotient(interval.value)} ({quotient(interval.low)} to {quotient(interval.high)})"


def change(value: float) -> str:
    """Format a ratio as a signed percentage: -5.2%."""
    percentage = (value - 1) * 100
    if not math.isfinite(percentage) or percentage > 1000:
        return ">+1000%"
    return f"{percentage:+.1f}%"


def changes(interval: Interval) -> str:
    """Format a ratio and its interval as signed percentages: -5.2% (-6.1% to -4.3%)."""
    return f"{change(interval.value)} ({change(interval.low)} to {change(interval.high)})"


def plus_minus(interval: Interval) -> str:
    """Format the relative half-width of an interval: ± 1.2%.

    100% or more is "± >100%", a NaN limit "± unknown", an interval from its value to infinity "or more"."""
    if math.isnan(interval.high):
        return "± unknown"
    if math.isinf(interval.high) and interval.low == interval.value:
        return "or more"
    share = interval.relative_half_width
    return f"± {share:.1%}" if share < 1 else "± >100%"


def limits(interval: Interval | None, write: Callable[[float], str] = number) -> str:
    """Format the ends of an interval: "12.1 to 12.9", "12.1 to no limit". None gives an empty text."""
    if interval is None:
        return ""
    high = write(interval.high) if math.isfinite(interval.high) else "no limit"
    return f"{write(interval.low)} to {high}"


def plural(n: int, noun: str, several: str = "") -> str:
    """Return the noun in the singular or plural, as `n` requires: "cell", "cells". `several` is an irregular plural."""
    return noun if n == 1 else several or noun + "s"


def counted(n: int, noun: str, several: str = "") -> str:
    """Format a count with its noun: "1 cell", "2 cells"."""
    return f"{n} {plural(n, noun, several)}"


def listed(texts: Sequence[str]) -> str:
    """Join texts to a list: "a, b and c"."""
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def numbers(values: Iterable[int]) -> str:
    """List different numbers, such as batch sizes, in ascending order: "4 and 8"."""
    return listed([str(value) for value in sorted(set(values))])


def libraries(environments: Iterable[Environment]) -> list[str]:
    """Return the different libraries that computed, such as "oneDNN 3.2.0", each with the reason, if any, why no faster
    one was used."""
    pairs = dict.fromkeys((environment.accelerator, environment.shortfall) for environment in environments)
    return [name + (f" ({shortfall})" if shortfall else "") for name, shortfall in pairs if name]

"""Ticks of an axis: round numbers, at least two of them, written with the same digits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

_FEWEST, _MOST = 3, 6
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between `low` and `high`, at most `most` + 1 of them.

    >>> nice_ticks(0.0, 1.0), nice_ticks(-3.2, 11.0)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 5.0, 10.0])
    """
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    for step in (power, 2 * power, 5 * power, 10 * power):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first <= most:
            break
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between `low` and `high`, both positive, for a logarithmic axis.

    Powers of ten if there are enough, otherwise their multiples, otherwise evenly spaced numbers.

    >>> log_ticks(1.0, 1e4), log_ticks(40.0, 900.0)
    ([1.0, 10.0, 100.0, 1000.0, 10000.0], [50.0, 100.0, 200.0, 500.0])
    >>> log_ticks(100.0, 130.0), len(log_ticks(1e-9, 1e9))
    ([100.0, 110.0, 120.0, 130.0], 5)
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for multiples in ((1,), (1, 3), (1, 2, 5)):
        numbers = [float(f"{multiple}e{power}") for power in powers for multiple in multiples]
        inside = [number for number in numbers if 0.999 * low <= number <= 1.001 * high]
        if len(inside) >= _FEWEST:
            return inside[:: math.ceil(len(inside) / _MOST)]
    return nice_ticks(low, high)


def tick_texts(ticks: Sequence[float]) -> list[str]:
    """Evenly spaced ticks as text, all with the same number of decimals and the same unit.

    >>> tick_texts([0.5, 1.0, 1.5]), tick_texts([500.0, 1000.0]), tick_texts([5e3, 1e4])
    (['0.5', '1.0', '1.5'], ['500', '1,000'], ['5k', '10k'])
    >>> tick_texts([0.0, 2e-07, 4e-07])
    ['0', '2e-07', '4e-07']
    """
    largest = max(map(abs, ticks))
    gaps = [b - a for a, b in itertools.pairwise(ticks)]
    step = min(gaps, default=0) or largest or 1.0
    if largest and largest < 1e-4:
        digits = max(0, math.floor(math.log10(largest)) - math.floor(math.log10(step) + 1e-9))
        return [f"{tick:.{digits}e}" if tick else "0" for tick in ticks]
    unit, suffix = _unit(largest) if largest >= 1e4 else (1.0, "")
    decimals = max(0, -math.floor(math.log10(step / unit) + 1e-9))
    return [f"{tick / unit:,.{decimals}f}{suffix if tick else ''}" for tick in ticks]


def log_tick_texts(ticks: Sequence[float]) -> list[str]:
    """Ticks of a logarithmic axis as text, each with its own unit.

    >>> log_tick_texts([1.0, 1e3, 3e6]), log_tick_texts([0.01, 0.3])
    (['1', '1k', '3M'], ['0.01', '0.3'])
    """
    return [f"{tick / _unit(tick)[0]:g}{_unit(tick)[1]}" for tick in ticks]


def shown(value: float) -> str:
    """A number in short form, with a suffix for large values.

    >>> shown(1500000), shown(1575), shown(0.25), shown(-0.00002)
    ('1.5M', '1,575', '0.25', '-2e-05')
    """
    if 1e4 <= abs(value) < 1e13:
        unit, suffix = _unit(value)
        return f"{value / unit:.3g}{suffix}"
    return f"{value:,.0f}" if abs(value) < 1e4 and value == int(value) else f"{value:.4g}"


def _unit(value: float) -> tuple[float, str]:
    return next(((unit, text) for unit, text in _UNITS if abs(value) >= unit), (1.0, ""))

"""Cells of what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from visattn.cost.timing import Spread


def milliseconds(seconds: Spread | None) -> str:
    """Median and quartiles.

    >>> milliseconds(Spread(0.0123, 0.0121, 0.0131)), milliseconds(None)
    ('12.3 [12.1, 13.1]', '')
    """
    if seconds is None:
        return ""
    median, low, high = (_three_digits(1000 * each) for each in (seconds.median, seconds.low, seconds.high))
    return f"{median} [{low}, {high}]"


def factor(ratio: Spread | None) -> str:
    """Median and quartiles of a ratio.

    >>> factor(Spread(1.042, 1.031, 1.06))
    '1.04 [1.03, 1.06]'
    """
    return "" if ratio is None else f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def megabytes(count: int | None) -> str:
    """Bytes in millions.

    >>> megabytes(102_760_448)
    '103'
    """
    return "" if count is None else _three_digits(count / 1e6)


def _three_digits(number: float) -> str:
    """As many decimals as three digits need, and no exponent.

    >>> [_three_digits(number) for number in (0, 0.01234, 1.5, 12.34, 1234.5)]
    ['0', '0.0123', '1.50', '12.3', '1234']
    """
    if number == 0:
        return "0"
    return f"{number:.{max(0, 2 - math.floor(math.log10(abs(number))))}f}"


def geometric_mean(numbers: Sequence[float]) -> float:
    """For ratios.

    >>> geometric_mean([0.5, 2.0])
    1.0
    """
    return math.exp(math.fsum(map(math.log, numbers)) / len(numbers))

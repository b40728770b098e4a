# SPDX-License-Identifier: Apache-2.0
"""Pearson's test of counted draws against a distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

EXPECTED_MIN = 10  # expected draws of a cell; rarer tokens are pooled in one cell


def upper_gamma(a: float, x: float) -> float:
    """Q(a, x), the regularised upper incomplete gamma function; a > 0."""
    if x <= 0:
        return 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:  # the series of P(a, x)
        term = total = 1 / a
        n = a
        while term > total * 1e-16:
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1 - front * total)
    tiny = 1e-300  # Lentz's method for the continued fraction of Q(a, x)
    b = x + 1 - a
    c, d = 1 / tiny, 1 / b
    value = d
    for n in range(1, 1000000):
        numerator = -n * (n - a)
        b += 2
        d = 1 / ((numerator * d + b) or tiny)
        c = (b + numerator / c) or tiny
        value *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return front * value


@dataclass(frozen=True)
class ChiSquared:
    """The result of a chi-squared test."""

    statistic: float
    degrees: int  #: degrees of freedom; 0: too few draws to test
    p_value: float


def compare_counts(counts: Any, probabilities: Any) -> ChiSquared:
    """Test whether `counts` [V] are of draws from `probabilities` [V], which sum to 1."""
    expected = probabilities * counts.sum()
    tested = expected >= EXPECTED_MIN
    cells = np.append(expected[tested], expected[~tested].sum())
    found = np.append(counts[tested], counts[~tested].sum())
    if cells[-1] < EXPECTED_MIN:  # the pooled cell is too small: merge it with the likeliest
        likeliest = cells[:-1].argmax() if len(cells) > 1 else 0
        if len(cells) > 1:
            cells[likeliest] += cells[-1]
            found[likeliest] += found[-1]
        cells, found = cells[:-1], found[:-1]
    degrees = len(cells) - 1
    if degrees < 1:
        return ChiSquared(0.0, 0, 1.0)
    statistic = float(((found - cells) ** 2 / cells).sum())
    return ChiSquared(statistic, degrees, upper_gamma(degrees / 2, statistic / 2))

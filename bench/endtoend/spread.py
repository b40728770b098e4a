# SPDX-License-Identifier: Apache-2.0
"""What contestants took, in turns."""

import numpy as np


def describe(microseconds):
    low, median, high = (round(float(x), 2) for x in np.percentile(microseconds, [10, 50, 90]))
    return {"median_us": median, "p10_us": low, "p90_us": high}


def in_turns(contestants, rounds):
    """Times of each contestant, a function without arguments that returns a list of microseconds,
    by name; the order rotates and turns round, so that nobody always comes behind the same."""
    names, times = list(contestants), {name: [] for name in contestants}
    for turn in range(rounds):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in order if turn % 2 else reversed(order):
            times[name] += contestants[name]()
    return times


def reason(error):
    """One line of what went wrong."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]

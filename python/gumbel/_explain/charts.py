# SPDX-License-Identifier: Apache-2.0
"""Charts of a step as inline SVG. Abscissas are percentages, so that texts keep their size."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from typing import Optional

from .results import DrawStep, RuleEffect, Survivor
from .labels import count_tokens, format_number, format_parameters, format_share, name_token

LEFT = 13.0  # percentage of the width that the axis of probabilities takes
HEIGHT, LANE = 150, 20  # pixels of the bars, and of the lane of a rule
ROW = 34  # pixels of a survivor
LOWEST = -9  # smallest decade of the axis of probabilities


def format_distribution(step: DrawStep) -> str:
    """The likeliest tokens before the rules, and the ranks that each rule removed."""
    count, decades = len(step.ranking), _find_decades(step)
    runs = [(rule, run) for rule in step.rules for run in _find_runs(step, rule)]
    names = dict.fromkeys(rule.name for rule, _ in runs)
    lanes = {name: lane for lane, name in enumerate(names)}
    height = HEIGHT + 22 + LANE * len(lanes)
    parts = [f'<svg role="img" height="{height}" aria-label="Probabilities before the rules">']
    for decade in range(decades[0], decades[1] + 1):
        y = HEIGHT - _scale(10.0**decade, decades) * (HEIGHT - 12)
        label = "1" if decade == 0 else f"1e{decade}" if decade < -3 else f"{10.0 ** decade:g}"
        parts.append(f'<line class="grid" x1="{LEFT}%" x2="100%" y1="{y:.0f}" y2="{y:.0f}"/>')
        parts.append(f'<text class="end" x="{LEFT - 1.5}%" y="{y + 4:.0f}">{label}</text>')
    parts.append(_format_bars(step, decades))
    labels = []  # above the lines of all rules
    for rule, (first, end) in runs:
        y = HEIGHT + 6 + LANE * lanes[rule.name]
        x, width = LEFT + first / count * (100 - LEFT), (end - first) / count * (100 - LEFT)
        at, anchor = (x, "") if x < 60 else (x + width, ' class="end"')
        text = html.escape(f"{rule.name} {format_parameters(rule)}")
        parts.append(f'<line class="cut" x1="{x:.2f}%" x2="{x:.2f}%" y1="8" y2="{y + 4}"/>')
        parts.append(f'<rect class="run" x="{x:.2f}%" width="{width:.2f}%" y="{y}" height="3"/>')
        labels.append(f'<text{anchor} x="{at:.2f}%" y="{y + 15}">{text}</text>')
    parts += labels
    total = step.rules[0].after
    shown = f"the {count} likeliest of {count_tokens(total)}" if count < total else "all tokens"
    parts.append(f'<text class="end" x="100%" y="{height - 4}">rank, {shown}</text></svg>')
    return "".join(parts)


def _find_decades(step: DrawStep) -> tuple[int, int]:
    """The powers of ten that bound the probabilities."""
    values = [each.probability for each in step.ranking if each.probability > 0]
    low = math.floor(math.log10(min(values)) + 1e-9)
    return max(min(low, -1), LOWEST), 0


def _scale(probability: float, decades: tuple[int, int]) -> float:
    """The height of a probability on the logarithmic axis, in [0, 1]."""
    if probability <= 0:
        return 0.0
    return max((math.log10(probability) - decades[0]) / (decades[1] - decades[0]), 0.0)


def _find_runs(step: DrawStep, rule: RuleEffect) -> Iterator[tuple[int, int]]:
    """The ranges of ranks, [first, end), that a rule removed."""
    first: Optional[int] = None
    for rank, each in enumerate((*step.ranking, None)):
        removed = each is not None and each.removed_by == rule.name
        if removed and first is None:
            first = rank
        elif not removed and first is not None:
            yield first, rank
            first = None


def _format_bars(step: DrawStep, decades: tuple[int, int]) -> str:
    """The bars, in one path for each kind of token."""
    paths = {"gone": "", "stays": "", "wins": ""}
    for rank, each in enumerate(step.ranking):
        wins = step.winner is not None and step.winner.token == each.token
        kind = "wins" if wins else "gone" if each.removed_by else "stays"
        top = HEIGHT - _scale(each.probability, decades) * (HEIGHT - 12)
        paths[kind] += f"M{rank * 10 + 1} {HEIGHT}V{top:.1f}h8V{HEIGHT}"
    drawn = "".join(f'<path class="{kind}" d="{path}"/>' for kind, path in paths.items() if path)
    width = 10 * len(step.ranking)
    return (
        f'<svg x="{LEFT}%" width="{100 - LEFT}%" height="{HEIGHT}" viewBox="0 0 {width} {HEIGHT}"'
        f' preserveAspectRatio="none">{drawn}</svg>'
    )


def format_race(step: DrawStep) -> str:
    """The value of each survivor, and an arrow from it to its score: the noise."""
    order = sorted(step.survivors, key=lambda each: -each.score)
    ends = [end for each in order for end in (each.value, each.score)]
    low, high = min(ends), max(ends)
    spread = max(high - low, abs(high) * 1e-6, 1e-6)
    low, high = low - 0.06 * spread, high + 0.02 * spread

    def place(value: float) -> str:
        return f"{(value - low) / (high - low) * 98 + 0.5:.2f}%"

    bottom = ROW * len(order) + 6
    parts = [f'<svg role="img" height="{bottom + 34}" aria-label="Values, noise and scores">']
    for tick in _list_ticks(low, high):
        x = place(tick)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="0" y2="{bottom}"/>')
        parts.append(f'<text class="middle" x="{x}" y="{bottom + 14}">{tick:g}</text>')
    if step.winner is not None:
        x = place(step.winner.score)
        parts.append(f'<line class="best" x1="{x}" x2="{x}" y1="22" y2="{bottom}"/>')
    for number, each in enumerate(order):
        parts.append(_format_runner(each, step, number * ROW, place(each.value), place(each.score)))
    title = "value" if step.greedy else "value + noise = score"
    parts.append(f'<text class="end" x="100%" y="{bottom + 30}">{title}, in nats</text></svg>')
    return "".join(parts)


def _format_runner(each: Survivor, step: DrawStep, y: int, value: str, score: str) -> str:
    """The row of a survivor."""
    wins = each is step.winner
    name = html.escape(name_token(each.token, each.text, 14))
    number = "" if each.text is None else f'<tspan class="id"> {each.token}</tspan>'
    total = format_number(each.value)
    if each.noise is not None:
        sign = "−" if each.noise < 0 else "+"
        total += f" {sign} {format_number(abs(each.noise))} = {format_number(each.score)}"
    kind = "winner" if wins else "runner"
    found = (
        f'<g class="{kind}" transform="translate(0 {y + 22})"><text y="-9">{name}{number}</text>'
        f'<text class="end" x="100%" y="-9">{total}</text><line class="value" x2="{value}"/>'
    )
    if each.noise is not None:
        found += f'<line class="noise" x1="{value}" x2="{score}"/>'
    return f"{found}</g>"


def _list_ticks(low: float, high: float) -> list[float]:
    """About four round numbers between low and high."""
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next(each for each in (1, 2, 5, 10) if (high - low) / (each * step) <= 5)
    first = math.ceil(low / step)
    return [tick * step for tick in range(first, math.floor(high / step) + 1)]


def describe_rule(rule: RuleEffect) -> str:
    """The tokens that a rule removed, in words."""
    if not rule.removed:
        return ""
    names = ", ".join(
        f"{name_token(each.token, each.text, 20)} ({format_share(each.probability)})"
        for each in rule.examples
    )
    more = " …" if rule.removed > len(rule.examples) else ""
    return f"removes {format_share(rule.mass)} of the probability: {names}{more}"

# SPDX-License-Identifier: Apache-2.0
"""Explained draws as a table of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from .results import DrawStep, RuleEffect, Survivor
from .labels import (
    describe_effect,
    describe_margin,
    fit_width,
    format_number,
    format_parameters,
    format_share,
    name_token,
)

COLUMNS = 80
_RULES = f"  {'rule':<18}{'parameters':<22}{'tokens':>8}{'removed':>9}{'mass':>9}  likeliest"
_NAMES = ("logit", "value", "p", "noise", "score")
_SURVIVORS = f"  {'token':>8} {'text':<16}" + "".join(f"{name:>10}" for name in _NAMES)


def format_table(steps: Sequence[DrawStep]) -> str:
    """All steps, with an empty line between two."""
    return "\n\n".join("\n".join(map(_fit, _list_lines(step))) for step in steps)


def _fit(line: str) -> str:
    return fit_width(line, COLUMNS).rstrip()


def _list_lines(step: DrawStep) -> list[str]:
    lines = [f"row {step.row}, position {step.position}, seed {step.seed}, order {step.order}"]
    if step.winner is None:
        return [*lines, describe_margin(step), *_list_rules(step)]
    winner = name_token(step.winner.token, step.winner.text, 24)
    label = "" if step.winner.text is None else f" ({step.winner.token})"
    lines.append(f"token {winner}{label}, {describe_margin(step)}")
    if step.greedy:
        lines.append("greedy (temperature 0): no rules, no noise; the largest logit is drawn")
    lines += _list_rules(step)
    lines.append(_SURVIVORS)
    lines += [_format_survivor(each, step) for each in step.survivors]
    rest = step.kept - len(step.survivors)
    return [*lines, f"  and {rest} more of {step.kept} tokens"] if rest else lines


def _list_rules(step: DrawStep) -> list[str]:
    if not step.rules:
        return []
    lines = [_RULES]
    for rule in step.rules:
        lines.append(_format_rule(rule))
        if describe_effect(rule):
            lines.append(f"    {describe_effect(rule)}")
    return lines


def _format_rule(rule: RuleEffect) -> str:
    line = f"  {rule.name:<18}{fit_width(format_parameters(rule), 22)}{rule.after:>8}"
    if not rule.active:
        return f"{line}{'off':>9}"
    if not rule.removed:
        return f"{line}{0:>9}"
    example = name_token(rule.examples[0].token, rule.examples[0].text, 10)
    return f"{line}{rule.removed:>9}{format_share(rule.mass):>9}  {example}"


def _format_survivor(each: Survivor, step: DrawStep) -> str:
    mark = ">" if each is step.winner else " "
    text = fit_width("" if each.text is None else name_token(each.token, each.text, 16), 16)
    noise = "-" if each.noise is None else format_number(each.noise)
    numbers = (format_number(each.logit), format_number(each.value),
               format_share(each.probability), noise, format_number(each.score))  # fmt: skip
    return f"{mark} {each.token:>8} {text}" + "".join(f"{number:>10}" for number in numbers)

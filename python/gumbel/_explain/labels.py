# SPDX-License-Identifier: Apache-2.0
"""Texts of tokens and numbers for people. Texts of a vocabulary may hold any characters."""

from __future__ import annotations

import unicodedata
from typing import Optional

from .results import DrawStep, Parameter, RuleEffect

_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}


def escape_text(text: str, most: int = 40) -> str:
    """The text with control characters and the like as escapes; at most `most` characters."""
    found = ""
    for character in text[: most + 1]:
        if character in _ESCAPES:
            found += _ESCAPES[character]
        elif character.isprintable():
            found += character
        else:
            code = ord(character)
            found += f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    return found if len(text) <= most and len(found) <= most else found[: most - 1] + "…"


def measure_width(text: str) -> int:
    """The number of columns of a terminal that a text takes."""
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.combining(each) != 0 for each in text)


def fit_width(text: str, columns: int) -> str:
    """The text, cut and padded to a number of columns."""
    if measure_width(text) > columns:
        while measure_width(text) > columns - 1:
            text = text[:-1]
        text += "…"
    return text + " " * (columns - measure_width(text))


def name_token(token: int, text: Optional[str], most: int = 40) -> str:
    """A token as its text in quotation marks, or as its id."""
    if text is None:
        return str(token)
    quoted = escape_text(text, most).replace('"', '\\"')
    return f'"{quoted}"'


def format_number(value: float) -> str:
    """A value in nats."""
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3g}"


def format_share(value: float) -> str:
    """A probability."""
    if value == 0 or value >= 0.00995:
        return f"{value:.4f}"
    return f"{value:.2g}"


def format_parameter(value: Parameter) -> str:
    """A parameter; floats are those of float32, with the digits that were written."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def format_parameters(rule: RuleEffect) -> str:
    """The parameters of a rule: the first is a value alone, others have their names."""
    parts: list[str] = []
    for name, value in rule.parameters.items():
        text = format_parameter(value)
        short = name[len(rule.name) + 1 :] if name.startswith(f"{rule.name}_") else name
        parts.append(f"{short} {text}" if parts else text)
    return ", ".join(parts if rule.active else parts[:1])


def describe_effect(rule: RuleEffect) -> str:
    """The changes of a rule that are no removals; empty if there are none."""
    if rule.shift is not None:
        return f"lowers {count_tokens(rule.lowered)} by {-rule.shift:.4f} nats"
    if rule.changed:
        return f"changes the logits of {count_tokens(rule.changed)}"
    return ""


def count_tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def describe_margin(step: DrawStep) -> str:
    """The margin of the winner."""
    if step.winner is None:
        return f"no token: {step.description}"
    if step.runner_up is None or step.margin is None:
        return "the only token that remained"
    other = name_token(step.runner_up.token, step.runner_up.text, 16)
    return f"{format_number(step.margin)} nats ahead of {other}"

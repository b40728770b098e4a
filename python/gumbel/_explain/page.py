# SPDX-License-Identifier: Apache-2.0
"""Explained draws as one page of HTML, which loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence

from .charts import describe_rule, format_distribution, format_race
from .results import DrawStep, RuleEffect, Survivor
from .style import SCRIPT, STYLE
from .labels import (
    count_tokens,
    describe_effect,
    describe_margin,
    escape_text,
    format_number,
    format_parameters,
    format_share,
    name_token,
)

_MARKER = (
    '<marker id="{0}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
    ' markerUnits="userSpaceOnUse" orient="auto"><path class="{1}" d="M0 0.5L8 4L0 7.5z"/></marker>'
)
_MARKERS = (
    '<svg width="0" height="0" style="position:absolute;width:0" aria-hidden="true"><defs>'
    f"{_MARKER.format('a', 'stem')}{_MARKER.format('aw', 'tip')}</defs></svg>"
)
_COLUMNS = ("token", "text", "logit", "value", "p", "noise", "score")


def format_page(vocab_size: int, steps: Sequence[DrawStep]) -> str:
    """The page."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    several = len(steps) > 1
    title = "Draws of {} tokens".format(len(steps)) if several else "Draw of a token"
    return "\n".join((
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{_MARKERS}",
        f'<header><h1>{title}</h1><p class="lead">Vocabulary of {vocab_size} tokens. Each '
        "rule removes tokens or changes values. The draw adds Gumbel noise to the value of each "
        "token that remains; the largest score wins.</p></header>",
        _format_links(steps) if several else "",
        *(_format_step(step) for step in steps),
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n",
    ))  # fmt: skip


def _format_links(steps: Sequence[DrawStep]) -> str:
    """The text: one link for each token."""
    links = []
    for step in steps:
        kind, text = "", "no token"
        if step.winner is None:
            kind = ' class="none"'
        elif step.winner.text is None:
            text = str(step.winner.token)
        else:
            text = escape_text(step.winner.text) or "(empty)"
        links.append(f'<a{kind} href="#step-{step.row}"><code>{html.escape(text)}</code></a>')
    return f'<nav aria-label="Tokens">{"".join(links)}</nav>\n<div class="turn" hidden></div>'


def _format_step(step: DrawStep) -> str:
    margin = html.escape(describe_margin(step))
    heading = f"Row {step.row}: {margin}"
    if step.winner is not None:
        name = html.escape(name_token(step.winner.token, step.winner.text))
        heading = f"<code>{name}</code>"
        number = "" if step.winner.text is None else f"Token {step.winner.token}, "
        margin = f"{number}p = {format_share(step.winner.probability)}, {margin}"
    about = (
        f"row {step.row}, position {step.position}, seed {step.seed}, order "
        f"{html.escape(escape_text(step.order, 200))}"
    )
    parts = [f'<section id="step-{step.row}"><h2>{heading}</h2>']
    if step.winner is not None:
        parts.append(f"<p>{margin}</p>")
    parts.append(f'<p class="lead">{about}</p>')
    if step.greedy and step.winner is not None:
        parts.append("<p>Greedy (temperature 0): no rules and no noise. The largest logit is drawn."
                     "</p>")  # fmt: skip
    if step.rules:
        rules = "".join(map(_format_rule, step.rules))
        parts.append(f'<h3>Rules</h3><ol class="rules">{rules}</ol>')
    if step.winner is not None:
        parts.append(_format_charts(step))
    return "".join((*parts, "</section>"))


def _format_rule(rule: RuleEffect) -> str:
    name, parameters = html.escape(rule.name), html.escape(format_parameters(rule))
    counts = f"{rule.before} → {rule.after}" if rule.removed else count_tokens(rule.after)
    kind = "" if rule.active else ' class="off"'
    notes = (describe_rule(rule), describe_effect(rule))
    small = "; ".join(html.escape(note) for note in notes if note)
    small = f"<small>{small}</small>" if small else ""
    off = "" if rule.active else " (off)"
    return (
        f"<li{kind}><span>{name} <code>{parameters}</code>{off}</span>"
        f'<span class="count">{counts}</span>{small}</li>'
    )


def _format_charts(step: DrawStep) -> str:
    removed = '<i class="key g"></i>removed' if step.kept < step.rules[0].after else ""
    rest = step.kept - len(step.survivors)
    more = f" {len(step.survivors)} of {count_tokens(step.kept)} are listed." if rest else ""
    noise = "Bars are values after all rules."
    if not step.greedy:
        noise = "Bars are values after all rules, arrows the noise; only differences matter."
    return (
        '<h3>Probabilities before the rules</h3><p class="lead">Logarithmic scale.'
        f'<i class="key w"></i>drawn<i class="key"></i>kept{removed}</p>'
        f"{format_distribution(step)}<h3>Scores</h3>"
        f'<p class="lead">{noise}{more}</p>{format_race(step)}'
        f"<details><summary>Table of the scores</summary>{_format_table(step)}</details>"
    )


def _format_table(step: DrawStep) -> str:
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    rows = "".join(f"<tr>{_format_cells(each)}</tr>" for each in step.survivors)
    return f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def _format_cells(each: Survivor) -> str:
    text = "" if each.text is None else html.escape(name_token(each.token, each.text, 20))
    noise = "none" if each.noise is None else format_number(each.noise)
    cells = (str(each.token), text, format_number(each.logit), format_number(each.value),
             format_share(each.probability), noise, format_number(each.score))  # fmt: skip
    return "".join(f"<td>{cell}</td>" for cell in cells)

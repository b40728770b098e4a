# SPDX-License-Identifier: Apache-2.0
"""Results of explain_draw(): the parts of a DrawExplanation."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Optional, Union

Parameter = Union[int, float, bool]


@dataclass(frozen=True)
class RankedToken:
    """A token in the order of probability, with its probability before a rule."""

    token: int  #: token id
    text: Optional[str]  #: its text; None without a vocabulary
    probability: float  #: its probability before the rule, or before all rules
    removed_by: Optional[str] = None  #: name of the rule that removed it; None: it is a survivor


@dataclass(frozen=True)
class RuleEffect:
    """The effect of a rule, or of "logits processing": masks, bans, bias and penalties."""

    name: str  #: name of the rule, as in `order`
    parameters: dict[str, Parameter]  #: its parameters, {name: value of this row}
    active: bool  #: False: the rule is off and did nothing
    before: int  #: number of tokens before the rule
    after: int  #: number of tokens after it
    mass: float  #: probability that the rule removed, by the distribution before it
    examples: tuple[RankedToken, ...] = ()  #: the likeliest tokens that it removed, likeliest first
    changed: int = 0  #: number of tokens that logits processing kept with another logit
    lowered: int = 0  #: number of tokens whose values xtc lowered
    shift: Optional[float] = None  #: the constant, in nats, that xtc added to these; None: none

    @property
    def removed(self) -> int:
        """Number of tokens that the rule removed."""
        return self.before - self.after


@dataclass(frozen=True)
class Survivor:
    """A token that remained after all rules, with its score in the draw."""

    token: int  #: token id
    text: Optional[str]  #: its text; None without a vocabulary
    logit: float  #: logit of the input
    value: float  #: transformed logit z after all rules, in nats
    probability: float  #: probability of the token in this draw
    noise: Optional[float]  #: Gumbel noise g, in nats; None: the row is greedy and has none
    score: float  #: z + g, rounded to float32, in nats


@dataclass(frozen=True)
class DrawStep:
    """The draw of one row of logits."""

    row: int  #: row of the logits
    seed: int  #: seed of the row
    position: int  #: position of the row
    status: str  #: name of the row's RowStatus: "OK", or the reason why there is no token
    description: str  #: the status in words
    greedy: bool  #: True: temperature 0, so that neither rules nor noise apply
    order: str  #: the order of rules, as it was given
    kept: int  #: number of tokens after all rules
    rules: tuple[RuleEffect, ...]  #: logits processing, then the rules in their order
    ranking: tuple[RankedToken, ...]  #: the likeliest tokens before the rules
    survivors: tuple[Survivor, ...]  #: likeliest first; the winner and the runner-up are among them
    winner: Optional[Survivor]  #: the token that was drawn; None: no token
    runner_up: Optional[Survivor]  #: the token of the second score; None: only one token remained

    @property
    def margin(self) -> Optional[float]:
        """The winner's score minus the runner-up's, in nats; None without a runner-up."""
        if self.winner is None or self.runner_up is None:
            return None
        return self.winner.score - self.runner_up.score


def to_plain(value: Any) -> Any:
    """A value of plain types, with properties and without infinite numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: to_plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [to_plain(each) for each in value]
    if not is_dataclass(value):
        return value
    found = {each.name: to_plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, RuleEffect):
        found["removed"] = value.removed
    if isinstance(value, DrawStep):
        found["margin"] = to_plain(value.margin)
        found["winner"] = None if value.winner is None else value.winner.token
        found["runner_up"] = None if value.runner_up is None else value.runner_up.token
    return found

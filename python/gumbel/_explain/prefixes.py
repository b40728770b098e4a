# SPDX-License-Identifier: Apache-2.0
"""The rules of a row's order, and the values of a row after the first of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from .._calls.sample_calls import process_logits
from .._inputs.numbers import is_list
from .._inputs.programs import Order, read_orders
from .._inputs.tensors import to_numpy
from .results import Parameter

Floats = NDArray[np.float32]

# {rule: {parameter: the value that is off}}; the first parameter turns the rule on.
RULES: dict[str, dict[str, Any]] = {
    "temperature": {
        "temperature": 1.0, "temperature_range": 0.0, "temperature_exponent": 1.0
    },
    "min_p": {"min_p": 0.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
    "typical_p": {"typical_p": 1.0},
    "top_n_sigma": {"top_n_sigma": 0.0},
    "epsilon": {"epsilon": 0.0},
    "eta": {"eta": 0.0},
    "top_a": {"top_a": 0.0},
    "p_less": {"p_less": False},
    "surprise": {"surprise": float("inf")},
    "xtc": {"xtc_probability": 0.0, "xtc_threshold": 0.1, "xtc_keep": None},
    "smoothing": {"smoothing_factor": 0.0, "smoothing_curve": 1.0},
    "adaptive_p": {"adaptive_target": -1.0},
}  # fmt: skip
RULE_PARAMETERS = frozenset(name for each in RULES.values() for name in each)
# Parameters of the draw, which do not change the values of a row.
DRAW_PARAMETERS = frozenset(("seed", "position", "first_sample", "domain"))
# Lists of tokens, of which a call takes one for all rows or one for each row.
TOKEN_LISTS = (
    *("allowed", "banned", "logit_bias", "late_bias", "prompt_tokens", "output_tokens"),
    "xtc_keep",
)
_WITHOUT_MIN_KEEP = ("top_k", "temperature", "smoothing", "adaptive_p")
_JOINT = ("temperature", "top_k", "top_p", "min_p")
_JOINT_RULES = {"joint": _JOINT, "sglang": _JOINT}


def select_row(value: Any, row: int) -> Any:
    """The entry of a row in a row parameter, which is one number or one for each row."""
    value = to_numpy("parameter", value)
    if is_list(value) or (isinstance(value, np.ndarray) and value.ndim):
        value = value[row if len(value) > 1 else 0]
    return value.item() if isinstance(value, (np.generic, np.ndarray)) else value


def store_lists(sampling: dict[str, Any]) -> None:
    """Replace iterators among the token lists by lists, because several calls read them."""
    for name in TOKEN_LISTS:
        value = sampling.get(name)
        if isinstance(value, Iterator):
            value = sampling[name] = list(value)
        if isinstance(value, list) and any(isinstance(each, Iterator) for each in value):
            sampling[name] = [list(each) if isinstance(each, Iterator) else each for each in value]


def select_list(value: Any, row: int) -> Any:
    """The token list of a row: `value` is one list for all rows, or a sequence of one for each."""
    value = to_numpy("parameter", value)
    if isinstance(value, np.ndarray) and value.ndim == 2:
        return value[row]
    if is_list(value) and len(value) and not isinstance(value[0], (int, np.integer)):
        return value[row]
    return value


class RowRules:
    """The rules of one row in their order, and their parameters.

    logits     [T, V] array or tensor.
    row        the row, in [0, T).
    sampling   keyword arguments of sample_logits() that are valid for these logits.
    """

    def __init__(self, logits: Any, row: int, sampling: dict[str, Any]) -> None:
        self.logits, self.row = logits[row : row + 1], row
        order = self._read_order(sampling)
        self.order_name = order.name
        self.order = order.rules or _JOINT_RULES.get(order.name, (*_JOINT[1:], _JOINT[0]))
        self.given = {name: value for name, value in sampling.items() if name in RULE_PARAMETERS}
        self.shared = {
            name: value
            for name, value in sampling.items()
            if name not in RULE_PARAMETERS and name not in DRAW_PARAMETERS
        }
        self.shared.update(slots=[row], num_slots=len(logits))
        for name in TOKEN_LISTS:
            for values in (self.given, self.shared):
                if values.get(name) is not None:
                    values[name] = select_list(values[name], row)
        self.min_keep = select_row(sampling.get("min_keep", 1), row)
        self.greedy = select_row(sampling.get("temperature", 1.0), row) == 0

    def _read_order(self, sampling: dict[str, Any]) -> Order:
        """The order of the row."""
        program = sampling.get("program")
        orders = read_orders(sampling.get("order", "min_p,top_k,top_p"), program is not None)
        return orders[0 if program is None else select_row(program, self.row)]

    def read_parameters(self, rule: str) -> dict[str, Parameter]:
        """The parameters of a rule for this row; without parameters of less use that are off."""
        found = {}
        for place, (name, off) in enumerate(RULES[rule].items()):
            if name == "xtc_keep":
                continue
            value = select_row(self.given.get(name, off), self.row)
            if not isinstance(value, (bool, int, float)):
                value = float(value)  # a Fraction, for instance
            if place == 0 or value != off or name == "xtc_threshold":
                found[name] = value
        if self.min_keep != 1 and rule not in _WITHOUT_MIN_KEEP:
            found["min_keep"] = self.min_keep
        return found

    def is_active(self, rule: str) -> bool:
        """Whether a rule is on for this row."""
        values = self.read_parameters(rule)
        if rule == "temperature":
            return values["temperature"] != 1 or values.get("temperature_range", 0) != 0
        if rule == "xtc" and values["xtc_threshold"] > 0.5:
            return False
        if rule == "adaptive_p":
            return bool(values["adaptive_target"] >= 0)
        name, off = next(iter(RULES[rule].items()))
        return bool(values[name] != off)

    def compute_values(self, rules: Sequence[str], without: Optional[str] = None) -> Floats:
        """The values [V] of the row after these rules, which begin the order; -inf: removed.

        Later rules have parameters that are off. `without` is one rule more that is off.
        """
        names = {name for rule in rules if rule != without for name in RULES[rule]}
        given = {name: value for name, value in self.given.items() if name in names}
        found = process_logits(self.logits, **given, **self.shared)
        values: Floats = np.asarray(to_numpy("logits", found))[0]
        return values

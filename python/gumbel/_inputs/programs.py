# SPDX-License-Identifier: Apache-2.0
"""Orders of sampling rules, which the library runs as an order of truncation or as programs."""

from __future__ import annotations

import ctypes
import functools
import inspect
from typing import Any, NamedTuple, Optional, Tuple

import numpy as np

from .. import _abi
from .numbers import format_value, get_length, is_list, is_off, read_flag


class Order(NamedTuple):
    """An order of rules."""

    name: str
    value: Optional[int]  # the gumbel_order of temperature, top_k, top_p and min_p; None: none
    rules: Tuple[str, ...]  # of its program; empty: the rules are joint, and are no program

    def describe(self) -> str:
        return f"the order {self.name!r}"


class RuleParameter(NamedTuple):
    """A row parameter of programs."""

    rule: Optional[str]  # the rule that reads it; None: several rules
    off: Any
    turns_on: bool = True  # the rule is on if this parameter is not off
    dtype: type = np.float32


# The row parameters of gumbel_programs, but for `program`.
ROW_PARAMETERS = {
    "typical_p": RuleParameter("typical_p", 1.0),
    "top_n_sigma": RuleParameter("top_n_sigma", 0.0),
    "epsilon": RuleParameter("epsilon", 0.0),
    "eta": RuleParameter("eta", 0.0),
    "top_a": RuleParameter("top_a", 0.0),
    "surprise": RuleParameter("surprise", float("inf")),
    "xtc_probability": RuleParameter("xtc", 0.0),
    "xtc_threshold": RuleParameter("xtc", 0.1, turns_on=False),
    "smoothing_factor": RuleParameter("smoothing", 0.0),
    "smoothing_curve": RuleParameter("smoothing", 1.0, turns_on=False),
    "adaptive_target": RuleParameter("adaptive_p", -1.0),
    "temperature_range": RuleParameter("temperature", 0.0),
    "temperature_exponent": RuleParameter("temperature", 1.0),
    "min_keep": RuleParameter(None, 1, turns_on=False, dtype=np.int32),
}
# All parameters of programs.
PARAMETERS = (*ROW_PARAMETERS, "p_less", "xtc_keep", "program")

_FIRST = ("temperature", "min_p", "top_k", "top_p")
_HF = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon", "eta")
_LLAMA = ("top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature")
_WEBUI = (
    *("top_n_sigma", "temperature", "smoothing", "top_k", "top_p", "typical_p", "epsilon", "eta"),
    *("top_a", "min_p", "surprise", "xtc"),
)

# Orders with a name. An engine's order has all rules of the engine.
ORDERS = {
    name: Order(name, value, rules)
    for name, value, rules in (
        ("min_p,top_k,top_p", _abi.ORDER_MIN_P_TOP_K_TOP_P, _FIRST),
        ("joint", _abi.ORDER_JOINT, ()),
        ("before_temperature", _abi.ORDER_BEFORE_TEMPERATURE, (*_FIRST[1:], "temperature")),
        (
            "top_k,top_p,min_p",
            _abi.ORDER_TOP_K_TOP_P_MIN_P,
            ("temperature", "top_k", "top_p", "min_p"),
        ),
        (
            "top_k,top_p,min_p,temperature",
            _abi.ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE,
            ("top_k", "top_p", "min_p", "temperature"),
        ),
        ("joint,temperature", _abi.ORDER_JOINT_TEMPERATURE, ()),
        ("vllm", _abi.ORDER_MIN_P_TOP_K_TOP_P, _FIRST),
        ("hf", _abi.ORDER_TOP_K_TOP_P_MIN_P, _HF),
        ("transformers", _abi.ORDER_TOP_K_TOP_P_MIN_P, _HF),
        ("llama.cpp", _abi.ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE, _LLAMA),
        ("sglang", _abi.ORDER_JOINT, ()),
        ("mlx", _abi.ORDER_JOINT_TEMPERATURE, ()),
        ("exllamav3", _abi.ORDER_MIN_P_TOP_K_TOP_P, _FIRST),
        ("text-generation-webui", _abi.ORDER_TOP_K_TOP_P_MIN_P, _WEBUI),
    )
}


def read_orders(order: Any, several: bool) -> Tuple[Order, ...]:
    """The orders of a request; `several`: `order` is a list of them, one for each program."""
    if isinstance(order, str) and not several:
        return (ORDERS.get(order) or _parse_rules("order", order),)
    if several:
        count = get_length(order) if is_list(order) else None
        if count is None:
            raise ValueError("program: requires a list of orders as `order`")
        if not 1 <= count <= _abi.PROGRAMS_MAX:
            raise ValueError(f"order: has {count} orders, expected 1 to {_abi.PROGRAMS_MAX}")
        return tuple(_read_one(f"order[{i}]", each) for i, each in enumerate(order))
    return (_read_one("order", order),)


def _read_one(name: str, order: Any) -> Order:
    """One order: its name, or its rules as a string or a list."""
    if isinstance(order, str):
        found = ORDERS.get(order) or _parse_rules(name, order)
        if not found.rules and name != "order":
            raise ValueError(f"{name}: {order!r} is a joint order, which is no program")
        return found
    if not is_list(order):
        expected = ", ".join(map(repr, ORDERS))
        raise ValueError(f"{name}: {format_value(order)} is none of {expected}, or a list of rules")
    if (get_length(order) or 0) > _abi.PROGRAM_LENGTH:
        raise ValueError(f"{name}: lists {get_length(order)} rules; expected each once")
    rules = tuple(order)
    for rule in rules:
        if not isinstance(rule, str) or "," in rule or rule in ORDERS:
            advice = "; a list of orders requires program=" if name == "order" else ""
            raise ValueError(f"{name}: {format_value(rule)} is no rule{advice}")
    return _parse_rules(name, ",".join(rules))


@functools.lru_cache(maxsize=256)
def _parse_rules(name: str, text: str) -> Order:
    """An order that lists its rules, separated by commas; the temperature is first if missing."""
    rules = tuple(rule.strip() for rule in text.split(","))
    for place, rule in enumerate(rules):
        if rule not in _abi.PROGRAM_RULES:
            raise ValueError(f"{name}: {_explain_unknown(text, rule, len(rules))}")
        if rule in rules[:place]:
            raise ValueError(f"{name}: lists {rule!r} twice")
        if "adaptive_p" in rules[:place]:
            raise ValueError(f"{name}: lists {rule!r} after 'adaptive_p', which must be last")
        if "xtc" in rules[:place] and rule == "adaptive_p":
            raise ValueError(f"{name}: lists both 'xtc' and 'adaptive_p'; use one of them")
        if "xtc" in rules[:place] and rule != "temperature":
            raise ValueError(f"{name}: lists {rule!r} after 'xtc'; only 'temperature' may follow")
    if "temperature" not in rules:
        rules = ("temperature", *rules)
    return Order(text, None, rules)


def _explain_unknown(text: str, rule: str, count: int) -> str:
    if count == 1:
        expected = ", ".join(map(repr, (*ORDERS, *_abi.PROGRAM_RULES)))
        return f"{format_value(text)} is none of {expected}"
    if rule == "joint":
        return "'joint' is not combined with other rules; use 'joint' or 'joint,temperature'"
    return f"{format_value(rule)} is none of the rules {', '.join(map(repr, _abi.PROGRAM_RULES))}"


def check_listed(orders: Tuple[Order, ...], parameter: str, rule: Optional[str]) -> None:
    """Raise ValueError for a parameter that no order reads; `rule` None: several rules read it."""
    if any(rule in order.rules or (rule is None and order.rules) for order in orders):
        return
    found = orders[0].describe() if len(orders) == 1 else "none of the orders"
    if len(orders) == 1 and not orders[0].rules:
        raise ValueError(
            f"{parameter}: is not supported with {found}, whose rules are joint; top_k, top_p and "
            "min_p are"
        )
    verb = "does not list" if len(orders) == 1 else "lists"
    last = [each for each in ("xtc", "adaptive_p") if each in orders[0].rules]
    rules = [each for each in orders[0].rules if rule != "adaptive_p" or each != "xtc"]
    place = rules.index(last[0]) if last and last[0] in rules else len(rules)
    rules.insert(place, str(rule))
    raise ValueError(
        f"{parameter}: {found} {verb} {rule!r}; name the place of the rule, as in "
        f"order={','.join(rules)!r}"
    )


def check_temperature_range(orders: Tuple[Order, ...]) -> None:
    """Raise ValueError for an order that applies a dynamic temperature after xtc."""
    for order in orders:
        if "temperature" in order.rules[order.rules.index("xtc") :] if "xtc" in order.rules else ():
            raise ValueError(
                f"temperature_range: {order.describe()} lists 'temperature' after 'xtc'; with a "
                "range it must come before"
            )


@functools.lru_cache(maxsize=256)
def encode_programs(orders: Tuple[Order, ...], on: frozenset[str]) -> Any:
    """The bytes of the programs: of each order, the temperature and the rules that are on."""
    programs = b""
    for order in orders:
        rules = (rule for rule in order.rules if rule == "temperature" or rule in on)
        values = bytes(_abi.PROGRAM_RULES[rule] for rule in rules)
        programs += values.ljust(_abi.PROGRAM_LENGTH, b"\0")
    return ctypes.create_string_buffer(programs, len(programs))


def read_rules(orders: Tuple[Order, ...], programs: dict[str, Any]) -> dict[str, RuleParameter]:
    """The parameters of programs that are not off; ValueError for one that no order reads."""
    found = {
        name: kind
        for name, kind in ROW_PARAMETERS.items()
        if name in programs and not is_off(programs[name], kind.off)
    }
    if read_flag("p_less", programs.get("p_less", False)):
        found["p_less"] = RuleParameter("p_less", False)
    if programs.get("xtc_keep") is not None:
        found["xtc_keep"] = RuleParameter("xtc", None, turns_on=False)
    for name, kind in found.items():
        check_listed(orders, name, kind.rule)
    return found


def list_program_parameters() -> list[inspect.Parameter]:
    """The parameters of programs, for signatures."""
    kinds = {name: (kind.off, _annotate(kind)) for name, kind in ROW_PARAMETERS.items()}
    kinds["p_less"] = (False, "bool")
    kinds["xtc_keep"] = (None, "Optional[Tokens]")
    kinds["program"] = (None, "Optional[RowIntegers]")
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=off, annotation=kind)
        for name, (off, kind) in kinds.items()
    ]


def _annotate(kind: RuleParameter) -> str:
    return "RowIntegers" if kind.dtype is np.int32 else "RowFloats"

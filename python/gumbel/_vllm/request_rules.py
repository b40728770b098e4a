# SPDX-License-Identifier: Apache-2.0
"""Sampling rules of requests: SamplingParams.extra_args["gumbel"], in the words of gumbel.sample().

A front end checks the rules when a request arrives (admit()), so that a faulty one returns an
error and harms no engine. The request then carries temperature, top_k, top_p and min_p beside its
rules, and vLLM's own values are off: even if vLLM changes the logits before a draw, the program
reads unscaled logits that no rule has removed tokens from.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy as np
import torch
import vllm
from vllm.v1.engine.input_processor import InputProcessor

from .. import _abi
from .._calls import sample_calls as _sampling
from .._inputs.numbers import is_off
from .._inputs.programs import ROW_PARAMETERS, read_orders
from .._inputs.row_lists import RowLists
from . import dry
from .draft_requests import admit_under_drafts, find_front_end_hooks
from .draw_parameters import DrawParameters
from .rule_devices import find_rules_problem
from .support import refusal, returns_masks
from .vllm_versions import is_known

NAME = "gumbel"  # of the dictionary in extra_args
PLAIN = "vllm"  # the order of requests without rules
_OWN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}  # vLLM's, when they are off
_KEYS = ("order", *ROW_PARAMETERS, "p_less", *_OWN, *dry.KEYS)
_FIELD = f"extra_args[{NAME!r}]"
_stock_process = InputProcessor.process_inputs


@dataclass(frozen=True)
class Rules:
    """The rules of a request: those that are on, in their order, and their values."""

    order: str
    values: dict[str, float]
    dry: Optional[dry.Dry] = None

    @property
    def is_ranged(self) -> bool:
        return "temperature_range" in self.values

    @property
    def ends_in_temperature(self) -> bool:
        """Whether the temperature comes after xtc, which excludes a range of temperatures."""
        return self.order.endswith("xtc,temperature")


# ------------------------------------------------------------------------------- admission ----


def _load(given: Any) -> dict[str, Any]:
    """The dictionary of rules: a dict, or JSON, as vllm_xargs of a server passes no dictionary."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as fault:
            raise ValueError(f"{_FIELD}: is no JSON: {fault}") from None
    if not isinstance(given, dict):
        raise ValueError(f"{_FIELD}: is a {type(given).__name__}, expected a dictionary of rules")
    try:
        renamed = dry.rename_keys(given)
    except ValueError as fault:
        raise ValueError(f"{_FIELD}: {fault}") from None
    for key in renamed:
        if key not in _KEYS:
            raise ValueError(f"{_FIELD}: {key!r} is none of {', '.join(_KEYS)}")
    return renamed


def _find_refusal(config: Any) -> Optional[str]:
    """The reason why an engine of this configuration has no rules; None: it has."""
    reason = refusal(config)
    if reason is not None:
        return f"draws are vLLM's own, as {reason}"
    ranks = config.parallel_config.tensor_parallel_size
    reasons = {
        "are not supported with tensor parallelism": ranks > 1,
        "are not supported with drafts": config.speculative_config is not None,
        f"are not supported with vLLM {vllm.__version__}": not is_known(vllm.__version__),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    return reason or find_rules_problem(config)


def parse(given: Any, parameters: Any, tokenizer: Any = None) -> dict[str, Any]:
    """The rules of a request in the form that workers read; ValueError names what is wrong.

    parameters   SamplingParams: temperature, top_k, top_p and min_p, unless `given` has them.
    tokenizer    of the model; None: there is none.
    """
    values = dict(_load(given))
    try:
        repeats = dry.take_dry(values, tokenizer)
    except (TypeError, ValueError, OverflowError) as fault:
        raise ValueError(f"{_FIELD}: {fault}") from None
    for name, off in _OWN.items():
        values.setdefault(name, getattr(parameters, name))
    if isinstance(values["top_k"], int):
        values["top_k"] = max(values["top_k"], 0)  # -1: off
    order = values.pop("order", PLAIN)
    for name, value in values.items():
        if isinstance(value, bool) != (name == "p_less") or not isinstance(value, (int, float)):
            wanted = "True or False" if name == "p_less" else "a number"
            raise ValueError(f"{_FIELD}: {name}: is {value!r}, expected {wanted}")
    try:
        found = read_orders(order, False)[0]
        if not found.rules:
            raise ValueError(f"order: {order!r} is a joint order, which is no program")
        _sampling.sample_logits(np.zeros((1, 2), np.float32), order=order, seed=0, **values)
    except (TypeError, ValueError, OverflowError) as fault:
        raise ValueError(f"{_FIELD}: {fault}") from None
    on = {"p_less"} if values.pop("p_less", False) else set()
    offs = {**_OWN, **{name: kind.off for name, kind in ROW_PARAMETERS.items()}}
    values = {name: value for name, value in values.items() if not is_off(value, offs[name])}
    kinds = {name: kind.rule for name, kind in ROW_PARAMETERS.items() if kind.turns_on}
    on.update(kinds.get(name) or name for name in values)
    rules = [rule for rule in found.rules if rule == "temperature" or rule in on]
    values.setdefault("temperature", 1.0)
    p_less = {"p_less": True} if "p_less" in on else {}
    return {**values, "order": ",".join(rules), **p_less, **repeats}


def admit(parameters: Any, config: Any, tokenizer: Any = None) -> None:
    """Check the rules of a request's own SamplingParams, and put them into the workers' form."""
    given = (getattr(parameters, "extra_args", None) or {}).get(NAME)
    if given is None:
        return
    reason = _find_refusal(config)
    if reason is not None:
        raise ValueError(f"{_FIELD}: {reason}")
    values = parse(given, parameters, tokenizer)
    if values["temperature"] == 0 and returns_masks(config):
        raise ValueError(f"{_FIELD}: temperature: is 0, but sampling masks are requested")
    if values["temperature"] == 0 and not dry.read_dry(values):  # greedy rows skip their program
        parameters.extra_args = {k: v for k, v in parameters.extra_args.items() if k != NAME}
        parameters.temperature = 0.0
        return
    parameters.extra_args = {**parameters.extra_args, NAME: values}
    for name, off in _OWN.items():
        setattr(parameters, name, off)


@functools.wraps(_stock_process)
def _process_inputs(self: Any, *arguments: Any, **named: Any) -> Any:
    """A request, with checked rules."""
    with admit_under_drafts(self.vllm_config):
        request = _stock_process(self, *arguments, **named)
    if request.sampling_params is not None:
        admit(request.sampling_params, self.vllm_config, self.tokenizer)
    return request


HOOKS = ((InputProcessor, "process_inputs", _process_inputs), *find_front_end_hooks())

# ----------------------------------------------------------------------------------- draws ----


def read(parameters: Any) -> Optional[Rules]:
    """The rules of an admitted request's SamplingParams."""
    values = (getattr(parameters, "extra_args", None) or {}).get(NAME)
    if not isinstance(values, dict) or not {"order", "temperature"} <= values.keys():
        return None
    others = ("order", "p_less", *dry.KEYS)
    numbers = {name: value for name, value in values.items() if name not in others}
    return Rules(values["order"], numbers, dry.read_dry(values))


class _Part:
    """Rows that one call can draw: at most 16 programs, and no conflict of the temperature."""

    def __init__(self) -> None:
        self.orders = [PLAIN]
        self.rules: dict[int, Rules] = {}

    def takes(self, rules: Rules) -> bool:
        """Whether a call of these rows and one with `rules` is possible."""
        known = self.rules.values()
        if rules.is_ranged and any(it.ends_in_temperature for it in known):
            return False
        if rules.ends_in_temperature and any(it.is_ranged for it in known):
            return False
        return rules.order in self.orders or len(self.orders) < _abi.PROGRAMS_MAX

    def add(self, entry: int, rules: Rules) -> None:
        if rules.order not in self.orders:
            self.orders.append(rules.order)
        self.rules[entry] = rules


Hold = Callable[[str, torch.Tensor], torch.Tensor]


class BatchRules:
    """The rules of a batch.

    entries      of each row, the entry of DrawParameters.rows that it has.
    rules        of the entries that have rules.
    dry          of the entries that have DRY.
    lists        of the rows, for DRY; whoever makes them updates them at each step.
    """

    def __init__(self, entries: Iterable[int], rules: dict[int, Rules]) -> None:
        self.entries = list(entries)
        self.dry = {entry: it.dry for entry, it in rules.items() if it.dry is not None}
        self.lists: Optional[RowLists] = None
        self.parts: list[_Part] = [_Part()]
        for entry, found in rules.items():
            part = next((it for it in self.parts if it.takes(found)), None)
            if part is None:
                self.parts.append(part := _Part())
            part.add(entry, found)

    def add_to(self, parameters: DrawParameters, hold: Optional[Hold] = None) -> DrawParameters:
        """`parameters` with these rules.

        hold         copies a tensor, by name, to one that stays in its place.
        """
        drawn = [
            replace(
                parameters,
                rows=_rows_of(part, parameters.rows, functools.partial(_held, hold, place)),
                orders=tuple(part.orders),
                lists=self.lists,
            )
            for place, part in enumerate(self.parts)
        ]
        device = parameters.rows["temperature"].device
        drawn[0].others = [
            (torch.tensor([entry in part.rules for entry in self.entries], device=device), more)
            for part, more in zip(self.parts[1:], drawn[1:])
        ]
        return drawn[0]


def _held(hold: Optional[Hold], place: int, name: str, values: torch.Tensor) -> torch.Tensor:
    return values if hold is None else hold(f"{place} {name}", values)


def _rows_of(part: _Part, rows: dict[str, torch.Tensor], hold: Hold) -> dict[str, torch.Tensor]:
    """Row parameters of a call, in which the rows of `part` have their rules."""
    base = rows["temperature"]
    changed = dict(rows)
    index = torch.tensor(list(part.rules), dtype=torch.int64, device=base.device)
    numbers = {order: place for place, order in enumerate(part.orders)}
    places = [numbers[rules.order] for rules in part.rules.values()]
    columns: dict[str, tuple[Any, list[Any]]] = {"program": (0, places)}
    names = {name for rules in part.rules.values() for name in rules.values}
    for name in sorted(names | (_OWN.keys() & rows.keys())):
        off = _OWN[name] if name in _OWN else ROW_PARAMETERS[name].off
        columns[name] = (off, [rules.values.get(name, off) for rules in part.rules.values()])
    for name, (off, values) in columns.items():
        kind = ROW_PARAMETERS[name].dtype if name in ROW_PARAMETERS else None
        whole = name in ("program", "top_k") or kind is np.int32
        dtype = torch.int32 if whole else torch.float32
        found = rows.get(name)
        found = base.new_full((len(base),), off, dtype=dtype) if found is None else found.to(dtype)
        more = torch.tensor(values, dtype=dtype, device=base.device)
        changed[name] = hold(name, found.index_copy(0, index, more))
    return changed

# SPDX-License-Identifier: Apache-2.0
"""The truncation of a request: its rules, their order, and programs."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .. import _abi
from .arguments import read_row_integers, read_token_lists
from .arrays import NumpyArrays
from .numbers import is_off, read_choice
from .parameters import Orders, RowFloats, RowIntegers
from .programs import (
    ORDERS,
    ROW_PARAMETERS,
    Order,
    RuleParameter,
    check_listed,
    check_temperature_range,
    encode_programs,
    read_orders,
    read_rules,
)
from .request import Request
from .tensors import is_tensor

TIES = {"all": _abi.TIES_ALL, "exact": _abi.TIES_EXACT}


def set_truncation(
    request: Request,
    min_p: RowFloats,
    top_k: RowIntegers,
    top_p: RowFloats,
    order: Orders,
    ties: str,
    programs: dict[str, Any],
) -> None:
    """Set the truncation of the request, if there is any."""
    known = ORDERS.get(order) if type(order) is str and not programs else None
    orders = (known,) if known else read_orders(order, programs.get("program") is not None)
    tie_rule = read_choice("ties", ties, TIES)
    rules = read_rules(orders, programs) if programs else {}
    if not rules and is_off(min_p, 0.0) and is_off(top_k, 0) and is_off(top_p, 1.0):
        if programs.get("program") is not None:
            _check_program(request, programs["program"], len(orders))
        return
    truncation = _abi.Truncation(ties=tie_rule)
    limits = {
        "min_p": request.set_row_parameter(truncation, "min_p", "min_p", min_p, 0.0, np.float32),
        "top_k": request.set_row_parameter(truncation, "top_k", "top_k", top_k, 0, np.int32),
        "top_p": request.set_row_parameter(truncation, "top_p", "top_p", top_p, 1.0, np.float32),
    }
    request.sampling.truncation = ctypes.pointer(truncation)
    if known is not None:
        truncation.order = known.value
    else:
        _set_orders(request, truncation, orders, limits, rules, programs)


def _check_program(request: Request, program: RowIntegers, count: int) -> None:
    """Raise TypeError or ValueError for programs of rows, of which there are `count`.

    Values on a GPU are not checked, and those on the host are not copied to one.
    """
    on_gpu = is_tensor(program) and program.is_cuda
    arrays = request.arrays if on_gpu else NumpyArrays(None, None)
    found, _ = read_row_integers("program", program, request.places, np.int32, arrays)
    if isinstance(found, np.ndarray) and (found >= count).any():
        row = int(np.argmax(found >= count))
        name = "program" if len(found) == 1 else f"program[{row}]"
        raise ValueError(f"{name}: is {found[row]}; it must be in 0..{count - 1}")


def _set_orders(
    request: Request,
    truncation: _abi.Truncation,
    orders: tuple[Order, ...],
    limits: dict[str, bool],
    rules: dict[str, RuleParameter],
    programs: dict[str, Any],
) -> None:
    """Set the order of a truncation, or its programs; `limits` has the fields that are set."""
    if not rules and programs.get("program") is None and orders[0].value is not None:
        truncation.order = orders[0].value
        return
    given = [name for name, is_set in limits.items() if is_set]
    for name in given:
        check_listed(orders, name, name)
    _set_programs(request, truncation, orders, given, rules, programs)


def _set_programs(
    request: Request,
    truncation: _abi.Truncation,
    orders: tuple[Order, ...],
    limits: list[str],
    rules: dict[str, RuleParameter],
    values: dict[str, Any],
) -> None:
    """Set the programs of a truncation: orders of the rules in `limits` and `rules`."""
    on = frozenset(kind.rule for kind in rules.values() if kind.turns_on and kind.rule)
    if "temperature_range" in rules and "xtc" in on:
        check_temperature_range(orders)
    encoded = encode_programs(orders, on.union(limits))
    structs = _abi.Programs(rules=ctypes.addressof(encoded), count=len(orders))
    request.held.append(encoded)
    for name, kind in rules.items():
        if name in ROW_PARAMETERS:
            request.set_row_parameter(structs, name, name, values[name], kind.off, kind.dtype)
    request.set_token_lists(
        structs, "xtc_keep", "xtc_keep", read_token_lists, values.get("xtc_keep")
    )
    if values.get("program") is not None:
        request.set_row_parameter(structs, "program", "program", values["program"], None, np.int32)
    truncation.programs = ctypes.pointer(structs)

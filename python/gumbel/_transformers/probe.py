# SPDX-License-Identifier: Apache-2.0
"""Tries whether a model's logits are what the library computes: a product, a scale, a soft-cap.

The model's own forward computes logits of synthetic hidden states, in place of those of its
decoder. The states are scaled for largest logits from 0.5 to 16384, so that a soft-cap, a clamp or
a normalisation shows at one scale or another, and all tokens of the vocabulary are compared.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Iterator, Optional

import torch
from transformers.modeling_outputs import BaseModelOutputWithPast

from .factors import list_candidates
from .head_parts import Parts

LARGEST = (0.5, 4.0, 32.0, 256.0, 2048.0, 16384.0)  # logits of the synthetic states, two rows each
ROWS = 2 * len(LARGEST)
# Of the largest logit of a row: what two ways to round the same logits may differ by. A model
# rounds up to three times in its own dtype, each time by half a unit in the last place.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# The same where hidden states come of two forwards.
FORWARD_TOLERANCES = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 2e-2}
# By how much the ratio of all logits to the expected ones may differ from 1: rounding averages out.
RATIO_TOLERANCES = {torch.float32: 1e-5, torch.float16: 2.5e-4, torch.bfloat16: 2e-3}


class _States(BaseModelOutputWithPast):
    """The output of a decoder, with hidden states alone. Everything else that is read is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def _give_states(base: Any, states: torch.Tensor) -> Iterator[list[int]]:
    """Have a decoder return these states [1, n, D], in this thread. Lists a 1 for each call."""
    calls: list[int] = []
    own, thread = base.forward, threading.get_ident()
    replaced = base.__dict__.get("forward")

    def forward(*given: Any, **named: Any) -> Any:
        if threading.get_ident() != thread:
            return own(*given, **named)
        calls.append(1)
        return _States(last_hidden_state=states)

    base.forward = forward
    try:
        yield calls
    finally:
        if replaced is None:
            del base.forward
        else:
            base.forward = replaced


def make_states(weight: torch.Tensor) -> torch.Tensor:
    """Hidden states [1, ROWS, D] whose largest products with the weights are LARGEST."""
    generator = torch.Generator().manual_seed(1)
    unit = torch.randn(ROWS, weight.shape[1], generator=generator).to(weight.device)
    products = torch.nn.functional.linear(unit.to(weight.dtype), weight).float()
    most = torch.nan_to_num(products).abs().amax(1)
    wanted = torch.tensor(LARGEST, device=weight.device).repeat(ROWS // len(LARGEST))
    factors = torch.where(most > 0, wanted / most, 1)
    room = torch.finfo(weight.dtype).max / 8 / unit.abs().amax(1)
    return (unit * torch.minimum(factors, room)[:, None]).to(weight.dtype)[None]


def find_factors(model: Any, parts: Parts) -> tuple[Optional[tuple[float, float]], str]:
    """The scale and the soft-cap of a model's logits; or None, and why they are not enough."""
    base, weight = parts.base, parts.weight
    states = make_states(weight)
    ids = torch.arange(ROWS, device=weight.device)[None] % len(weight)
    with _give_states(base, states) as calls:
        found = model(input_ids=ids, use_cache=False, return_dict=True).logits
    if len(calls) != 1:
        return None, "its forward does not call its decoder once"
    if tuple(found.shape) != (1, ROWS, len(weight)):
        return None, f"its logits have the shape {tuple(found.shape)}"
    raw = torch.nn.functional.linear(states, weight, parts.bias)[0].float()
    for scale, softcap in list_candidates(parts.values):
        expected = apply_factors(raw, scale, softcap)
        if _agree(found[0].float(), expected, weight.dtype):
            return (scale, softcap), ""
    return None, "they are not those of its head by any scale and soft-cap of its config"


def apply_factors(raw: torch.Tensor, scale: float, softcap: float) -> torch.Tensor:
    """What the library makes of products."""
    logits = raw * scale
    return softcap * torch.tanh(logits / softcap) if softcap else logits


def _agree(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether these logits [n, V] are the same, up to their rounding."""
    if not is_close(found, expected, TOLERANCES[dtype]):
        return False
    found, expected = torch.nan_to_num(found), torch.nan_to_num(expected)
    size = expected.abs().amax(1, keepdim=True).clamp(min=1e-30)
    found, expected = found / size, expected / size
    ratio = float((found * expected).sum() / (expected * expected).sum().clamp(min=1e-30))
    return not expected.any() or abs(ratio - 1) <= RATIO_TOLERANCES[dtype]


def is_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    """Whether logits [n, V] differ by no more than this part of the largest one of their row."""
    room = tolerance * torch.nan_to_num(expected).abs().amax(-1, keepdim=True)
    alike = ((found - expected).abs() <= room) | (found.isnan() & expected.isnan())
    return bool(alike.all())


def check_forward(model: Any, parts: Parts, factors: tuple[float, float]) -> str:
    """Why the decoder alone does not give the states that the head is given, on three tokens."""
    weight = parts.weight
    ids = torch.arange(1, 4, device=weight.device)[None] % len(weight)
    found = model(input_ids=ids, use_cache=False, return_dict=True).logits[0].float()
    hidden = parts.base(input_ids=ids, use_cache=False, return_dict=True).last_hidden_state
    if hidden.dtype != weight.dtype:
        return f"its hidden states are {hidden.dtype}, its head is {weight.dtype}"
    if hidden.device != weight.device:
        return f"its hidden states are on {hidden.device}, its head is on {weight.device}"
    raw = torch.nn.functional.linear(hidden, weight, parts.bias)[0].float()
    expected = apply_factors(raw, *factors)
    if found.shape == expected.shape and is_close(
        found, expected, FORWARD_TOLERANCES[weight.dtype]
    ):
        return ""
    return "its decoder alone gives other hidden states"

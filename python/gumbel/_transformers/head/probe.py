# SPDX-License-Identifier: Apache-2.0
"""Probes whether the library can compute a model's logits: a product, a scale and a soft-cap.

The model's own forward computes logits from synthetic hidden states in place of its decoder's. The
states are scaled so that the largest logits are 0.5 to 16384: a soft-cap, a clamp or a
normalisation has an effect at one scale or another. All tokens of the vocabulary are compared.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Iterable, Iterator, NamedTuple, Optional

import torch
from transformers.modeling_outputs import BaseModelOutputWithPast

from .factors import list_candidates
from .head_parts import HeadParts

LARGEST = (0.5, 4.0, 32.0, 256.0, 2048.0, 16384.0)  # largest logit of each synthetic state
ROWS = len(LARGEST)
SAMPLED = 1024  # number of weight rows that determine the scale of the states
# Largest difference by rounding, relative to the largest logit of a row. A model rounds up to three
# times in its own dtype, each time by half a unit in the last place.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# TOLERANCES for hidden states of two forward passes.
FORWARD_TOLERANCES = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 2e-2}
# Largest difference from 1 of the ratio of all logits to the expected ones; rounding averages out.
RATIO_TOLERANCES = {torch.float32: 1e-5, torch.float16: 2.5e-4, torch.bfloat16: 2e-3}


class _DecoderOutput(BaseModelOutputWithPast):
    """The output of a decoder with hidden states only; all other attributes are None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def _replace_output(decoder: Any, states: torch.Tensor) -> Iterator[list[int]]:
    """Context in which a decoder returns these states [1, n, D] in this thread; lists its calls."""
    calls: list[int] = []
    own, thread = decoder.forward, threading.get_ident()
    replaced = decoder.__dict__.get("forward")

    def forward(*given: Any, **named: Any) -> Any:
        if threading.get_ident() != thread:
            return own(*given, **named)
        calls.append(1)
        return _DecoderOutput(last_hidden_state=states)

    decoder.forward = forward
    try:
        yield calls
    finally:
        if replaced is None:
            del decoder.forward
        else:
            decoder.forward = replaced


def make_states(weight: torch.Tensor, scales: Iterable[float]) -> torch.Tensor:
    """Hidden states [1, ROWS, D] whose largest products with the weights are about LARGEST.

    They are smaller if the dtype cannot hold them multiplied by each of the scales.
    """
    generator = torch.Generator().manual_seed(1)
    unit = torch.randn(ROWS, weight.shape[1], generator=generator).to(weight.device)
    sample = weight[:: max(1, len(weight) // SAMPLED)]
    products = torch.nn.functional.linear(unit.to(weight.dtype), sample).float()
    most = torch.nan_to_num(products).abs().amax(1)
    wanted = torch.tensor(LARGEST, device=weight.device)
    largest = torch.finfo(weight.dtype).max / 8
    wanted = wanted.clamp(max=largest / max(1.0, *map(abs, scales)))
    factors = torch.where(most > 0, wanted / most, 1)
    room = largest / unit.abs().amax(1)
    return (unit * torch.minimum(factors, room)[:, None]).to(weight.dtype)[None]


class Factors(NamedTuple):
    """How logits are computed from products with the weights."""

    scale: float
    softcap: float
    vocab: int  # the head's first `vocab` tokens have logits

    def apply(self, products: torch.Tensor) -> torch.Tensor:
        """The logits [n, vocab] that the library computes from products [n, V]."""
        logits = products[:, : self.vocab] * self.scale
        return self.softcap * torch.tanh(logits / self.softcap) if self.softcap else logits


def find_factors(model: Any, parts: HeadParts, decoder: Any) -> tuple[Optional[Factors], str]:
    """The factors of a model's logits; or None, and the reason why there are none."""
    weight, candidates = parts.weight, list_candidates(parts.values)
    states = make_states(weight, [scale for scale, _ in candidates])
    ids = torch.arange(ROWS, device=weight.device)[None] % len(weight)
    with _replace_output(decoder, states) as calls:
        found = model(input_ids=ids, use_cache=False, return_dict=True).logits
    if len(calls) != 1:
        return None, f"its forward calls its {type(decoder).__name__} {len(calls)} times, not once"
    if found.shape[:-1] != (1, ROWS) or not 0 < found.shape[-1] <= len(weight):
        return None, f"its logits have the shape {tuple(found.shape)}"
    products = torch.nn.functional.linear(states, weight, parts.bias)[0].float()
    for scale, softcap in candidates:
        factors = Factors(scale, softcap, found.shape[-1])
        if _logits_agree(found[0].float(), factors.apply(products), weight.dtype):
            return factors, ""
    return None, "its logits are not products with the head by any scale and soft-cap of its config"


def _logits_agree(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether these logits [n, V] are equal, up to their rounding."""
    if not is_close(found, expected, TOLERANCES[dtype]):
        return False
    found, expected = torch.nan_to_num(found), torch.nan_to_num(expected)
    size = expected.abs().amax(1, keepdim=True).clamp(min=1e-30)
    found, expected = found / size, expected / size
    ratio = float((found * expected).sum() / (expected * expected).sum().clamp(min=1e-30))
    return not expected.any() or abs(ratio - 1) <= RATIO_TOLERANCES[dtype]


def is_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    """Whether logits [n, V] differ by at most `tolerance` times the largest one of their row."""
    room = tolerance * torch.nan_to_num(expected).abs().amax(-1, keepdim=True)
    alike = ((found - expected).abs() <= room) | (found.isnan() & expected.isnan())
    return bool(alike.all())


def check_forward(model: Any, parts: HeadParts, decoder: Any, factors: Factors) -> str:
    """The reason why the decoder's states are not the head's inputs, on three tokens; or ""."""
    weight = parts.weight
    ids = torch.arange(1, 4, device=weight.device)[None] % len(weight)
    found = model(input_ids=ids, use_cache=False, return_dict=True).logits[0].float()
    hidden = decoder(input_ids=ids, use_cache=False, return_dict=True).last_hidden_state
    if hidden.dtype != weight.dtype:
        return f"its hidden states are {hidden.dtype}, its head is {weight.dtype}"
    if hidden.device != weight.device:
        return f"its hidden states are on {hidden.device}, its head is on {weight.device}"
    products = torch.nn.functional.linear(hidden, weight, parts.bias)[0].float()
    expected = factors.apply(products)
    if found.shape == expected.shape and is_close(
        found, expected, FORWARD_TOLERANCES[weight.dtype]
    ):
        return ""
    return "its decoder alone returns other hidden states"

# SPDX-License-Identifier: Apache-2.0
"""The calls of flashinfer.sampling that give rows: probabilities, and logits that are masked."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch

from .calls import DTYPES, rows_of, transformed
from .limits import TEMPERATURE_MOST, limits_of

_TEMPERATURES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def softmax(
    logits: torch.Tensor,
    temperature: Optional[Union[torch.Tensor, float]] = None,
    enable_pdl: Optional[bool] = None,
) -> torch.Tensor:
    """The probabilities of logits / temperature: float32 [rows, V].

    temperature  a number > 0, or a floating-point tensor of one a row; None: 1. For 0, which is
                 equal probabilities to FlashInfer, and for less a number or a tensor on the CPU
                 raises ValueError; the values of a tensor on CUDA are not looked at, and a row
                 whose temperature is 0 has equal probabilities of all tokens but those of -inf.
    enable_pdl   is taken and changes nothing.

    ValueError for a tensor of another shape, length, device or dtype, TypeError for what is no
    number. A row with a NaN or +inf, or of -inf alone, is NaN throughout.
    """
    logits = rows_of("logits", logits)
    if temperature is None:
        return transformed("softmax", logits, {})
    if isinstance(temperature, torch.Tensor):
        if temperature.dtype not in _TEMPERATURES:
            raise ValueError(f"temperature: expected floating-point, got {temperature.dtype}")
        if not temperature.is_cpu:  # to the library 0 is greedy, and probabilities are those of 1
            temperature = temperature.float()
            temperature = temperature.where(temperature != 0, TEMPERATURE_MOST)
    given = limits_of(len(logits), logits.device, None, temperature=temperature)
    return transformed("softmax", logits, given)


def _renormalised(probs: torch.Tensor, **limits: Any) -> torch.Tensor:
    given = limits_of(len(probs), probs.device, None, **limits)
    return transformed("softmax", probs.float().log(), given)


def top_p_renorm_probs(
    probs: torch.Tensor, top_p: Union[torch.Tensor, float], is_deterministic: bool = False
) -> torch.Tensor:
    """Probabilities of the likeliest tokens that hold the share top_p; the others' are 0.

    float32 [rows, V]. is_deterministic is taken and changes nothing: it always is.
    """
    return _renormalised(rows_of("probs", probs), top_p=top_p)


def _asserted(rows: torch.Tensor) -> None:
    """AssertionError for a dtype that FlashInfer has no kernel for."""
    if rows.dtype not in DTYPES:
        raise AssertionError(
            f"Unsupported dtype {rows.dtype}, expected float32, float16, or bfloat16"
        )


def top_k_renorm_probs(
    probs: torch.Tensor, top_k: Union[torch.Tensor, int], is_deterministic: bool = False
) -> torch.Tensor:
    """Probabilities of the top_k likeliest tokens; the others' are 0.

    [rows, V] in the dtype of `probs`: float32, float16 or bfloat16, else AssertionError.
    """
    _asserted(probs)
    return _renormalised(rows_of("probs", probs), top_k=top_k).to(probs.dtype)


def top_k_mask_logits(logits: torch.Tensor, top_k: Union[torch.Tensor, int]) -> torch.Tensor:
    """Logits, -inf where they are below the top_k-th of their row.

    [rows, V] in the dtype of `logits`: float32, float16 or bfloat16, else AssertionError. A row
    with a NaN or +inf is NaN throughout.
    """
    _asserted(logits)
    rows = rows_of("logits", logits)
    given = limits_of(len(rows), rows.device, None, top_k=top_k)
    return transformed("process_logits", rows, given).to(logits.dtype)


top_p_renorm_prob = top_p_renorm_probs
top_k_renorm_prob = top_k_renorm_probs

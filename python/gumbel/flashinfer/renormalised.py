# SPDX-License-Identifier: Apache-2.0
"""The calls of flashinfer.sampling that return rows: probabilities, or masked logits."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch

from .calls import DTYPES, rows_of, transform_rows
from .limits import TEMPERATURE_MAX, limits_of

_TEMPERATURES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def softmax(
    logits: torch.Tensor,
    temperature: Optional[Union[torch.Tensor, float]] = None,
    enable_pdl: Optional[bool] = None,
) -> torch.Tensor:
    """The probabilities of logits / temperature: float32 [rows, V].

    temperature  a number > 0, or a floating-point tensor [rows]; None: 1. A number, or a tensor on
                 the CPU, with values <= 0 raises ValueError. Values of a tensor on CUDA are not
                 checked; a row with temperature 0 has equal probabilities of all tokens except
                 those of -inf, as in FlashInfer.
    enable_pdl   ignored.

    Raises ValueError for a tensor of another shape, device or dtype, and TypeError if `temperature`
    is not a number. A row with a NaN or +inf, or of -inf only, is all NaN.
    """
    logits = rows_of("logits", logits)
    if temperature is None:
        return transform_rows("softmax", logits, {})
    if isinstance(temperature, torch.Tensor):
        if temperature.dtype not in _TEMPERATURES:
            raise ValueError(f"temperature: expected floating-point, got {temperature.dtype}")
        if not temperature.is_cpu:  # the library treats 0 as greedy, and returns the softmax at 1
            temperature = temperature.float()
            temperature = temperature.where(temperature != 0, TEMPERATURE_MAX)
    given = limits_of(len(logits), logits.device, None, temperature=temperature)
    return transform_rows("softmax", logits, given)


def _renormalised(probs: torch.Tensor, **limits: Any) -> torch.Tensor:
    given = limits_of(len(probs), probs.device, None, **limits)
    return transform_rows("softmax", probs.float().log(), given)


def top_p_renorm_probs(
    probs: torch.Tensor, top_p: Union[torch.Tensor, float], is_deterministic: bool = False
) -> torch.Tensor:
    """Renormalised probabilities of the smallest set of likeliest tokens that sums to >= top_p.

    float32 [rows, V]; other tokens have 0. is_deterministic is ignored: results are deterministic.
    """
    return _renormalised(rows_of("probs", probs), top_p=top_p)


def _asserted(rows: torch.Tensor) -> None:
    """Raise AssertionError for a dtype that FlashInfer has no kernel for."""
    if rows.dtype not in DTYPES:
        raise AssertionError(
            f"Unsupported dtype {rows.dtype}, expected float32, float16, or bfloat16"
        )


def top_k_renorm_probs(
    probs: torch.Tensor, top_k: Union[torch.Tensor, int], is_deterministic: bool = False
) -> torch.Tensor:
    """Renormalised probabilities of the top_k likeliest tokens; other tokens have 0.

    [rows, V] in the dtype of `probs`: float32, float16 or bfloat16, else AssertionError.
    """
    _asserted(probs)
    return _renormalised(rows_of("probs", probs), top_k=top_k).to(probs.dtype)


def top_k_mask_logits(logits: torch.Tensor, top_k: Union[torch.Tensor, int]) -> torch.Tensor:
    """Logits with those below the top_k-th largest of their row set to -inf.

    [rows, V] in the dtype of `logits`: float32, float16 or bfloat16, else AssertionError. A row
    with a NaN or +inf is all NaN.
    """
    _asserted(logits)
    rows = rows_of("logits", logits)
    given = limits_of(len(rows), rows.device, None, top_k=top_k)
    return transform_rows("process_logits", rows, given).to(logits.dtype)


top_p_renorm_prob = top_p_renorm_probs
top_k_renorm_prob = top_k_renorm_probs

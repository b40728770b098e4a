# SPDX-License-Identifier: Apache-2.0
"""flashinfer.cake_top_k_top_p_sampling_from_probs(): top-k, then top-p, ties by lower id."""

from __future__ import annotations

from typing import Optional, Union

import torch

from .. import _abi
from .calls import draw_tokens, rows_of
from .limits import limits_of
from .sampling import WATCH
from .seeds import get_seed_and_offset, seeds_of
from .topk import TopKTieBreak, top_k as largest
from .watch import replace_missing

EXACT = (_abi.ORDER_MIN_P_TOP_K_TOP_P, _abi.TIES_EXACT)
SUPPORT_MAX = 1024  # columns of `workspace` and `renorm_out`


def cake_top_k_top_p_sampling_from_probs(
    probs: torch.Tensor,
    top_k: Union[int, torch.Tensor],
    top_p: Union[float, torch.Tensor],
    *,
    top_k_max: Optional[int] = None,
    generator: Optional[torch.Generator] = None,
    philox_seed: Optional[int] = None,
    philox_offset: Optional[int] = None,
    out: Optional[torch.Tensor] = None,
    renorm_out: Optional[torch.Tensor] = None,
    workspace: Optional[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = None,
    enable_pdl: bool = True,
) -> torch.Tensor:
    """Draw from probabilities with top_k, then top_p: exactly k tokens, the shortest nucleus.

    probs        float32 [rows, V].
    top_k, top_p numbers, or int32 and float32 tensors [rows].
    top_k_max    an upper bound of top_k, if that is a tensor and `workspace` or `renorm_out` is
                 passed; None: the largest top_k, for which the call waits.
    philox_seed, philox_offset
                 as `seed` and `offset` in gumbel.flashinfer.sampling; both or neither, else
                 ValueError. None: from `generator`.
    out          int32 [rows] for the tokens; None: a new tensor.
    workspace    (values float32 [rows, 1024], ids int32 [rows, 1024], counts int32 [rows]), which
                 receive the top_k likeliest tokens, largest first, ties by lower id. None: not
                 returned.
    renorm_out   float32 [rows, 1024], which receives the probabilities of these tokens in the draw,
                 0 for those that top_p removed. None: not returned.
    enable_pdl   ignored.

    Only the first counts[r] columns of row r are written. Returns the tokens int32 [rows]. Raises
    ValueError for top_k above 1024 with `workspace` or `renorm_out`.
    """
    if (philox_seed is None) != (philox_offset is None):
        raise ValueError("philox_seed and philox_offset must be given together")
    probs = rows_of("probs", probs)
    rows, place = len(probs), probs.device
    if philox_seed is None:
        philox_seed, philox_offset = get_seed_and_offset(rows * 32, generator, place)
    given = limits_of(rows, place, None, top_k=top_k, top_p=top_p)
    given.update(seeds_of(philox_seed, philox_offset, None, place, rows, 0))
    tokens = replace_missing(WATCH, draw_tokens(probs.float().log(), given, EXACT))
    if workspace is not None or renorm_out is not None:
        _write_support(probs, top_k, top_p, top_k_max, workspace, renorm_out)
    return tokens if out is None else out.copy_(tokens)


def _write_support(
    probs: torch.Tensor,
    top_k: Union[int, torch.Tensor],
    top_p: Union[float, torch.Tensor],
    top_k_max: Optional[int],
    workspace: Optional[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    renorm_out: Optional[torch.Tensor],
) -> None:
    """Fill `workspace` and `renorm_out`."""
    vocab = probs.shape[1]
    counts = torch.as_tensor(top_k, dtype=torch.int32, device=probs.device).expand(len(probs))
    counts = counts.clamp(max=vocab)
    most = top_k if isinstance(top_k, int) else top_k_max
    wide = min(int(counts.max()) if most is None else most, vocab)
    if wide > SUPPORT_MAX:
        raise ValueError(f"top_k: is {wide}; workspace and renorm_out hold {SUPPORT_MAX} tokens")
    values, ids = largest(probs.float(), wide, tie_break=TopKTieBreak.SMALL)
    there = torch.arange(wide, device=probs.device) < counts.unsqueeze(-1)
    if workspace is not None:
        for found, into in ((values, workspace[0]), (ids, workspace[1])):
            part = into[:, :wide]
            part.copy_(torch.where(there, found.to(into.dtype), part))
        workspace[2].copy_(counts)
    if renorm_out is not None:
        mass = torch.where(there, values, 0).double()
        above = mass.cumsum(-1) - mass
        fraction = torch.as_tensor(top_p, device=probs.device).double().view(-1, 1)
        kept = torch.where(above < fraction * mass.sum(-1, keepdim=True), mass, 0)
        renormalised = (kept / kept.sum(-1, keepdim=True)).float()
        part = renorm_out[:, :wide]
        part.copy_(torch.where(there, renormalised, part))

# SPDX-License-Identifier: Apache-2.0
"""flashinfer.cake_top_k_top_p_sampling_from_probs: top-k, then top-p, ties to the lower id."""

from __future__ import annotations

from typing import Optional, Union

import torch

from .. import _abi
from .calls import drawn, rows_of
from .limits import limits_of
from .sampling import WATCH
from .seeds import get_seed_and_offset, seeds_of
from .topk import TopKTieBreak, top_k as largest
from .watch import settle

EXACT = (_abi.ORDER_MIN_P_TOP_K_TOP_P, _abi.TIES_EXACT)
SLAB = 1024  # columns of what tells the support


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
    """Draw from probabilities by top_k, then top_p: exactly k tokens, the shortest nucleus.

    probs        float32 [rows, V].
    top_k, top_p numbers, or int32 and float32 tensors of one a row.
    top_k_max    at least every top_k, where that is a tensor and the support is asked for; None:
                 the largest, for which the call waits.
    philox_seed, philox_offset
                 as `seed` and `offset` in gumbel.flashinfer.sampling; both or neither, else
                 ValueError. None: from `generator`.
    out          int32 [rows] for the tokens; None: a new tensor.
    workspace    (values float32, ids int32, both [rows, 1024], counts int32 [rows]) that receive
                 the top_k likeliest tokens, larger first, then lower ids. None: are not told.
    renorm_out   float32 [rows, 1024]: the probabilities that these are drawn with, 0 where top_p
                 removed them. None: are not told. Of both, the first counts[r] of row r are
                 written to. ValueError for top_k above 1024.
    enable_pdl   is taken and changes nothing.
    """
    if (philox_seed is None) != (philox_offset is None):
        raise ValueError("philox_seed and philox_offset must be given together")
    probs = rows_of("probs", probs)
    rows, place = len(probs), probs.device
    if philox_seed is None:
        philox_seed, philox_offset = get_seed_and_offset(rows * 32, generator, place)
    given = limits_of(rows, place, None, top_k=top_k, top_p=top_p)
    given.update(seeds_of(philox_seed, philox_offset, None, place, rows, 0))
    tokens = settle(WATCH, drawn(probs.float().log(), given, EXACT))
    if workspace is not None or renorm_out is not None:
        _tell_support(probs, top_k, top_p, top_k_max, workspace, renorm_out)
    return tokens if out is None else out.copy_(tokens)


def _tell_support(
    probs: torch.Tensor,
    top_k: Union[int, torch.Tensor],
    top_p: Union[float, torch.Tensor],
    top_k_max: Optional[int],
    workspace: Optional[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    renorm_out: Optional[torch.Tensor],
) -> None:
    vocab = probs.shape[1]
    counts = torch.as_tensor(top_k, dtype=torch.int32, device=probs.device).expand(len(probs))
    counts = counts.clamp(max=vocab)
    most = top_k if isinstance(top_k, int) else top_k_max
    wide = min(int(counts.max()) if most is None else most, vocab)
    if wide > SLAB:
        raise ValueError(f"top_k: the support of at most {SLAB} tokens is told, not of {wide}")
    values, ids = largest(probs.float(), wide, tie_break=TopKTieBreak.SMALL)
    there = torch.arange(wide, device=probs.device) < counts.unsqueeze(-1)
    if workspace is not None:
        for told, into in ((values, workspace[0]), (ids, workspace[1])):
            part = into[:, :wide]
            part.copy_(torch.where(there, told.to(into.dtype), part))
        workspace[2].copy_(counts)
    if renorm_out is not None:
        mass = torch.where(there, values, 0).double()
        above = mass.cumsum(-1) - mass
        share = torch.as_tensor(top_p, device=probs.device).double().view(-1, 1)
        kept = torch.where(above < share * mass.sum(-1, keepdim=True), mass, 0)
        told = (kept / kept.sum(-1, keepdim=True)).float()
        part = renorm_out[:, :wide]
        part.copy_(torch.where(there, told, part))

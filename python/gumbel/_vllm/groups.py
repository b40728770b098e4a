# SPDX-License-Identifier: Apache-2.0
"""Heads under tensor parallelism: each rank draws from its shard, in a group of the ranks.

All ranks take the same decisions, as each decision depends only on what all ranks know: the
configuration, the head's shape, and values that they have exchanged.
"""

from __future__ import annotations

import datetime
import functools
import os
from typing import Any, Optional

import torch
from torch.nn import functional
from vllm import envs
from vllm.distributed import get_tp_group

from .. import dist as _dist
from .._dist.transports import find_nccl_problem
from .counts import logger
from .threads import threads_for


def _seconds() -> float:
    """Time-out of an exchange: that of vLLM's step."""
    return float(envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)


def _process_group() -> Any:
    """A gloo process group of this rank's tensor-parallel ranks; collective at the first call."""
    ranks: Any = get_tp_group()
    found = getattr(ranks, "_gumbel_over", None)
    if found is None:
        found = ranks._gumbel_over = torch.distributed.new_group(
            ranks.ranks,
            backend="gloo",
            timeout=datetime.timedelta(seconds=_seconds()),
            use_local_synchronization=True,
        )
    return found


def all_agree(mine: bool) -> bool:
    """Whether `mine` is true on all tensor-parallel ranks; a collective call."""
    vote = torch.tensor([int(mine)])
    torch.distributed.all_reduce(vote, torch.distributed.ReduceOp.MIN, _process_group())
    return bool(vote.item())


@functools.cache
def can_draw_together(kind: str) -> bool:
    """Whether ranks on devices of this kind ("cpu", "cuda") can draw together.

    Ranks on GPUs use peer memory, or NCCL without it, unless GUMBEL_VLLM_GPU_RANKS is 0.
    """
    if kind != "cuda":
        return kind == "cpu"
    lacking: Optional[str] = "GUMBEL_VLLM_GPU_RANKS is 0"
    if os.environ.get("GUMBEL_VLLM_GPU_RANKS") != "0":
        lacking = find_nccl_problem()
    if lacking:
        logger.warning("gumbel: draws are vLLM's own, as GPU ranks are not grouped: %s", lacking)
    return not lacking


def _transport_options(weight: torch.Tensor) -> dict[str, Any]:
    """Options of a group of ranks with such weights."""
    if weight.is_cpu:
        return threads_for(weight)
    return {"device": weight.device, "nccl": True, "peer_memory": "allow"}


class Shard:
    """This rank's rows of a head, and the gumbel.dist.Group that draws from all shards.

    gathers_truncated
                 whether truncated draws use logits that vLLM gathers. On GPUs without peer memory a
                 truncated draw from shards may need the host, which then waits for the GPU in every
                 step.
    """

    def __init__(self, first: int, weight: torch.Tensor) -> None:
        self.group = _dist.Group(
            first,
            len(weight),
            process_group=_process_group(),
            timeout=_seconds(),
            **_transport_options(weight),
        )
        self.gathers_truncated = not weight.is_cpu and not self.group.peer_memory
        self.words = (first + len(weight) + 31) // 32

    def mask(self, mask: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        """The part of a mask of the whole vocabulary up to the end of this shard, padded."""
        if mask is None:
            return None
        missing = self.words - mask.shape[1]
        return functional.pad(mask, (0, missing)) if missing > 0 else mask[:, : self.words]


def _refusal(lm_head: Any) -> Optional[str]:
    """The reason why a head's logits are gathered by vLLM; None: a group draws from its shards."""
    of, ranks = getattr(lm_head, "parallel_group", None), get_tp_group()
    indices, weight = getattr(lm_head, "shard_indices", None), lm_head.weight
    if indices is None:
        return "it has no shard indices"
    reasons = {
        "it is on neither a CPU nor a GPU of CUDA": not (weight.is_cpu or weight.is_cuda),
        "its ranks are not those of tensor parallelism": (
            lm_head.tp_size != ranks.world_size or (of is not None and of is not ranks)
        ),
        "it has rows that were added to the vocabulary": indices.num_added_elements_padded > 0,
        "its rows are not those of its shard": len(weight) != indices.num_org_elements_padded,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


@functools.cache
def _log_once(reason: str) -> None:
    logger.info("gumbel: a head's logits are gathered before the draw, as %s", reason)


def _open_shard(first: int, weight: torch.Tensor) -> Optional[Shard]:
    """A shard; None if a rank failed to open its own, as one on a GPU may lack the memory."""
    if weight.is_cpu:
        return Shard(first, weight)
    shard, reason = None, "another rank could not open its shard"
    try:
        shard = Shard(first, weight)
    except (RuntimeError, MemoryError) as problem:
        reason = str(problem)
    if all_agree(shard is not None):
        return shard
    if shard is not None:
        shard.group.close()
    _log_once(reason)
    return None


def shard_of(lm_head: Any) -> Optional[Shard]:
    """The shard of a head under tensor parallelism; None: vLLM gathers its logits.

    The first call is collective: all ranks make it at the same step and open the group.
    """
    if "_gumbel_shard" not in lm_head.__dict__:
        reason, shard = _refusal(lm_head), None
        if reason is not None:
            _log_once(reason)
        elif lm_head.weight.is_cuda and torch.cuda.is_current_stream_capturing():
            return None  # a group cannot be opened during capture: a later step opens it
        else:
            first = lm_head.shard_indices.padded_org_vocab_start_index
            shard = _open_shard(first, lm_head.weight)
        lm_head.__dict__["_gumbel_shard"] = shard
    found: Optional[Shard] = lm_head.__dict__["_gumbel_shard"]
    return found


def seed_generator(runner: Any) -> Optional[torch.Generator]:
    """The generator of seeds of requests without one, equal on all ranks; None: torch's own."""
    if runner.vllm_config.parallel_config.tensor_parallel_size == 1:
        return None
    found: Optional[torch.Generator] = getattr(runner, "_gumbel_generator", None)
    if found is None:
        found = torch.Generator().manual_seed(runner.vllm_config.model_config.seed or 0)
        runner._gumbel_generator = found
    return found

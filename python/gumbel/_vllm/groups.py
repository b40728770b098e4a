# SPDX-License-Identifier: Apache-2.0
"""Heads of tensor parallelism: each rank draws from its shard, over a group of the ranks.

What is decided here all ranks decide alike, from what all of them know: the configuration, the
head's shape, and what they have told each other as they met.
"""

from __future__ import annotations

import datetime
import functools
from typing import Any, Optional

import torch
from torch.nn import functional
from vllm import envs
from vllm.distributed import get_tp_group

from .. import dist as _dist
from .._dist.transports import has_nccl
from .counts import logger
from .threads import threads_for


def _seconds() -> float:
    """How long a rank waits for the others: as long as vLLM waits for a step."""
    return float(envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)


def _process_group() -> Any:
    """Ranks of this one's tensor parallelism, over gloo; all of them make it at once."""
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
    """Whether all ranks of this one's tensor parallelism say so; all of them ask at once."""
    said = torch.tensor([int(mine)])
    torch.distributed.all_reduce(said, torch.distributed.ReduceOp.MIN, _process_group())
    return bool(said.item())


@functools.cache
def can_meet(kind: str) -> bool:
    """Whether ranks on devices of this kind can draw together: on GPUs by NCCL."""
    lacking = has_nccl() if kind == "cuda" else None
    if lacking is not None:
        logger.warning("gumbel: draws are vLLM's own, as ranks have no NCCL: %s", lacking)
    return kind == "cpu" or (kind == "cuda" and lacking is None)


def _way(weight: torch.Tensor) -> dict[str, Any]:
    """How ranks with such weights reach each other."""
    if weight.is_cpu:
        return threads_for(weight)
    return {"device": weight.device, "nccl": True, "peer_memory": "allow"}


class Shard:
    """This rank's rows of a head, and the group that draws from all of them.

    Its calls are those of gumbel.dist.Group: every rank makes them, with its own rows.
    """

    def __init__(self, first: int, weight: torch.Tensor) -> None:
        self.group = _dist.Group(
            first,
            len(weight),
            process_group=_process_group(),
            timeout=_seconds(),
            **_way(weight),
        )
        self.words = (first + len(weight) + 31) // 32

    def mask(self, mask: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        """Of a mask of the whole vocabulary, what a call of this rank takes, padding included."""
        if mask is None:
            return None
        missing = self.words - mask.shape[1]
        return functional.pad(mask, (0, missing)) if missing > 0 else mask[:, : self.words]


def _refusal(lm_head: Any) -> Optional[str]:
    """Why a head is drawn from by logits that vLLM gathers; None: its shards are a group's."""
    of, ranks = getattr(lm_head, "parallel_group", None), get_tp_group()
    indices, weight = getattr(lm_head, "shard_indices", None), lm_head.weight
    if indices is None:
        return "it does not tell its shard"
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


def _made(first: int, weight: torch.Tensor) -> Optional[Shard]:
    """A shard, if all ranks could make theirs: on a GPU one may lack the memory."""
    if weight.is_cpu:
        return Shard(first, weight)
    made, reason = None, "another rank could not make its part"
    try:
        made = Shard(first, weight)
    except (RuntimeError, MemoryError) as problem:
        reason = str(problem)
    if all_agree(made is not None):
        return made
    if made is not None:
        made.group.close()
    _log_once(reason)
    return None


def shard_of(lm_head: Any) -> Optional[Shard]:
    """The shard that a head of tensor parallelism is; None: vLLM gathers its logits.

    All ranks ask for the first time at the same step, and make a group then.
    """
    if "_gumbel_shard" not in lm_head.__dict__:
        reason, made = _refusal(lm_head), None
        if reason is not None:
            _log_once(reason)
        elif lm_head.weight.is_cuda and torch.cuda.is_current_stream_capturing():
            return None  # ranks cannot meet in a graph: a later step makes the group
        else:
            first = lm_head.shard_indices.padded_org_vocab_start_index
            made = _made(first, lm_head.weight)
        lm_head.__dict__["_gumbel_shard"] = made
    found: Optional[Shard] = lm_head.__dict__["_gumbel_shard"]
    return found


def generator_of(runner: Any) -> Optional[torch.Generator]:
    """What makes seeds of requests without one: alike on all ranks. None: torch's own."""
    if runner.vllm_config.parallel_config.tensor_parallel_size == 1:
        return None
    found: Optional[torch.Generator] = getattr(runner, "_gumbel_generator", None)
    if found is None:
        found = torch.Generator().manual_seed(runner.vllm_config.model_config.seed or 0)
        runner._gumbel_generator = found
    return found

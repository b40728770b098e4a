# SPDX-License-Identifier: Apache-2.0
"""Which configurations of vLLM are supported."""

from __future__ import annotations

import functools
from typing import Any, Optional

import torch
import vllm

from .._calls import sample_calls as _sampling
from .counts import logger
from .draft_models import draws_drafts
from .vllm_versions import is_known


def _has_random_drafts(config: Any) -> bool:
    """Whether vLLM draws an engine's drafts, with noise of their own."""
    drafts = config.speculative_config
    if getattr(drafts, "draft_sample_method", None) != "probabilistic":
        return False
    return not draws_drafts(config)


def refusal(config: Any) -> Optional[str]:
    """The reason why an engine of this configuration keeps vLLM's draws; None: it is supported."""
    model, parallel = config.model_config, config.parallel_config
    drafts = config.speculative_config
    reasons = {
        "pipeline stages under an external launcher receive each other's logits": (
            parallel.pipeline_parallel_size > 1
            and parallel.distributed_executor_backend == "external_launcher"
        ),
        "the check of a newer version compares draws of one rank": (
            parallel.tensor_parallel_size > 1 and not is_known(vllm.__version__)
        ),
        "a pooling model draws nothing": model.runner_type == "pooling",
        "watermarks are in the noise": getattr(config, "watermark_config", None) is not None,
        "replayed traces are not drawn": getattr(model, "enable_trace_replay", False),
        "sampling masks have another form": returns_masks(config) and not _are_masks_known(),
        "drafts are accepted by a rule that changes the distribution": (
            getattr(drafts, "rejection_sample_method", None) in ("synthetic", "fly")
        ),
        "drafts are shortened on the device": getattr(
            drafts, "enable_adaptive_verification", False
        ),
        "random drafts have noise of their own": _has_random_drafts(config),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def returns_masks(config: Any) -> bool:
    """Whether an engine of this configuration returns the kept tokens of each draw."""
    return bool(getattr(config.model_config, "return_sampling_mask", False))


def _are_masks_known() -> bool:
    """Whether vLLM's tensors of kept tokens have the fields that kept_tokens.py writes."""
    try:
        from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors
    except ImportError:
        return False
    fields: tuple[str, ...] = SamplingMaskTensors._fields
    return fields == ("token_ids", "packed_mask", "counts", "vocab_size", "rows_per_request")


@functools.cache
def _draws_on(device: torch.device) -> bool:
    """Whether the library draws on a device; a build without kernels does not on a GPU."""
    try:
        inputs = torch.zeros(1, 8, device=device), torch.zeros(8, 8, device=device)
        _sampling.sample(*inputs, seed=0)
    except (RuntimeError, TypeError, ValueError) as error:
        logger.warning("gumbel: draws are vLLM's own, as the library cannot draw here: %s", error)
        return False
    return True


def is_served(owner: Any) -> bool:
    """Whether the draws of a runner, or of a model's state, are the library's."""
    found: Optional[bool] = getattr(owner, "_gumbel_serves", None)
    if found is None:
        config = owner.vllm_config
        found = refusal(config) is None
        if found:
            found = _draws_on(owner.device)
            if config.parallel_config.tensor_parallel_size > 1:
                from .groups import all_agree, can_draw_together  # vLLM has its ranks by now

                found = all_agree(found and can_draw_together(owner.device.type))
        owner._gumbel_serves = found
        if found:
            kind = "V2" if config.use_v2_model_runner else "V1"
            logger.info("gumbel: draws are libgumbel's, by the %s runner", kind)
    return found

# SPDX-License-Identifier: Apache-2.0
"""Which versions and configurations of vLLM are served, and the hooks' way in."""

from __future__ import annotations

import functools
import multiprocessing.util
from typing import Any, Optional

import torch
import vllm

from .._calls import sample_calls as _sampling
from .counts import logger, tell

VERSIONS = ("0.32.", "0.33.")  # what the hooks know by their source


def unknown_version(version: str) -> Optional[str]:
    """Why this version of vLLM keeps its own draws; None: it is served."""
    if version.startswith(VERSIONS):
        return None
    known = " and ".join(prefix + "x" for prefix in VERSIONS)
    return f"vLLM {version} is not known, but {known} are"


def refusal(config: Any) -> Optional[str]:
    """Why an engine of this configuration keeps vLLM's own draws; None: it is served."""
    model, parallel = config.model_config, config.parallel_config
    drafts = config.speculative_config
    reasons = {
        "ranks of a launcher of its own are sent each other's logits": (
            parallel.pipeline_parallel_size > 1
            and parallel.distributed_executor_backend == "external_launcher"
        ),
        "a pooling model draws nothing": model.runner_type == "pooling",
        "watermarks are in the noise": getattr(config, "watermark_config", None) is not None,
        "replayed traces are not drawn": getattr(model, "enable_trace_replay", False),
        "masks of sampling are asked for": getattr(model, "return_sampling_mask", False),
        "drafts are accepted by another law than the model's": (
            getattr(drafts, "rejection_sample_method", None) in ("synthetic", "fly")
        ),
        "drafts are cut on the device": getattr(drafts, "enable_adaptive_verification", False),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


@functools.cache
def _draws_on(device: torch.device) -> bool:
    """Whether the library draws there; a package without kernels does not on a GPU."""
    try:
        inputs = torch.zeros(1, 8, device=device), torch.zeros(8, 8, device=device)
        _sampling.sample(*inputs, seed=0)
    except (RuntimeError, TypeError, ValueError) as error:
        logger.warning("gumbel: draws are vLLM's own, as the library has none here: %s", error)
        return False
    return True


def is_served(owner: Any) -> bool:
    """Whether draws of this runner, or of this state of a model, are the library's."""
    found: Optional[bool] = getattr(owner, "_gumbel_serves", None)
    if found is None:
        config = owner.vllm_config
        found = refusal(config) is None
        if found:
            found = _draws_on(owner.device)
            if config.parallel_config.tensor_parallel_size > 1:
                from .groups import all_agree, can_meet  # vLLM has its ranks by now

                found = all_agree(found and can_meet(owner.device.type))
        owner._gumbel_serves = found
        if found:
            kind = "V2" if config.use_v2_model_runner else "V1"
            logger.info("gumbel: draws are libgumbel's, by the %s runner", kind)
    return found


@functools.cache
def _hook_runners() -> None:
    """Replace what draws in this process; once."""
    from vllm.v1.worker import gpu_model_runner  # noqa: F401, which both kinds need

    from . import lazy, runner_v1, runner_v2, weights

    weights.install()
    lazy.install()
    runner_v1.install()
    runner_v2.install()
    # Children of multiprocessing, as vLLM's engines and workers are, do not run atexit's functions.
    multiprocessing.util.Finalize(None, tell, exitpriority=100)


def _start(config: Any) -> None:
    """Hook the runners for a worker of this configuration, or log why it is not served."""
    reason = refusal(config)
    if reason is None:
        try:
            from .screened import ask

            ask(config)
            _hook_runners()
        except (ImportError, AttributeError) as other:
            reason = f"its code is not what it was: {other}"
    if reason is not None:
        logger.warning("gumbel: draws are vLLM's own, as %s", reason)


def _hook_scheduler() -> None:
    """Have the scheduler, which need not be in a worker's process, end failed requests."""
    try:
        from .faults import install

        install()
    except (ImportError, AttributeError) as other:
        logger.warning(
            "gumbel: requests without a token to draw go on with token 0, as vLLM's scheduler is "
            "not what it was: %s",
            other,
        )


@functools.cache
def register() -> None:
    """Have workers of vLLM in this process draw by libgumbel; what vLLM's plugins are called as.

    Cheap and safe to call again: engines, front ends and workers all load plugins. The scheduler's
    update is replaced at once; the runners' functions are when a worker is made, and not where
    `vllm serve` has no use for them.
    """
    reason = unknown_version(vllm.__version__)
    if reason is not None:
        logger.warning("gumbel: draws are vLLM's own, as %s", reason)
        return
    from vllm.v1.worker.worker_base import WorkerBase

    _hook_scheduler()
    stock = WorkerBase.__init__

    @functools.wraps(stock)
    def made(self: Any, vllm_config: Any, *rest: Any, **named: Any) -> None:
        stock(self, vllm_config, *rest, **named)
        _start(vllm_config)

    WorkerBase.__init__ = made

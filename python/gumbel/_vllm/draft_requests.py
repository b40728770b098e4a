# SPDX-License-Identifier: Apache-2.0
"""min_p and logit_bias of requests under drafts, which vLLM refuses or ignores.

vLLM's front end refuses both in an engine with drafts, and its V1 runner does not load their
processors. The library's verification has them, so that requests are admitted and the processors
loaded, if the library surely draws: known versions on a CPU, or on a GPU by a build with kernels,
without tensor parallelism.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any, ContextManager

import vllm
from vllm.sampling_params import SamplingParams

from .support import refusal
from .vllm_versions import Hook, is_known

_state = threading.local()  # .admits: whether this thread's requests may have min_p and biases


def verifies_all(config: Any) -> bool:
    """Whether verification in an engine of this configuration has min_p and logit_bias."""
    from vllm.platforms import current_platform

    from .._device import info

    draws = current_platform.is_cpu() or (current_platform.is_cuda() and info().cuda_kernels)
    return bool(
        config.speculative_config is not None
        and draws
        and config.parallel_config.tensor_parallel_size == 1
        and is_known(vllm.__version__)
        and refusal(config) is None
    )


class _Admission:
    def __init__(self, admits: bool) -> None:
        self._admits = admits

    def __enter__(self) -> None:
        self._before, _state.admits = getattr(_state, "admits", False), self._admits

    def __exit__(self, *_: Any) -> None:
        _state.admits = self._before


def admit_under_drafts(config: Any) -> ContextManager[None]:
    """Context in which this thread checks requests of an engine of this configuration."""
    return _Admission(config.speculative_config is not None and verifies_all(config))


def find_front_end_hooks() -> tuple[Hook, ...]:
    """The hook of the check of requests; none in versions that check or load in another way."""
    stock = getattr(SamplingParams, "_validate_spec_decode", None)
    if stock is None or not find_v1_hooks():
        return ()

    @functools.wraps(stock)
    def validate(self: Any, speculative_config: Any) -> None:
        """vLLM's check, which knows of min_p and logit_bias only."""
        if not getattr(_state, "admits", False):
            stock(self, speculative_config)

    return ((SamplingParams, "_validate_spec_decode", validate),)


def find_v1_hooks() -> tuple[Hook, ...]:
    """The hook that loads the processors of min_p and logit_bias in a V1 runner with drafts."""
    try:
        from vllm.v1.sample import logits_processor
        from vllm.v1.worker import gpu_model_runner

        stock = gpu_model_runner.build_logitsprocs
        kinds, LogitsProcessors = (
            logits_processor.BUILTIN_LOGITS_PROCESSORS,
            logits_processor.LogitsProcessors,
        )
    except (ImportError, AttributeError):
        return ()

    @functools.wraps(stock)
    def build(
        vllm_config: Any,
        device: Any,
        is_pin_memory: bool,
        is_pooling_model: bool,
        custom_logitsprocs: Sequence[Any] = (),
    ) -> Any:
        if is_pooling_model or custom_logitsprocs or not verifies_all(vllm_config):
            return stock(vllm_config, device, is_pin_memory, is_pooling_model, custom_logitsprocs)
        return LogitsProcessors(
            kind(vllm_config, device, is_pin_memory) for kind in kinds
        )

    return ((gpu_model_runner, "build_logitsprocs", build),)

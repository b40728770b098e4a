# SPDX-License-Identifier: Apache-2.0
"""The memory of draws: one workspace a device, reserved while vLLM measures what a step needs.

vLLM runs its largest step before it sizes the KV cache, and gives the cache what that step leaves.
Draws must therefore hold their workspace from that run on.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from contextlib import AbstractContextManager
from typing import Any

import torch

from .. import _abi
from .._inputs.arrays import TorchArrays
from .._inputs.workspaces import SharedWorkspace, use_workspace
from .counts import logger
from .support import is_served


@functools.cache
def _workspace_of(device: torch.device, thread: int = 0) -> SharedWorkspace:
    return SharedWorkspace()


def shared_workspace(device: torch.device) -> AbstractContextManager[None]:
    """Context in which all calls of this thread use one workspace.

    A GPU has one, as vLLM samples on one stream; on the CPU each thread has its own.
    """
    thread = threading.get_ident() if device.type == "cpu" else 0
    return use_workspace(_workspace_of(device, thread))


def _max_workspace(runner: Any, arrays: TorchArrays) -> int:
    """Size in bytes of the largest workspace of a step of this runner."""
    model, drafts = runner.model_config, runner.vllm_config.speculative_config
    limits = _abi.Limits(
        batch=runner.max_num_reqs * (1 + (drafts.num_speculative_tokens if drafts else 0)),
        vocab_size=model.get_vocab_size(),
        hidden_size=model.get_hidden_size(),
        requests=1,
    )
    size, error = ctypes.c_size_t(), _abi.Error()
    status = _abi.lib.gumbel_workspace_most(arrays.device, limits, size, error)
    _abi.check_status(status, error)
    return size.value


def reserve(runner: Any) -> None:
    """Reserve the workspace of a runner's largest step on a GPU; on a CPU it grows as needed."""
    if runner.device.type != "cuda" or not is_served(runner):
        return
    device = torch.zeros(0, device=runner.device).device  # with its index
    arrays = TorchArrays(device, None, None)
    size = _max_workspace(runner, arrays)
    reserved = _workspace_of(device).reserve(arrays, size)
    logger.info("gumbel: draws have a workspace of %.0f MiB", (reserved.size.value or 0) / 2**20)


def reserve_in_profile(stock: Any) -> Any:
    """A runner's dummy run of its sampler, which reserves the workspace first."""

    @functools.wraps(stock)
    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        reserve(self)
        return stock(self, *arguments, **named)

    return run

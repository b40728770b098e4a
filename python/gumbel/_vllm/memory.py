# SPDX-License-Identifier: Apache-2.0
"""The workspace of an engine's draws, reserved while vLLM measures the memory of a step.

vLLM runs its largest step before it sizes the KV cache, and gives the cache what that step leaves.
Draws must therefore hold their workspace from that run on.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Callable, Optional

import torch

from .. import _abi
from .._inputs.arrays import TorchArrays
from .counts import logger
from .drawer import Drawer
from .support import is_served

RESERVED_ON = ("cuda",)  # types of devices; on others the workspace grows as needed


def _max_workspace(runner: Any, arrays: TorchArrays) -> int:
    """Size in bytes of the largest workspace of a step of this runner."""
    model, drafts = runner.model_config, runner.vllm_config.speculative_config
    nodes = 1 + drafts.num_speculative_tokens if drafts else 0
    limits = _abi.Limits(
        batch=runner.max_num_reqs * max(nodes, 1),
        vocab_size=model.get_vocab_size(),
        hidden_size=model.get_hidden_size(),
        requests=1,
        max_nodes=nodes,
    )
    size, error = ctypes.c_size_t(), _abi.Error()
    status = _abi.lib.gumbel_workspace_most(arrays.device, limits, size, error)
    _abi.check_status(status, error)
    return size.value


def reserve(runner: Any, drawer: Optional[Drawer]) -> None:
    """Reserve the workspace of a runner's largest step; `drawer` None: vLLM draws."""
    if drawer is None or runner.device.type not in RESERVED_ON or not is_served(runner):
        return
    device = torch.zeros(0, device=runner.device).device  # with its index
    arrays = TorchArrays(device, None, None)
    before, size = drawer.workspace.size, _max_workspace(runner, arrays)
    drawer.workspace.reserve(arrays, size)
    if drawer.workspace.size != before:  # the first of several dummy runs
        logger.info("gumbel: draws have a workspace of %.0f MiB", drawer.workspace.size / 2**20)


def reserve_in_profile(stock: Any, drawer_of: Callable[[Any], Optional[Drawer]]) -> Any:
    """A runner's dummy run of its sampler, which reserves the workspace first."""

    @functools.wraps(stock)
    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        reserve(self, drawer_of(self))
        return stock(self, *arguments, **named)

    return run

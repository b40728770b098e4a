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
from .._calls.drafts import read_draft
from .._calls.library_call import read_logit_options, read_logits
from .._inputs.arrays import TorchArrays
from .._inputs.history import History
from .counts import logger
from .drawer import Drawer
from .support import is_served

RESERVED_ON = ("cuda",)  # types of devices; on others the workspace grows as needed


def _max_workspace(runner: Any, arrays: TorchArrays) -> int:
    """Size in bytes of the largest workspace of a step of this runner."""
    model, drafts = runner.model_config, runner.vllm_config.speculative_config
    nodes = 1 + (drafts.num_speculative_tokens if drafts else 0)
    limits = _abi.Limits(
        batch=runner.max_num_reqs * nodes,
        vocab_size=model.get_vocab_size(),
        hidden_size=model.get_hidden_size(),
        requests=1,
    )
    size, error = ctypes.c_size_t(), _abi.Error()
    status = _abi.lib.gumbel_workspace_most(arrays.device, limits, size, error)
    _abi.check_status(status, error)
    if nodes == 1:
        return size.value
    return size.value + _verification_size(arrays, runner.max_num_reqs, nodes)


def _verification_size(arrays: TorchArrays, requests: int, nodes: int) -> int:
    """Size in bytes, at most, of what a verification carves before the workspace of its draw.

    gumbel_workspace_most() covers the draw alone. The rest does not depend on the vocabulary, so
    that the whole workspace with a vocabulary of one token is an upper bound.
    """
    rows, device = requests * nodes, arrays.place
    logits = torch.empty(rows, 1, device=device)
    # Penalties make a verification keep the drafts before each row.
    history = History(requests, 1, like=logits)
    common = {"history": history, "presence_penalty": 1.0, "seed": 0}
    options = read_logit_options(1.0, 0.0, None)
    source, request = read_logits(logits, options, common, batch=requests)
    tokens = torch.empty(rows, dtype=torch.int32, device=device)
    offsets = torch.empty(requests + 1, dtype=torch.int32, device=device)
    draft = read_draft(request, rows, tokens, offsets, nodes, None, None, None, None)
    to = _abi.Verified(tokens=tokens.data_ptr(), emitted=offsets.data_ptr())
    size, error = ctypes.c_size_t(), _abi.Error()
    status = _abi.lib.gumbel_verify_workspace_size(
        arrays.device, *source, request.sampling, draft.struct, to, size, error
    )
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

# SPDX-License-Identifier: Apache-2.0
"""Detection of changed weights: reinforcement learning reloads them, sleep mode discards them.

Draws read the LM head in place, so new values need nothing. Two kinds of objects refer to a head:

- Prepared calls hold its address, and the address and value of everything else they were prepared
  with. A drawer finds them by exactly these, so a new tensor, shape or scale prepares a new call.
- A screen is a quantized copy. A step uses it while the head is the same tensor, at the same
  address, with the same version counter of torch, and no event below has happened since the last
  check. After an event Screen.verify() compares it with all weights; a screen that does not match
  is built again. Each step checks before it draws.

The events: any access through vLLM's WorkerWrapperBase to an attribute that is not in STEPS. All
executors reach workers through it, so reload_weights, update_weights, load_model, reset_weights,
sleep, wake_up, apply_model, and methods and functions of collective_rpc are events. A call of
VocabParallelEmbedding.weight_loader, through which every load_weights() of a model fills a head, is
an event, and so is changed().

Not detected: a write through `.data`, or by another process or thread, that none of these precedes.
Such code calls changed() after the write.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.v1.worker.worker_base import WorkerWrapperBase

# Attributes of a worker that steps, health checks and statistics use; none changes a weight.
STEPS = frozenset(
    (
        "annotate_profile",
        "check_health",
        "compute_weight_checksums",
        "device",
        "execute_dummy_batch",
        "execute_model",
        "get_compilation_match_table",
        "get_encoder_timing_stats",
        "get_kv_connector_handshake_metadata",
        "get_kv_cache_spec",
        "get_supported_tasks",
        "list_loras",
        "profile",
        "rank",
        "reset_encoder_cache",
        "reset_mm_cache",
        "sample_tokens",
        "shutdown",
        "synchronize_device",
        "take_draft_token_ids",
        "vllm_config",
        "worker",
    )
)

_events = [0]
_holders: weakref.WeakSet[Any] = weakref.WeakSet()
_stock_getattr = WorkerWrapperBase.__getattr__
_stock_loader = VocabParallelEmbedding.weight_loader


def changed() -> None:
    """Weights of this process may have changed: check screens, and drop prepared calls."""
    _events[0] += 1
    release()


def release() -> None:
    """Drop all references to weights and screens that can be made again."""
    for holder in list(_holders):
        holder.forget()


def count_events() -> int:
    """The number of events so far."""
    return _events[0]


def hold(holder: Any) -> None:
    """Have release() call `holder.forget()`, which drops references to weights."""
    _holders.add(holder)


def place_of(value: Any) -> Any:
    """A tensor's address, layout and dtype, as a key; another value unchanged."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr(), value.shape, value.stride(), value.dtype
    return value


def version_of(weight: torch.Tensor) -> int:
    """The version counter of torch, which in-place operations advance; 0 for a tensor without."""
    return 0 if weight.is_inference() else weight._version


@functools.wraps(_stock_getattr)
def _getattr(self: Any, attr: str) -> Any:
    """An attribute of the worker, which may be a function that changes weights."""
    if attr not in STEPS and not attr.startswith("__"):
        changed()
    return _stock_getattr(self, attr)


@functools.wraps(_stock_loader)
def _load(self: Any, *call_arguments: Any, **named: Any) -> Any:
    """The loader of an embedding or LM head."""
    changed()
    return _stock_loader(self, *call_arguments, **named)


HOOKS = (
    (WorkerWrapperBase, "__getattr__", _getattr),
    (VocabParallelEmbedding, "weight_loader", _load),
)

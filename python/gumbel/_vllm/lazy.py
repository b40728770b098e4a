# SPDX-License-Identifier: Apache-2.0
"""Deferred logits: the product with the LM head is computed only if vLLM reads the logits."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable, ContextManager, Optional

import torch
from torch.utils._pytree import tree_map
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

from .._calls.screens import Screen
from .counts import counts
from .groups import Shard, shard_of
from .head_screens import SCREEN_ROWS_MAX, screen_of
from .masks import apply_mask
from .vllm_versions import multiply_shard

# On a CPU vLLM's 16-bit products are faster than the library's, which accumulate in float32, except
# for few rows of a head that is larger than the caches. findings/engines_vllm.md has the numbers.
CPU_ROWS_MAX = 2
CPU_CACHES = 32 << 20  # bytes
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_state = threading.local()  # .open: whether this thread defers products with LM heads


class LazyLogits(torch.Tensor):
    """Logits [n, V] of hidden states [n, D] and an LM head, not computed yet.

    The tensor has the shape, dtype and device of the logits; torch operations on it compute them.
    Deferred logits have no memory: code that passes an address to a kernel must call get() first.
    """

    hidden: torch.Tensor
    weight: torch.Tensor  # [V or more, D]
    head: dict[str, Any]  # the library's bias, scale, softcap and vocab_size
    mask: Optional[torch.Tensor] = None  # int32 [n, ceil(V / 32)]: allowed tokens, not yet applied
    make: Callable[[], torch.Tensor]  # computes the logits
    value: Optional[torch.Tensor] = None  # the logits, once computed
    shard: Optional[Shard] = None  # the shard that `weight` holds; None: the whole head
    # Computes the shard's logits by vLLM; None: draw fused.
    columns: Optional[Callable[[], Any]] = None
    screen: Optional[Screen] = None  # of the weight
    screen_only: bool = False  # vLLM's product is faster than a fused draw without the screen

    @staticmethod
    def __new__(
        cls, hidden: torch.Tensor, weight: torch.Tensor, head: dict[str, Any], make: Any
    ) -> LazyLogits:
        shape = (hidden.shape[0], head["vocab_size"])
        lazy: LazyLogits = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=hidden.dtype, device=hidden.device
        )
        lazy.hidden, lazy.weight, lazy.head, lazy.make = hidden, weight, head, make
        return lazy

    @property
    def is_plain(self) -> bool:
        """Whether the logits are the product and the bias, and nothing else."""
        return self.mask is None and self.head["scale"] == 1 and self.head["softcap"] == 0

    def get(self) -> torch.Tensor:
        """The logits; computed at the first call."""
        if self.value is None:
            counts.materialised += 1
            self.value = self.make()
            if self.mask is not None:
                apply_mask(self.value, self.mask)
                self.mask = None
        return self.value

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*tree_map(materialise, args), **tree_map(materialise, kwargs or {}))

    def __repr__(self, **_: Any) -> str:
        return f"LazyLogits({tuple(self.shape)})"


def materialise(value: Any) -> Any:
    """`value`, with deferred logits computed."""
    return value.get() if isinstance(value, LazyLogits) else value


def is_lazy(logits: Any) -> bool:
    """Whether these are deferred logits that are not computed yet."""
    return isinstance(logits, LazyLogits) and logits.value is None


class _Deferral:
    """The context of defer_products(); a class takes half the host time of a generator."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled

    def __enter__(self) -> None:
        self._before, _state.open = is_deferring(), self._enabled

    def __exit__(self, *_: Any) -> None:
        _state.open = self._before


def defer_products(enabled: bool = True) -> ContextManager[None]:
    """Context in which this thread defers its products with LM heads."""
    return _Deferral(enabled)


def is_deferring() -> bool:
    """Whether this thread is within defer_products()."""
    return getattr(_state, "open", False)


_stock = LogitsProcessor.forward


def _read_head(layer: Any, lm_head: Any, bias: Optional[torch.Tensor]) -> Optional[dict[str, Any]]:
    """The library's arguments for a head, without its weight; None: it is not supported."""
    if layer.logits_as_input or not isinstance(lm_head.quant_method, UnquantizedEmbeddingMethod):
        return None
    if type(layer)._get_logits is not LogitsProcessor._get_logits:
        return None
    weight = lm_head.weight
    if weight.dtype not in _DTYPES or weight.dim() != 2 or weight.stride(1) != 1:
        return None
    scale = float(layer.scale)
    cap = float(layer.soft_cap or 0.0)
    if scale == 0:
        return None
    # vLLM applies the soft-cap c before the scale s, the library after it. Both are equal if the
    # library's soft-cap is |s| c: s * c * tanh(l / c) = |s| c * tanh(s * l / (|s| c)).
    return {
        "bias": bias,
        "scale": scale,
        "softcap": abs(scale) * cap,
        "vocab_size": layer.org_vocab_size,
    }


def _vllm_multiplies_faster(lm_head: Any, hidden: torch.Tensor) -> bool:
    """Whether vLLM's product is faster than a fused draw (see CPU_ROWS_MAX)."""
    if not hidden.is_cpu or hidden.dtype == torch.float32:
        return False
    return len(hidden) > CPU_ROWS_MAX or lm_head.weight.nbytes < CPU_CACHES


def _defer_whole_head(
    lm_head: Any, hidden: torch.Tensor, head: dict[str, Any], make: Any, multiply: bool
) -> Any:
    """The logits of an unsharded head: deferred, or vLLM's (`multiply`) if that is faster."""
    weight, few = lm_head.weight.detach(), len(hidden) <= SCREEN_ROWS_MAX
    screen = (
        screen_of(lm_head, weight) if few and weight.nbytes >= _min_screen_bytes(hidden) else None
    )
    if multiply and screen is None:
        return make()
    lazy = LazyLogits(hidden, weight, head, make)
    lazy.screen, lazy.screen_only = screen, multiply
    return lazy


def _min_screen_bytes(hidden: torch.Tensor) -> int:
    """Smallest head, in bytes, that gets a screen; vLLM's product is faster from caches."""
    return 0 if hidden.dtype == torch.float32 else CPU_CACHES


def _forward(
    self: Any,
    lm_head: Any,
    hidden_states: torch.Tensor,
    embedding_bias: Optional[torch.Tensor] = None,
    *rest: Any,
    **named: Any,
) -> Any:
    def make() -> Any:
        return _stock(self, lm_head, hidden_states, embedding_bias, *rest, **named)

    if not is_deferring() or rest or named:
        return make()
    head = _read_head(self, lm_head, embedding_bias)
    if head is None or hidden_states.dim() != 2 or hidden_states.dtype not in _DTYPES:
        return make()
    multiply = _vllm_multiplies_faster(lm_head, hidden_states)
    if lm_head.tp_size == 1:
        return _defer_whole_head(lm_head, hidden_states, head, make, multiply)
    shard = shard_of(lm_head)
    if shard is None:
        return make()
    lazy = LazyLogits(hidden_states, lm_head.weight.detach(), head, make)
    lazy.shard = shard
    if multiply:
        lazy.columns = functools.partial(
            multiply_shard, _stock, self, lm_head, hidden_states, embedding_bias
        )
    return lazy


HOOKS = ((LogitsProcessor, "forward", _forward),)

# SPDX-License-Identifier: Apache-2.0
"""Logits that are multiplied when somebody looks at them, and not before."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any, Callable, Optional

import torch
from torch.utils._pytree import tree_map
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

from .._calls.screens import Screen
from .counts import counts
from .groups import Shard, shard_of
from .masks import forbid
from .screened import ROWS_MOST, screen_of

# On a CPU vLLM's products of 16 bits are faster than the library's, whose sums are in float32, but
# for few rows of a head that lies in memory and in no cache; from logits the draw itself takes no
# longer. findings/engines_vllm.md has the numbers.
CPU_ROWS_MOST = 2
CPU_CACHES = 32 << 20  # bytes
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_state = threading.local()  # .open: whether products of this thread are put off


class LazyLogits(torch.Tensor):
    """Logits [n, V] of hidden states [n, D] and an LM head, not multiplied yet.

    It has the shape, dtype and device of the logits; an operation on it is done on those. Kernels
    that are given its address would find nothing: what calls such takes get().
    """

    hidden: torch.Tensor
    weight: torch.Tensor  # [V or more, D]
    head: dict[str, Any]  # what the library takes for bias, scale, soft-cap and vocabulary
    mask: Optional[torch.Tensor]  # int32 [n, ceil(V / 32)] of tokens allowed, not yet applied
    make: Callable[[], torch.Tensor]
    value: Optional[torch.Tensor]  # once somebody looked
    shard: Optional[Shard]  # that `weight` is; None: it is the whole head
    columns: Optional[Callable[[], Any]]  # of a shard whose product torch shall make
    screen: Optional[Screen]  # of the weight
    by_screen: bool  # without it, vLLM would have multiplied faster

    @staticmethod
    def __new__(
        cls, hidden: torch.Tensor, weight: torch.Tensor, head: dict[str, Any], make: Any
    ) -> LazyLogits:
        shape = (hidden.shape[0], head["vocab_size"])
        made: LazyLogits = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=hidden.dtype, device=hidden.device
        )
        made.hidden, made.weight, made.head, made.make = hidden, weight, head, make
        made.mask = made.value = made.shard = made.columns = made.screen = None
        made.by_screen = False
        return made

    @property
    def is_plain(self) -> bool:
        """Whether the logits are the product and the bias, and nothing else."""
        return self.mask is None and self.head["scale"] == 1 and self.head["softcap"] == 0

    def get(self) -> torch.Tensor:
        """The logits, multiplied now if they were not before."""
        if self.value is None:
            counts.materialised += 1
            self.value = self.make()
            if self.mask is not None:
                forbid(self.value, self.mask)
                self.mask = None
        return self.value

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*tree_map(looked_at, args), **tree_map(looked_at, kwargs or {}))

    def __repr__(self, **_: Any) -> str:
        return f"LazyLogits({tuple(self.shape)})"


def looked_at(value: Any) -> Any:
    """The logits themselves, if they were put off; else what is given."""
    return value.get() if isinstance(value, LazyLogits) else value


def is_lazy(logits: Any) -> bool:
    """Whether these are logits that nobody has looked at."""
    return isinstance(logits, LazyLogits) and logits.value is None


@contextlib.contextmanager
def put_off(asked: bool = True) -> Iterator[None]:
    """Put off the products of LM heads that this thread comes to within."""
    before = is_put_off()
    _state.open = asked
    try:
        yield
    finally:
        _state.open = before


def is_put_off() -> bool:
    """Whether products of this thread are put off now: whether it draws for a step."""
    return getattr(_state, "open", False)


_stock = LogitsProcessor.forward


def _head(layer: Any, lm_head: Any, bias: Optional[torch.Tensor]) -> Optional[dict[str, Any]]:
    """What the library takes of a head beside its weight; None where it does not serve it."""
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
    # They cap and then scale: s * cap(l) is the library's cap of s * l at |s| times the cap.
    return {
        "bias": bias,
        "scale": scale,
        "softcap": abs(scale) * cap,
        "vocab_size": layer.org_vocab_size,
    }


def _multiplies_faster(lm_head: Any, hidden: torch.Tensor) -> bool:
    """Whether vLLM does: rows of 16 bits on a CPU, as said above."""
    if not hidden.is_cpu or hidden.dtype == torch.float32:
        return False
    return len(hidden) > CPU_ROWS_MOST or lm_head.weight.nbytes < CPU_CACHES


def _of_whole(
    lm_head: Any, hidden: torch.Tensor, head: dict[str, Any], make: Any, multiply: bool
) -> Any:
    """The logits of a head that is no shard: put off, or vLLM's where it multiplies faster."""
    weight, few = lm_head.weight.detach(), len(hidden) <= ROWS_MOST
    screen = screen_of(lm_head, weight) if few and weight.nbytes >= _least_for(hidden) else None
    if multiply and screen is None:
        return make()
    made = LazyLogits(hidden, weight, head, make)
    made.screen, made.by_screen = screen, multiply
    return made


def _least_for(hidden: torch.Tensor) -> int:
    """Bytes of a head that a screen is for: one in the caches vLLM multiplies faster."""
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

    if not is_put_off() or rest or named:
        return make()
    head = _head(self, lm_head, embedding_bias)
    if head is None or hidden_states.dim() != 2 or hidden_states.dtype not in _DTYPES:
        return make()
    multiply = _multiplies_faster(lm_head, hidden_states)
    if lm_head.tp_size == 1:
        return _of_whole(lm_head, hidden_states, head, make, multiply)
    shard = shard_of(lm_head)
    if shard is None:
        return make()
    made = LazyLogits(hidden_states, lm_head.weight.detach(), head, make)
    made.shard = shard
    if multiply:
        made.columns = functools.partial(
            _stock, self, lm_head, hidden_states, embedding_bias, skip_gather=True
        )
    return made


def install() -> None:
    """Have LM heads put off their products where put_off() says so; once a process."""
    LogitsProcessor.forward = _forward

# SPDX-License-Identifier: Apache-2.0
"""Attention over caches whose requests have lengths of their own, as they do with drafts.

Rows of queries are ordered by request, then by position. Each pair of a request and a head of keys
is one sequence, so that a group of query heads reads its keys once. Both functions take query
[B * q, heads, head_size], and keys and values [B, kv_heads, slots, head_size], and return
[B * q, heads * head_size].
"""

from __future__ import annotations

import math
from functools import cached_property

import torch

TOLERANCE = 0.05  # largest difference of FlashAttention in bfloat16, for values up to 4


class Lengths:
    """The slots that each query may read: slot 0 to its own, `slots` int64 [B, q]."""

    def __init__(self, slots, cache_slots, kv_heads, dtype):
        self.slots, self.shape, self.dtype = slots, slots.shape, dtype
        self.cache_slots, self.kv_heads = cache_slots, kv_heads

    @cached_property
    def mask(self):
        """[B, 1, q, 1, slots]: 0, or -inf for slots that a query must not read."""
        slots = torch.arange(self.cache_slots, device=self.slots.device)
        masked = slots > self.slots[:, None, :, None, None]
        return torch.zeros_like(masked, dtype=self.dtype).masked_fill_(masked, -math.inf)

    @cached_property
    def counts(self):
        """Offsets of the queries and of the keys, int32 [B * kv_heads + 1], and the number of slots
        in use, int32 [B * kv_heads]."""
        batch, queries = self.shape
        count = batch * self.kv_heads
        steps = torch.arange(count + 1, dtype=torch.int32, device=self.slots.device)
        used = (self.slots[:, -1] + 1).int().repeat_interleave(self.kv_heads)
        return steps * queries, steps * self.cache_slots, used


def group_queries(query, lengths):
    """[B * kv_heads, q, heads of a group, head_size]."""
    batch, queries = lengths.shape
    grouped = query.view(batch, queries, lengths.kv_heads, -1, query.shape[-1])
    return grouped.transpose(1, 2).flatten(0, 1)


def ungroup_queries(attended, lengths):
    batch, queries = lengths.shape
    shape = (batch, lengths.kv_heads, queries, -1, attended.shape[-1])
    return attended.view(shape).transpose(1, 2).reshape(batch * queries, -1)


def attend_by_products(query, keys, values, lengths):
    """Two batched products and a softmax, over all slots of the cache."""
    batch, queries = lengths.shape
    grouped = group_queries(query, lengths).flatten(1, 2)
    scores = torch.bmm(grouped, keys.flatten(0, 1).transpose(1, 2))
    scores = scores.view(batch, lengths.kv_heads, queries, -1, lengths.cache_slots)
    scores = torch.add(lengths.mask, scores, alpha=query.shape[-1] ** -0.5)
    weights = torch.softmax(scores, -1).view(batch * lengths.kv_heads, -1, lengths.cache_slots)
    return ungroup_queries(torch.bmm(weights, values.flatten(0, 1)), lengths)


def call_flash(*arguments, **named):
    """PyTorch's own copy of FlashAttention 2; a test replaces this function."""
    return torch.ops.aten._flash_attention_forward(*arguments, **named)[0]


def attend_by_flash(query, keys, values, lengths):
    """FlashAttention over the slots in use."""
    of_queries, of_keys, used = lengths.counts
    attended = call_flash(
        group_queries(query, lengths).flatten(0, 1), keys.view(-1, 1, keys.shape[-1]),
        values.view(-1, 1, values.shape[-1]), of_queries, of_keys, lengths.shape[1],
        lengths.cache_slots, 0.0, True, False, scale=query.shape[-1] ** -0.5, seqused_k=used,
    )
    return ungroup_queries(attended, lengths)


def check_flash(heads, kv_heads, head_size, device, dtype):
    """Raises an error unless attend_by_flash() works here, and agrees with products."""
    for batch, queries in ((1, 1), (3, 1), (1, 5), (3, 5)):
        slots = torch.tensor([[70], [3], [127 - queries]], device=device)[:batch]
        slots = slots + torch.arange(queries, device=device)
        query = torch.randn(batch * queries, heads, head_size, device=device, dtype=dtype)
        keys, values = (
            torch.randn(batch, kv_heads, 128, head_size, device=device, dtype=dtype)
            for _ in range(2)
        )
        lengths = Lengths(slots, 128, kv_heads, torch.float32)
        found = attend_by_flash(query, keys, values, lengths).float()
        exact = attend_by_products(query.float(), keys.float(), values.float(), lengths)
        worst = (found - exact).abs().max().item()
        if not worst < TOLERANCE:
            raise ValueError(f"FlashAttention differs from products by {worst:.3g}")

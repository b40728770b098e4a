# SPDX-License-Identifier: Apache-2.0
"""Attention over caches whose requests have lengths of their own, as they do with drafts.

Rows of queries are ordered by request, then by position. Each pair of a request and a head of keys
is one sequence, so that a group of query heads reads its keys once.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch


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
    """[B * q, heads * head_size], by two batched products and a softmax over all slots, from query
    [B * q, heads, head_size], and keys and values [B, kv_heads, slots, head_size]."""
    batch, queries = lengths.shape
    grouped = group_queries(query, lengths).flatten(1, 2)
    scores = torch.bmm(grouped, keys.flatten(0, 1).transpose(1, 2))
    scores = scores.view(batch, lengths.kv_heads, queries, -1, lengths.cache_slots)
    scores = torch.add(lengths.mask, scores, alpha=query.shape[-1] ** -0.5)
    weights = torch.softmax(scores, -1).view(batch * lengths.kv_heads, -1, lengths.cache_slots)
    return ungroup_queries(torch.bmm(weights, values.flatten(0, 1)), lengths)

# SPDX-License-Identifier: Apache-2.0
"""A model of transformers whose requests have caches of different lengths.

Caches of transformers have one length for all rows. With drafts, each request accepts a number of
its own, so Decoder calls the parts of each layer itself, and writes keys and values at the
positions of each request. The parts between two attentions treat all rows alike: they are compiled
once for one row and once for more, for all layers. Nothing here waits for the GPU, so that steps
can be captured in CUDA graphs.
"""

from __future__ import annotations

import torch
from speculation_attention import Lengths, attend_by_products
from spread import reason
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb


def project_rows(layer, rows, cos, sin):
    """The part of a layer before its attention: query [N, heads, head_size], and keys and values
    [N * kv_heads, head_size]."""
    attention, count = layer.self_attn, rows.shape[0]
    shape = (1, count, -1, attention.head_dim)
    normal = layer.input_layernorm(rows)
    query = attention.q_norm(attention.q_proj(normal).view(shape)).transpose(1, 2)
    key = attention.k_norm(attention.k_proj(normal).view(shape)).transpose(1, 2)
    query, key = apply_rotary_pos_emb(query, key, cos, sin)
    value = attention.v_proj(normal).view(-1, attention.head_dim)
    return (
        query.transpose(1, 2)[0].contiguous(),
        key.transpose(1, 2).reshape(-1, attention.head_dim),
        value,
    )


def finish_rows(layer, rows, attended):
    """The part of a layer after its attention."""
    rows = rows + layer.self_attn.o_proj(attended)
    return rows + layer.mlp(layer.post_attention_layernorm(rows))


def normalize_rows(norm, rows):
    return norm(rows)


class Decoder:
    """The model's forward without its LM head, over a cache of `slots` slots for `batch` requests.

    set_batch() makes the cache; compile() is optional.
    """

    def __init__(self, model, device):
        self.trunk, self.weight = model.model, model.lm_head.weight.detach()
        self.config, self.device = model.config, device
        self.parts = (project_rows, finish_rows, normalize_rows)
        self.compiled = False

    def compile(self, batches, backend="inductor"):
        """Compile the parts of layers and run them with each number of rows; on an error they
        remain as they are."""
        eager = self.parts
        try:
            self.parts = tuple(
                torch.compile(part, dynamic=True, fullgraph=True, backend=backend)
                for part in eager
            )
            for rows in batches:
                self.set_batch(rows, 64)
                ids = torch.zeros(rows, 1, dtype=torch.int64, device=self.device)
                self.forward(ids, ids)
            self.compiled = True
        except Exception as error:
            self.parts = eager
            print(f"the layers are not compiled: {reason(error)}", flush=True)

    def set_batch(self, batch, slots):
        """Make a cache of random keys and values, which stand for a text that was read before."""
        config, self.slots = self.config, slots
        shape = (batch, config.num_key_value_heads, slots, config.head_dim)
        self.caches = None  # frees the old ones first
        self.caches = [
            tuple(torch.randn(shape, device=self.device, dtype=self.weight.dtype) for _ in "kv")
            for _ in self.trunk.layers
        ]
        places = torch.arange(slots, device=self.device)
        self.cos, self.sin = (
            table[0] for table in self.trunk.rotary_emb(self.weight[:1], places[None])
        )

    def forward(self, ids, slots):
        """Hidden states [B * q, D] of the tokens `ids` at `slots`, both int64 [B, q]; the slots of
        a request follow each other."""
        project, finish, normalize = self.parts
        batch, kv_heads = ids.shape[0], self.config.num_key_value_heads
        lengths = Lengths(slots, self.slots, kv_heads, self.weight.dtype)
        heads = torch.arange(batch * kv_heads, device=slots.device).view(batch, 1, kv_heads)
        places = (heads * self.slots + slots[:, :, None]).flatten()
        flat = slots.flatten()
        cos, sin = self.cos[flat][None], self.sin[flat][None]
        rows = self.trunk.embed_tokens(ids.flatten())
        for layer, (keys, values) in zip(self.trunk.layers, self.caches):
            query, key, value = project(layer, rows, cos, sin)
            keys.view(-1, keys.shape[-1]).index_copy_(0, places, key)
            values.view(-1, values.shape[-1]).index_copy_(0, places, value)
            rows = finish(layer, rows, attend_by_products(query, keys, values, lengths))
        return normalize(self.trunk.norm, rows)

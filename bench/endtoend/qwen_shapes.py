# SPDX-License-Identifier: Apache-2.0
"""Random models with the shapes of Qwen3; prompts and requests of the end-to-end benchmarks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import transformers

LOGIT_DEVIATION = 4.0  # of Gaussian logits: their entropy is about 4 nats, as of real text
PROMPT_TOKENS = 16

# Parameters of generate() by name of the request.
REQUESTS = {
    "top_k, top_p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "plain": {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
}


@dataclass(frozen=True)
class Shape:
    """The sizes in the model's published configuration."""

    hidden: int
    layers: int
    intermediate: int
    attention_heads: int
    kv_heads: int
    tied_embedding: bool  # the LM head and the embedding share their weight
    vocab: int = 151936
    head_size: int = 128  # of attention

    def make_config(self):
        return transformers.Qwen3Config(
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.attention_heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_size,
            tie_word_embeddings=self.tied_embedding,
            bos_token_id=None,
            eos_token_id=None,
        )

    def weight_bytes(self):
        """Bytes of all matrices in bfloat16, without the weights of the norms."""
        attention = 2 * self.hidden * self.head_size * (self.attention_heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate
        embeddings = (1 if self.tied_embedding else 2) * self.vocab * self.hidden
        return 2 * (self.layers * layer + embeddings)


SHAPES = {
    "Qwen3-1.7B": Shape(2048, 28, 6144, 16, 8, tied_embedding=True),
    "Qwen3-8B": Shape(4096, 36, 12288, 32, 8, tied_embedding=False),
    "Qwen3-32B": Shape(5120, 64, 25600, 64, 8, tied_embedding=False),
}
TINY = {
    "Qwen3-1.7B": Shape(64, 2, 128, 2, 1, tied_embedding=True, vocab=512, head_size=32),
    "Qwen3-8B": Shape(64, 2, 128, 2, 1, tied_embedding=False, vocab=512, head_size=32),
    "Qwen3-32B": Shape(96, 2, 192, 4, 2, tied_embedding=False, vocab=512, head_size=32),
}


def make_model(shape, device):
    """A model in bfloat16 whose logits have a standard deviation of about LOGIT_DEVIATION."""
    config = shape.make_config()
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.eval().requires_grad_(False)
    rows = model.lm_head.weight
    deviation = rows[:4096].float().std().item() * math.sqrt(shape.hidden)
    model.model.norm.weight.fill_(LOGIT_DEVIATION / deviation)
    return model


def make_prompts(batch, shape, device):
    """Token ids [B, PROMPT_TOKENS], the same in every run."""
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(0, shape.vocab, (batch, PROMPT_TOKENS), generator=generator)
    return ids.to(device)


def measure_entropy(model, ids):
    """Mean entropy of the next token at T = 1, in nats."""
    logits = model(input_ids=ids, logits_to_keep=1).logits[:, -1].float()
    logp = torch.log_softmax(logits, -1)
    return -(logp.exp() * logp).sum(-1).mean().item()

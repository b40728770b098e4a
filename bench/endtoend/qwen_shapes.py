# SPDX-License-Identifier: Apache-2.0
"""Models with random weights in the shapes of Qwen3, and requests of the end-to-end benchmarks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import transformers

LOGIT_DEVIATION = 4.0  # Gaussian logits with an entropy of about 4 nats, as in texts
PROMPT = 16  # tokens

# Parameters of generate(), by the request's name.
REQUESTS = {
    "top_k, top_p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "plain": {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
}


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, by its published configuration."""

    hidden: int
    layers: int
    intermediate: int
    heads: int  # number of attention heads
    groups: int  # number of key/value heads
    tied: bool  # the LM head and the embedding share their weight
    vocab: int = 151936
    head: int = 128  # dimension of an attention head

    def config(self):
        return transformers.Qwen3Config(
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.groups,
            head_dim=self.head,
            tie_word_embeddings=self.tied,
            bos_token_id=None,
            eos_token_id=None,
        )

    def weight_bytes(self):
        """Bytes of all matrices in bfloat16; the weights of the norms are left out."""
        attention = 2 * self.hidden * self.head * (self.heads + self.groups)
        layer = attention + 3 * self.hidden * self.intermediate
        embeddings = (1 if self.tied else 2) * self.vocab * self.hidden
        return 2 * (self.layers * layer + embeddings)


SHAPES = {
    "Qwen3-1.7B": Shape(2048, 28, 6144, 16, 8, tied=True),
    "Qwen3-8B": Shape(4096, 36, 12288, 32, 8, tied=False),
}
TINY = {
    "Qwen3-1.7B": Shape(64, 2, 128, 2, 1, tied=True, vocab=512, head=32),
    "Qwen3-8B": Shape(64, 2, 128, 2, 1, tied=False, vocab=512, head=32),
}


def make(shape, device):
    """A model in bfloat16 whose logits have a standard deviation of about LOGIT_DEVIATION."""
    config = shape.config()
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.eval().requires_grad_(False)
    rows = model.lm_head.weight
    deviation = rows[:4096].float().std().item() * math.sqrt(shape.hidden)
    model.model.norm.weight.fill_(LOGIT_DEVIATION / deviation)
    return model


def prompts(batch, shape, device):
    """Token ids [B, PROMPT], the same in every run."""
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(0, shape.vocab, (batch, PROMPT), generator=generator)
    return ids.to(device)


def entropy(model, ids):
    """Entropy of the next token's distribution at T = 1, in nats, mean over rows."""
    logits = model(input_ids=ids, logits_to_keep=1).logits[:, -1].float()
    logp = torch.log_softmax(logits, -1)
    return -(logp.exp() * logp).sum(-1).mean().item()

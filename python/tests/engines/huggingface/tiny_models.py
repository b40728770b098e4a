# SPDX-License-Identifier: Apache-2.0
"""Small random models of transformers, and greedy texts of them."""

from transformers_fixtures import gumbel, torch, transformers

VOCAB, SIZE = 64, 64
PROMPT = torch.tensor([[1, 2, 3]])
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": SIZE,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def make(kind="qwen3", dtype=torch.float32, seed=0, spread=0.1, **more):
    """A model whose head has random weights of its own."""
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **more})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().to(dtype)
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(torch.randn_like(head.weight) * spread)
    return model


def greedy(model, ours, tokens=6, **more):
    """The tokens after the prompt."""
    if ours:
        more["custom_generate"] = gumbel.transformers.generate
    out = model.generate(
        PROMPT,
        attention_mask=torch.ones_like(PROMPT),
        max_new_tokens=tokens,
        do_sample=False,
        pad_token_id=0,
        **more,
    )
    return out[0, PROMPT.shape[1] :].tolist()

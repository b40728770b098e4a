# SPDX-License-Identifier: Apache-2.0
"""A random EAGLE head for the test model, of one Llama layer."""

import json
from pathlib import Path

from vllm_jobs import TARGET


def write_eagle(folder):
    """Writes the head; it shares embeddings and LM head with the target."""
    import torch
    from safetensors.torch import save_file

    target = json.loads((TARGET / "config.json").read_text())
    hidden, inner, head = target["hidden_size"], 2 * target["hidden_size"], target["head_dim"]
    heads = hidden // head
    torch.manual_seed(1)

    def random(*shape):
        return torch.randn(shape) / shape[-1] ** 0.5

    layer = {
        "self_attn.q_proj": random(heads * head, hidden),
        "self_attn.k_proj": random(heads * head, hidden),
        "self_attn.v_proj": random(heads * head, hidden),
        "self_attn.o_proj": random(hidden, heads * head),
        "mlp.gate_proj": random(inner, hidden),
        "mlp.up_proj": random(inner, hidden),
        "mlp.down_proj": random(hidden, inner),
        "post_attention_layernorm": torch.ones(hidden),
    }
    weights = {f"layers.0.{name}.weight": value for name, value in layer.items()}
    weights["fc.weight"] = random(hidden, 2 * hidden)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": head,
        "vocab_size": target["vocab_size"],
        "max_position_embeddings": target["max_position_embeddings"],
        "rms_norm_eps": 1e-6,
        "dtype": "float32",
        "tie_word_embeddings": False,
    }
    folder = Path(folder)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")

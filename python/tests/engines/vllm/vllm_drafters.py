# SPDX-License-Identifier: Apache-2.0
"""Random drafters of one layer: EAGLE and MTP, which draft one token after another, and DFlash,
which drafts all at once. EAGLE and DFlash belong to the test model and share its embeddings and LM
head. MTP is a part of a model's own folder: it has a random target of one layer."""

import json
import shutil
from pathlib import Path

from vllm_jobs import TARGET

MASK_TOKEN = 8191  # the input of drafters that draft at once, in place of these tokens
NOT_DRAFTED = 64  # number of tokens that the vocabulary of EAGLE 3 lacks


def _random(*shape):
    import torch

    return torch.randn(shape) / shape[-1] ** 0.5


def _ones(length):
    import torch

    return torch.ones(length)


def _make_layer(config, biased=False):
    """Weights of a decoder layer by name; `biased`: q, k and v have biases, as in Qwen2."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    layer = {
        "self_attn.q_proj.weight": _random(hidden, hidden),
        "self_attn.k_proj.weight": _random(hidden, hidden),
        "self_attn.v_proj.weight": _random(hidden, hidden),
        "self_attn.o_proj.weight": _random(hidden, hidden),
        "mlp.gate_proj.weight": _random(inner, hidden),
        "mlp.up_proj.weight": _random(inner, hidden),
        "mlp.down_proj.weight": _random(hidden, inner),
        "post_attention_layernorm.weight": _ones(hidden),
    }
    if biased:
        for name in "qkv":
            layer[f"self_attn.{name}_proj.bias"] = _random(hidden)
    return layer


def _prefix(prefix, weights):
    return {prefix + name: value for name, value in weights.items()}


def _read_config(hidden=None, head=None):
    """The configuration of a model of one layer, by default as wide as the test model."""
    target = json.loads((TARGET / "config.json").read_text())
    hidden, head = hidden or target["hidden_size"], head or target["head_dim"]
    return {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": hidden // head,
        "num_key_value_heads": hidden // head,
        "head_dim": head,
        "vocab_size": target["vocab_size"],
        "max_position_embeddings": target["max_position_embeddings"],
        "rms_norm_eps": 1e-6,
        "dtype": "float32",
        "tie_word_embeddings": False,
    }


def _write(folder, config, weights):
    from safetensors.torch import save_file

    (Path(folder) / "config.json").write_text(json.dumps(config))
    save_file(weights, Path(folder) / "model.safetensors")


def _seed():
    import torch

    torch.manual_seed(1)


def write_eagle(folder):
    """Writes an EAGLE head: a Llama layer behind the product of token and hidden state."""
    _seed()
    config = _read_config()
    hidden = config["hidden_size"]
    weights = _prefix("layers.0.", _make_layer(config))
    weights["fc.weight"] = _random(hidden, 2 * hidden)
    config["architectures"], config["model_type"] = ["LlamaForCausalLM"], "llama"
    _write(folder, config, weights)
    return {"model": str(folder), "method": "eagle"}


def write_eagle3(folder, parallel=False):
    """Writes an EAGLE 3 head for all tokens but the first ones, which drafts one token after
    another, or all at once (`parallel`)."""
    import torch

    _seed()
    config = _read_config()
    hidden, drafted = config["hidden_size"], config["vocab_size"] - NOT_DRAFTED
    layer = {
        **_make_layer(config),
        **{f"self_attn.{name}_proj.weight": _random(hidden, 2 * hidden) for name in "qkv"},
        **{f"{name}.weight": _ones(hidden) for name in ("input_layernorm", "hidden_norm")},
    }
    weights = _prefix("midlayer.", layer)
    weights["fc.weight"] = _random(hidden, 3 * hidden)
    weights["norm.weight"] = _ones(hidden)
    weights["lm_head.weight"] = _random(drafted, hidden)
    weights["d2t"] = torch.full([drafted], NOT_DRAFTED)  # a token's id minus the drafter's
    config["architectures"], config["model_type"] = ["LlamaForCausalLM"], "llama"
    config["eagle_aux_hidden_state_layer_ids"] = [1, 2, 3]
    config["draft_vocab_size"] = drafted
    if parallel:
        weights["mask_hidden"] = _random(1, 3 * hidden)
        config["ptd_token_id"] = MASK_TOKEN
    _write(folder, config, weights)
    return {"model": str(folder), "method": "eagle3", "parallel_drafting": parallel}


def write_dflash(folder):
    """Writes a DFlash drafter: a Qwen3 layer behind the hidden states of two of the target's."""
    _seed()
    config = _read_config()
    hidden, head = config["hidden_size"], config["head_dim"]
    norms = {"input_layernorm": hidden, "self_attn.q_norm": head, "self_attn.k_norm": head}
    layer = {f"{name}.weight": _ones(length) for name, length in norms.items()}
    weights = _prefix("layers.0.", {**_make_layer(config), **layer})
    weights["fc.weight"] = _random(hidden, 2 * hidden)
    weights["hidden_norm.weight"] = _ones(hidden)
    weights["norm.weight"] = _ones(hidden)
    config["architectures"], config["model_type"] = ["DFlashDraftModel"], "qwen3"
    config["dflash_config"] = {"mask_token_id": MASK_TOKEN, "target_layer_ids": [0, 2]}
    _write(folder, config, weights)
    return {"model": str(folder), "method": "dflash"}


def write_mtp_model(folder):
    """Writes a MiMo model with an MTP layer, and the test model's tokenizer."""
    _seed()
    config = _read_config(hidden=64, head=32)
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    layer, predictor = _make_layer(config, biased=True), _make_layer(config, biased=True)
    layer["input_layernorm.weight"] = _ones(hidden)
    for name in ("input", "token", "hidden", "final"):
        predictor[f"{name}_layernorm.weight"] = _ones(hidden)
    predictor["input_proj.weight"] = _random(hidden, 2 * hidden)
    weights = {**_prefix("model.layers.0.", layer), **_prefix("model.mtp_layers.0.", predictor)}
    weights["model.embed_tokens.weight"] = _random(vocab, hidden)
    weights["model.norm.weight"] = _ones(hidden)
    weights["lm_head.weight"] = _random(vocab, hidden)
    config["architectures"], config["model_type"] = ["MiMoForCausalLM"], "qwen2"
    config["num_nextn_predict_layers"] = 1
    _write(folder, config, weights)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TARGET / name, folder)
    return {"method": "mtp"}

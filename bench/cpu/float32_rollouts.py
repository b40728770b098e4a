# SPDX-License-Identifier: Apache-2.0
"""Rollouts of real models for bench_float32_logits.py: texts, and the hidden states of each token.

Texts are drawn at temperature 1 by the fused draw. The hidden states of a decode step, after the
final norm, are rounded to bfloat16, as an engine passes them to its LM head, which is bfloat16 too.
"""

import pathlib

import gumbel
import numpy as np
import torch

MODELS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "models"
QUESTIONS = (
    "Give three tips for staying healthy.",
    "Why is the sky blue?",
    "Write a short story about a dog and a ship.",
    "If 3 pens cost 12 dollars, how much do 7 pens cost? Explain each step.",
    "Write a Python function that reverses a list.",
    "What is the capital of France, and what is it known for?",
    "Explain photosynthesis to a child.",
    "List five animals that live in the sea.",
)


def load_bundled(name):
    """A model of tests/models in bfloat16; its texts begin with the separator of documents."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.bfloat16).eval()
    return model, [[0]] * 64, 256, None


def load_gguf(path):
    """A chat model of a GGUF file, dequantized; its body in float32, its head in bfloat16.

    Each of QUESTIONS has four answers. A text ends with the model's end token, or after 128.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(**source)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ]
    return model, prompts * 4, 128, tokenizer.eos_token_id


def pad_left(prompts):
    """ids and attention mask [texts, longest prompt]."""
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids), torch.tensor(mask)


def run_body(model, ids, mask, cache=None):
    """Hidden states [texts, ids, D] in bfloat16, and the cache of keys and values."""
    positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    out = model.model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache,
                      use_cache=True)
    return out.last_hidden_state.bfloat16(), out.past_key_values


def count_tokens(tokens, end):
    """Tokens of each text, up to and including its first end token."""
    if end is None:
        return np.full(len(tokens), tokens.shape[1])
    ends = tokens == end
    return np.where(ends.any(1), ends.argmax(1) + 1, tokens.shape[1])


@torch.inference_mode()
def write_rollouts(model, prompts, steps, end):
    """Arrays of all texts; bfloat16 as uint16 bits.

    tokens [texts, steps], lengths [texts], hidden [texts, steps, D], weight [V, D]. If the body is
    bfloat16, also `replayed` [texts, steps, D]: hidden states of a whole text in one forward pass,
    as a trainer computes them.
    """
    weight = model.lm_head.weight.detach().bfloat16()
    seeds = np.arange(1, len(prompts) + 1)
    prompt_ids, mask = ids, mask = pad_left(prompts)
    tokens, hidden, cache = [], [], None
    for step in range(steps):
        states, cache = run_body(model, ids, mask, cache)
        hidden.append(states[:, -1])
        drawn = gumbel.sample(hidden[-1], weight, temperature=1.0, seed=seeds, position=step)
        tokens.append(drawn.tokens)
        ids = drawn.tokens.long()
        mask = torch.cat([mask, torch.ones_like(ids)], 1)
    tokens = torch.cat(tokens, 1)
    found = {"hidden": torch.stack(hidden, 1), "weight": weight}
    if model.dtype == torch.bfloat16:
        text = torch.cat([prompt_ids, tokens[:, :-1].long()], 1)
        parts = zip(text.split(8), mask[:, :-1].split(8))
        states = torch.cat([run_body(model, *part)[0] for part in parts])
        found["replayed"] = states[:, -steps:].contiguous()
    arrays = {name: tensor.view(torch.uint16).numpy() for name, tensor in found.items()}
    tokens = tokens.numpy()
    return {"tokens": tokens, "lengths": count_tokens(tokens, end), **arrays}


def load_rollouts(name, gguf, folder):
    """Rollouts of a model, from the file in `folder` if an earlier run left one there."""
    path = folder / f"{name}.npz" if folder else None
    if path and path.exists():
        return dict(np.load(path))
    rollouts = write_rollouts(*(load_gguf(gguf) if gguf else load_bundled(name)))
    if path:
        np.savez(path, **rollouts)
    return rollouts

# SPDX-License-Identifier: Apache-2.0
"""The requests of bench_vllm_gpu.py: sampling parameters by kind, and prompts."""

import random

PROMPT_TOKENS = 16
KINDS = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 1.0},
    "top_k_top_p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "top_p": {"temperature": 1.0, "top_p": 0.95},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.1, "presence_penalty": 0.2},
    "penalties_logprobs": {
        "temperature": 0.8, "repetition_penalty": 1.1, "presence_penalty": 0.2, "logprobs": 5,
    },
    "seeds": {"temperature": 1.0, "seed": 1},
    "seeds_top_k_top_p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "seed": 1},
    "logprobs": {"temperature": 0.8, "logprobs": 5},
}
MEASURED = [kind for kind in KINDS if kind not in ("seeds_top_k_top_p", "logprobs")]


def make_prompt(row, vocab):
    """Token ids of a row's prompt, the same in every run."""
    generator = random.Random(977 * row)
    return [generator.randrange(vocab // 100, vocab) for _ in range(PROMPT_TOKENS)]


def make_parameters(kind, row, tokens, changes=None):
    """Arguments of SamplingParams for a row. If the kind has a seed, rows have different seeds."""
    found = {**KINDS[kind], "max_tokens": tokens, "ignore_eos": True, "detokenize": False}
    if "seed" in found:
        found["seed"] += 1000 * row
    return {**found, **(changes or {})}


class RandomRequests:
    """Draws batch sizes in 1..batch_max, and requests of random kinds with 1..tokens_max output
    tokens."""

    def __init__(self, vocab, batch_max, tokens_max):
        self.generator = random.Random(0)
        self.vocab, self.batch_max, self.tokens_max = vocab, batch_max, tokens_max
        self.count = 0

    def draw_batch_size(self):
        return self.generator.randint(1, self.batch_max)

    def next(self):
        """The next request: (name, prompt, arguments of SamplingParams)."""
        self.count += 1
        row = self.generator.randrange(1 << 20)
        kind = self.generator.choice(list(KINDS))
        parameters = make_parameters(kind, row, self.generator.randint(1, self.tokens_max))
        return f"request-{self.count}", make_prompt(row, self.vocab), parameters

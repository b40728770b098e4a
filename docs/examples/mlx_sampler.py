# SPDX-License-Identifier: Apache-2.0
"""A sampler for mlx-lm: python mlx_sampler.py MODEL "PROMPT" [SEED]; needs mlx-lm and gumbel."""

import itertools
import sys

import gumbel
import mlx.core as mx
import numpy as np


def sampler(prompt_tokens, seed=0, **how):
    """A `sampler` for mlx_lm's generate_step(), for one text with this many prompt tokens.

    `how` are parameters of gumbel.sample_logits(). The position of a draw is the index of the input
    token whose logits are drawn from, as in other engines, which give the same text.
    """
    positions = itertools.count(prompt_tokens - 1)

    def draw(logprobs):  # [1, V]
        rows = np.array(logprobs.astype(mx.float32))
        out = gumbel.sample_logits(rows, seed=seed, position=next(positions), **how)
        return mx.array(out.tokens[:, 0])

    return draw


def main():
    from mlx_lm import load
    from mlx_lm.generate import stream_generate

    model, tokenizer = load(sys.argv[1])
    prompt = tokenizer.encode(sys.argv[2])
    draw = sampler(len(prompt), int((sys.argv + ["0"])[3]), temperature=0.8, top_p=0.95)
    for piece in stream_generate(model, tokenizer, prompt, max_tokens=64, sampler=draw):
        print(piece.text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Texts by onnxruntime-genai: python ort_genai_sampler.py MODEL "PROMPT" [SEED]."""

import sys

import gumbel
import numpy as np
import onnxruntime_genai as genai


def generate(model, prompt_ids, max_tokens, seed=0, **how):
    """Yield tokens; `how` is that of gumbel.sample_logits().

    The position of a draw is the index of the input token whose logits are drawn from.
    """
    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=len(prompt_ids) + max_tokens)
    generator = genai.Generator(model, params)
    generator.append_tokens(np.array(prompt_ids, np.int32))
    for position in range(len(prompt_ids) - 1, len(prompt_ids) - 1 + max_tokens):
        logits = np.asarray(generator.get_logits(), np.float32)[0, -1:]  # [1, V]
        token = gumbel.sample_logits(logits, seed=seed, position=position, **how).tokens[0, 0]
        yield int(token)
        generator.append_tokens(np.array([token], np.int32))


def main():
    model = genai.Model(sys.argv[1])
    tokenizer = genai.Tokenizer(model)
    prompt, seed = tokenizer.encode(sys.argv[2]), int((sys.argv + ["0"])[3])
    stream = tokenizer.create_stream()
    for token in generate(model, prompt, 64, seed, temperature=0.8, top_p=0.95):
        print(stream.decode(token), end="", flush=True)
    print()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Texts of the bundled model that every engine must generate: greedy texts, and the texts of
`gumbel generate` for a seed and a prompt, up to the rounding of hidden states."""

import functools
import json

import gumbel
import numpy as np
from gumbel_command import ROOT, TARGET, run_generate  # noqa: F401

EXAMPLES = ROOT / "docs/examples"
# Prompts, their token ids, and the ids of their greedy continuations, computed in float32.
GREEDY = json.loads((ROOT / "tests/models/golden.json").read_text())["target"]["greedy"]
HOW = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}
TOKENS = 24  # length of a text
# (prompt, seed) of the texts that all engines generate.
TEXTS = [
    ("In the beginning", 3),
    ("In the beginning", 2**64 - 3),
    ("And the LORD said unto Moses", 4),
    ("Blessed are", 5),
    ("The king of", 6),
    ("Behold, a virgin", 7),
    ("Thou shalt not", 2**40 + 8),
    ("And it came to pass in those days, that", 9),
]
DIFFERENT_MOST = 1  # of these texts; a tie within ROUNDING occurs once in ten thousand tokens
ROUNDING = 2e-3  # of a score, as engines multiply and add in another order


@functools.cache
def command_text(prompt, seed):
    """The command's text: (ids of the prompt, ids of the text, candidates). `candidates` has, for
    each token, the ids of the top_k most likely tokens and their raw log-probabilities."""
    found = run_generate(
        prompt, seed, TOKENS, *HOW.values(), "--raw-logprobs", "--top-logprobs", str(HOW["top_k"])
    )
    sample = found["samples"][0]
    candidates = [(top["ids"], top["logprobs"]) for top in sample["top"]]
    return found["prompt_ids"], sample["ids"], candidates


def score_margin(prompt, seed, place, token):
    """The score of the command's own token at index `place` of its text, minus that of `token`."""
    ids, text, candidates = command_text(prompt, seed)
    raw = dict(zip(*candidates[place]))
    if token not in raw:
        return np.inf
    noise = gumbel.noise(seed, len(ids) - 1 + place, max(*raw, token) + 1)

    def score(of):
        return raw[of] / HOW["temperature"] + noise[of]

    return score(text[place]) - score(token)


def assert_one_text(write):
    """Check that `write(prompt ids, seed)` returns the command's texts: TOKENS ids drawn with HOW.

    At the first difference, the two tokens must tie up to the rounding of hidden states.
    """
    different = []
    for prompt, seed in TEXTS:
        ids, wanted, _ = command_text(prompt, seed)
        found = list(write(ids, seed))
        assert len(found) == TOKENS, (prompt, seed)
        if found == wanted:
            continue
        place = next(at for at in range(TOKENS) if found[at] != wanted[at])
        different.append((prompt, seed, place, score_margin(prompt, seed, place, found[place])))
    assert all(abs(by) < ROUNDING for *_, by in different), different
    assert len(different) <= DIFFERENT_MOST, different

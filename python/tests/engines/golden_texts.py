# SPDX-License-Identifier: Apache-2.0
"""Texts of the bundled model that every engine must write: greedy ones, and those of `gumbel
generate` for a seed and a prompt, up to the rounding of hidden states."""

import functools
import json
import os
import subprocess
from pathlib import Path

import gumbel
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
TARGET = ROOT / "tests/models/kjv-target"
EXAMPLES = ROOT / "docs/examples"
# Prompts, their ids and those of their greedy continuations, in float32.
GREEDY = json.loads((ROOT / "tests/models/golden.json").read_text())["target"]["greedy"]
HOW = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}
TOKENS = 24  # a text
# (prompt, seed): the text of all engines.
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
PARTED_MAX = 1  # of these texts; a tie within ROUNDING is met once in ten thousand tokens
ROUNDING = 2e-3  # of a perturbed score, by products and sums in another order
BUILT = [
    os.environ.get("GUMBEL_CLI"),
    ROOT / "build/dev/cli/gumbel",
    ROOT / "build/release/cli/gumbel",
]
COMMAND = next((path for path in BUILT if path and Path(path).is_file()), None)


@functools.cache
def generated(prompt, seed):
    """(ids of the prompt, ids of the text, [(ids, raw log-probabilities)] of the likeliest)."""
    if COMMAND is None:
        pytest.skip("the command is not built; GUMBEL_CLI names one")
    done = subprocess.run(
        [
            COMMAND,
            "generate",
            "--model",
            TARGET,
            "--prompt",
            prompt,
            "--seed",
            str(seed),
            "--temperature",
            str(HOW["temperature"]),
            "--top-k",
            str(HOW["top_k"]),
            "--top-p",
            str(HOW["top_p"]),
            "--max-tokens",
            str(TOKENS),
            "--ignore-eos",
            "--json",
            "--raw-logprobs",
            "--top-logprobs",
            str(HOW["top_k"]),
        ],
        check=True,
        capture_output=True,
    )
    found = json.loads(done.stdout)
    sample = found["samples"][0]
    likeliest = [(top["ids"], top["logprobs"]) for top in sample["top"]]
    return found["prompt_ids"], sample["ids"], likeliest


def margin(prompt, seed, place, token):
    """By how much the command preferred its own token at a place of its text to this one."""
    ids, text, likeliest = generated(prompt, seed)
    raw = dict(zip(*likeliest[place]))
    if token not in raw:
        return np.inf
    noise = gumbel.noise(seed, len(ids) - 1 + place, max(*raw, token) + 1)

    def score(of):
        return raw[of] / HOW["temperature"] + noise[of]

    return score(text[place]) - score(token)


def assert_one_text(write):
    """Check that `write(prompt ids, seed)`, TOKENS ids drawn by HOW, writes the command's texts.

    Where a text parts, the two tokens there were a tie up to the rounding of hidden states.
    """
    parted = []
    for prompt, seed in TEXTS:
        ids, wanted, _ = generated(prompt, seed)
        found = list(write(ids, seed))
        assert len(found) == TOKENS, (prompt, seed)
        if found == wanted:
            continue
        place = next(at for at in range(TOKENS) if found[at] != wanted[at])
        parted.append((prompt, seed, place, margin(prompt, seed, place, found[place])))
    assert all(abs(by) < ROUNDING for *_, by in parted), parted
    assert len(parted) <= PARTED_MAX, parted

# SPDX-License-Identifier: Apache-2.0
"""The comparison of texts that the tests of engines share, itself."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "engines"))
from golden_texts import TEXTS, assert_one_text, generated, margin  # noqa: E402


def text(prompt_ids, seed, change=lambda seed, ids: ids):
    """The command's own, changed."""
    prompt = next(p for p, s in TEXTS if s == seed and generated(p, s)[0] == prompt_ids)
    return change(seed, list(generated(prompt, seed)[1]))


def test_the_commands_own_texts_are_accepted():
    assert_one_text(text)


@pytest.mark.parametrize("place", [0, 23])
def test_one_other_token_is_refused(place):
    def change(seed, ids):
        ids[place] += seed == TEXTS[3][1]
        return ids

    with pytest.raises(AssertionError):
        assert_one_text(lambda ids, seed: text(ids, seed, change))


def test_every_token_is_the_most_liked_one():
    """The margin that excuses a tie is of the draw's own scores: no token has a negative one."""
    for prompt, seed in TEXTS:
        _, ids, likeliest = generated(prompt, seed)
        for place, (tops, _) in enumerate(likeliest):
            kept = [token for token in tops[:2] if token != ids[place]]
            assert all(margin(prompt, seed, place, token) > 0 for token in kept)

# SPDX-License-Identifier: Apache-2.0
"""assert_one_text(), with which the tests of engines compare texts, detects wrong texts."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "engines"))
from golden_texts import TEXTS, assert_one_text, command_text, score_margin  # noqa: E402


def changed_text(prompt_ids, seed, change=lambda seed, ids: ids):
    """The command's own text, changed by `change`."""
    prompt = next(p for p, s in TEXTS if s == seed and command_text(p, s)[0] == prompt_ids)
    return change(seed, list(command_text(prompt, seed)[1]))


def test_the_commands_own_texts_are_accepted():
    assert_one_text(changed_text)


@pytest.mark.parametrize("place", [0, 23])
def test_one_different_token_is_detected(place):
    def change(seed, ids):
        ids[place] += seed == TEXTS[3][1]
        return ids

    with pytest.raises(AssertionError):
        assert_one_text(lambda ids, seed: changed_text(ids, seed, change))


def test_every_token_has_the_largest_score():
    """score_margin() uses the scores of the draw, so no margin is negative."""
    for prompt, seed in TEXTS:
        _, ids, candidates = command_text(prompt, seed)
        for place, (tops, _) in enumerate(candidates):
            kept = [token for token in tops[:2] if token != ids[place]]
            assert all(score_margin(prompt, seed, place, token) > 0 for token in kept)

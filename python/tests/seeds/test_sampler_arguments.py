# SPDX-License-Identifier: Apache-2.0
"""Invalid arguments of a Sampler and of its calls are named, and advance no position."""

import gumbel
import numpy as np
import pytest
from sampler_draws import BAD_SEEDS, LOGITS, B, V, draw_by_calls, draw_by_sampler

BAD_CALLS = [
    ({"top_p": 2.0}, ValueError, r"top_p: is 2"),
    ({"banned": [V]}, ValueError, f"banned: {V} is not in the vocabulary of {V} tokens"),
    ({"seed": 1}, TypeError, r"Sampler.sample_logits\(\) takes no .* 'seed': .*Sampler\(seed="),
    ({"position": 1}, TypeError, r".* takes no argument 'position': the sampler stores .*reset\("),
    ({"num_slots": 4}, TypeError, r".* 'num_slots': .*Sampler\(num_slots=...\)"),
    ({"rng": 1}, TypeError, r".* has no argument 'rng': the sampler stores the seeds"),
    ({"topk": 1}, TypeError, r"Sampler.sample_logits\(\) has no argument 'topk'; .* 'top_k'\?"),
    ({"slots": [0]}, ValueError, "slots: not supported by a sampler with batch"),
    ({"history": 3}, TypeError, "history: expected a gumbel.History"),
    ({"history": gumbel.History(B, V), "num_samples": 2}, ValueError, "num_samples: must be 1"),
    ({"history": gumbel.History(B, V), "num_samples": [1]}, TypeError, "num_samples: expected"),
    ({"logits": LOGITS[0][:2]}, ValueError, "logits: has 2 rows, but the sampler has 4"),
    ({"logits": LOGITS[0].astype(float)}, TypeError, r"logits: .* logits.astype\(np.float32\)"),
    ({"logits": LOGITS}, ValueError, "logits: expected two axes"),
    ({"logits": None}, TypeError, "logits: expected a NumPy array"),
]


@pytest.mark.parametrize("keywords, error, text", BAD_CALLS)
@pytest.mark.parametrize("used", [False, True])
def test_a_call_that_fails_advances_nothing(keywords, error, text, used):
    sampler = gumbel.Sampler(seed=7, **({"batch": B} if "logits" in keywords or used else {}))
    if used:
        draw_by_sampler(sampler, range(1))
    before = sampler.state_dict()
    for call in (sampler.sample_logits, lambda **given: sampler.prepare_sample_logits(**given)()):
        if call != sampler.sample_logits:
            text = text.replace(".sample_logits", ".prepare_sample_logits")
            if "top_p" in keywords:  # a prepared call sees values when it is made
                continue
        with pytest.raises(error, match=f"^{text}"):
            call(**{"logits": LOGITS[0], **keywords})
        assert sampler.state_dict() == before
    assert draw_by_sampler(sampler, range(1), temperature=0.5) == draw_by_calls(
        7, range(1), int(used), temperature=0.5
    )


@pytest.mark.parametrize("seed, error, text", BAD_SEEDS)
def test_invalid_seeds_are_named(seed, error, text):
    with pytest.raises(error, match=f"^{text}"):
        gumbel.Sampler(seed=seed, batch=B)
    with pytest.raises(error, match=f"^{text}"):
        gumbel.sample_logits(LOGITS[0], seed=seed)
    sampler = gumbel.Sampler(seed=7, num_slots=B)
    before = sampler.state_dict()
    with pytest.raises(error, match=f"^{text}"):
        sampler.reset(seed=seed)
    assert sampler.state_dict() == before
    if not isinstance(seed, dict):
        with pytest.raises(error, match=f"^{text}".replace("seed", "position")):
            gumbel.Sampler(seed=1, batch=B, position=seed)


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"batch": 0}, ValueError, "batch: 0 is not in"),
        ({"batch": 2, "num_slots": 2}, ValueError, "batch: pass batch or num_slots"),
        ({"batch": None, "num_slots": 2.0}, TypeError, "num_slots: expected an integer"),
        ({"like": [1]}, TypeError, "like: expected a NumPy array"),
        ({"seed": [1, 2], "position": [1, 2, 3]}, ValueError, "position: expected one value"),
        ({"seed": []}, ValueError, "seed: expected 1 to 2147483647 rows, got 0"),
        ({"seed": range(2**40)}, ValueError, "seed: expected 1 to 2147483647 rows, got 10995"),
        ({"batch": None, "position": []}, ValueError, "position: expected 1 to .* rows, got 0"),
        ({"batch": None, "like": "x"}, TypeError, "like: expected a NumPy array"),
    ],
)
def test_invalid_sampler_arguments_are_named(arguments, error, text):
    with pytest.raises(error, match=f"^{text}"):
        gumbel.Sampler(**{"batch": None if "seed" in arguments else 2, **arguments})


@pytest.mark.parametrize(
    "slots, error, text",
    [
        ([6], ValueError, r"slots\[0\]: 6 is not in \[0, 5\]"),
        ([-1], ValueError, r"slots\[0\]: -1 is not in"),
        ([1, 1], ValueError, "slots: slot 1 is repeated"),
        ([1.5], TypeError, r"slots\[0\]: expected an integer"),
        (3, TypeError, "slots: expected a list"),
        ("3", TypeError, "slots: expected"),
    ],
)
def test_invalid_slots_are_named(slots, error, text):
    sampler = gumbel.Sampler(seed=7, num_slots=6)
    before = sampler.state_dict()
    with pytest.raises(error, match=f"^{text}"):
        sampler.reset(slots=slots)
    assert sampler.state_dict() == before


def test_missing_arguments_are_named():
    with pytest.raises(ValueError, match="^slots: required by a sampler with num_slots"):
        gumbel.Sampler(num_slots=4).sample_logits(LOGITS[0])
    with pytest.raises(ValueError, match="^slots: the number of slots is unknown"):
        gumbel.Sampler().reset()
    with pytest.raises(ValueError, match="^seed: required, because the sampler was created with"):
        gumbel.Sampler(seed=[1, 2]).reset(slots=[0])
    gumbel.Sampler(seed=[1, 2]).reset(slots=[0], seed=[3])
    gumbel.Sampler(num_slots=4).reset(slots=[])


def test_a_slot_serves_one_row_of_a_call():
    sampler = gumbel.Sampler(seed=7, num_slots=5)
    rows, position = LOGITS[0][:3], np.zeros(5, np.uint64)
    for slots in ([0, 0, 1], np.array([2, 1, 2], np.int32)):
        for call in (sampler.sample_logits, sampler.prepare_sample_logits):
            with pytest.raises(ValueError, match="^slots: slot [02] is repeated"):
                call(rows, slots=slots)
        with pytest.raises(ValueError, match="^slots: slot [02] is repeated"):
            gumbel.advance(position, slots=slots)
    assert sampler.position.tolist() == position.tolist() == [0] * 5
    sampler.sample_logits(rows, slots=[3, 0, 0], live_rows=2)  # a row that is not drawn
    gumbel.advance(position, slots=[3, 0, 0], live_rows=2)
    assert sampler.position.tolist() == position.tolist() == [1, 0, 0, 1, 0]
    with pytest.raises(ValueError, match=r"^slots\[1\]: 5 is not in \[0, 4\]"):
        sampler.sample_logits(rows, slots=[0, 5, 1])
    with pytest.raises(ValueError, match=r"^slots: slots\[1\] is 5; it must be in 0..4"):
        gumbel.sample_logits(rows, slots=[0, 5, 1], num_slots=5)
    for slots in (range(2**62), [0, 1], [0] * 4):
        with pytest.raises(ValueError, match=r"^slots: expected .* the shape \(3,\)"):
            sampler.sample_logits(rows, slots=slots)

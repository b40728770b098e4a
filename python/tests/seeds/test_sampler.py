# SPDX-License-Identifier: Apache-2.0
"""A Sampler draws as calls with explicit seeds and positions, and advances positions itself."""

import copy
import json
import pickle

import gumbel
import numpy as np
import pytest

B, V, D, STEPS = 4, 300, 16, 5
RNG = np.random.default_rng(8)
WEIGHT = RNG.normal(size=(V, D)).astype(np.float32)
HIDDEN = RNG.normal(size=(STEPS, B, D)).astype(np.float32)
LOGITS = np.stack([step @ WEIGHT.T for step in HIDDEN])


def tokens_of(out):
    return out.tokens.tolist()


def draw_by_sampler(sampler, steps=range(STEPS), **more):
    return [tokens_of(sampler.sample_logits(LOGITS[t], **more)) for t in steps]


def draw_by_calls(seed, steps=range(STEPS), first=0, **more):
    return [
        tokens_of(gumbel.sample_logits(LOGITS[t], seed=seed, position=first + i, **more))
        for i, t in enumerate(steps)
    ]


@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1, [1, 2, 3, 2**63], np.arange(4), np.uint64(9)])
@pytest.mark.parametrize("more", [{}, {"num_samples": 3}, {"top_k": 20, "temperature": 0.7}])
def test_tokens_match_explicit_calls(seed, more):
    sampler = gumbel.Sampler(seed=seed)
    assert draw_by_sampler(sampler, **more) == draw_by_calls(seed, **more)
    assert sampler.position.tolist() == [STEPS] * B and sampler.device == "cpu"


def test_tokens_from_a_head_match_explicit_calls():
    for screen in (WEIGHT, gumbel.Screen(WEIGHT)):
        sampler = gumbel.Sampler(seed=7, batch=B, position=[3, 9, 2**64 - 1, 0])
        position = np.array([3, 9, 2**64 - 1, 0], np.uint64)
        for t in range(3):
            out = sampler.sample(HIDDEN[t], screen, logprobs=None)
            same = gumbel.sample(HIDDEN[t], WEIGHT, seed=7, position=position)
            assert tokens_of(out) == tokens_of(same)
            np.testing.assert_array_equal(out.seed, sampler.seed)
            position += np.uint64(1)  # modulo 2^64
        np.testing.assert_array_equal(sampler.position, position)


def test_without_a_seed_no_two_samplers_agree():
    one, other = gumbel.Sampler(batch=B), gumbel.Sampler(batch=B)
    assert set(one.seed.tolist()).isdisjoint(other.seed.tolist())
    again = gumbel.Sampler(seed=one.state_dict()["root"])
    assert draw_by_sampler(one) == draw_by_sampler(again)


@pytest.mark.parametrize("way", ["json", "pickle", "copy", "pickled sampler"])
@pytest.mark.parametrize("arguments", [{}, {"batch": B}])
def test_saved_samplers_continue(way, arguments):
    sampler = gumbel.Sampler(seed=2**63 + 5, **arguments)
    begun = draw_by_sampler(sampler, range(2))
    if way == "pickled sampler":
        other = pickle.loads(pickle.dumps(sampler))
    else:
        through = {
            "json": lambda state: json.loads(json.dumps(state)),
            "pickle": lambda state: pickle.loads(pickle.dumps(state)),
            "copy": copy.deepcopy,
        }
        state = through[way](sampler.state_dict())
        other = gumbel.Sampler(**arguments)
        other.load_state_dict(state)
    rest = draw_by_sampler(sampler, range(2, STEPS))
    assert begun + rest == draw_by_calls(2**63 + 5)
    assert draw_by_sampler(other, range(2, STEPS)) == rest
    assert other.state_dict() == sampler.state_dict()


def test_samplers_without_rows_can_be_saved():
    sampler, other = gumbel.Sampler(seed=7, position=3), gumbel.Sampler()
    other.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert draw_by_sampler(other) == draw_by_calls(7, first=3)


def test_prepared_calls_advance_the_same_positions():
    sampler, inputs = gumbel.Sampler(seed=7), LOGITS[0].copy()
    call = sampler.prepare_sample_logits(inputs, temperature=0.9)
    found = [tokens_of(call())]
    saved = sampler.state_dict()
    found.append(tokens_of(sampler.sample_logits(LOGITS[1], temperature=0.9)))
    found += [tokens_of(call(LOGITS[t])) for t in range(2, STEPS)]
    assert found == draw_by_calls(7, temperature=0.9)
    sampler.load_state_dict(saved)  # which the prepared call sees
    assert [tokens_of(call(LOGITS[t])) for t in range(1, STEPS)] == found[1:]
    hidden = gumbel.Sampler(seed=7)
    call = hidden.prepare_sample(HIDDEN[0], WEIGHT)
    assert [tokens_of(call(HIDDEN[t])) for t in range(2)] == [
        tokens_of(gumbel.sample(HIDDEN[t], WEIGHT, seed=7, position=t)) for t in range(2)
    ]


def test_slots_join_and_leave():
    """Rows that join and leave, at any index of a batch, have the texts of rows alone."""
    sampler = gumbel.Sampler(seed=7, num_slots=6)
    place = {"num_slots": 6, "seed": sampler.seed.copy()}
    position = np.zeros(6, np.uint64)
    for t, slots in enumerate(([5, 0], [0, 5, 2], [2], [2, 0])):
        if t == 2:
            sampler.reset(slots=[0, 4], position=[11, 12], seed=[99, 98])
            place["seed"][[0, 4]], position[[0, 4]] = (99, 98), (11, 12)
        rows = LOGITS[t][: len(slots)]
        out = sampler.sample_logits(rows, slots=slots)
        same = gumbel.sample_logits(rows, slots=slots, position=position, **place)
        assert tokens_of(out) == tokens_of(same)
        position[slots] += np.uint64(1)
        np.testing.assert_array_equal(sampler.position, position)
    alone = gumbel.sample_logits(LOGITS[3][1:2], seed=[99], position=11)
    assert tokens_of(out)[1] == tokens_of(alone)[0]


def test_a_sequence_that_joins_has_noise_of_its_own():
    sampler = gumbel.Sampler(seed=7, num_slots=2)
    seeds = list(sampler.seed)
    for slot in (1, 1, 0):
        sampler.reset(slots=[slot])
        seeds.append(sampler.seed[slot])
    assert len(set(seeds)) == 5 and seeds == [gumbel_row_seed(7, n) for n in range(5)]
    sampler.reset(seed=7)
    assert sampler.seed.tolist() == seeds[:2] and sampler.position.tolist() == [0, 0]
    sampler.reset(slots=[1], seed=9, position=4)
    assert sampler.seed.tolist() == [seeds[0], gumbel_row_seed(9, 1)]
    assert sampler.position.tolist() == [0, 4]


def gumbel_row_seed(seed, row):
    return gumbel._abi.lib.gumbel_row_seed(seed, row)


@pytest.mark.parametrize("slots", [None, [5, 0, 3, 1]])
@pytest.mark.parametrize("prepared", [False, True])
def test_a_history_counts_what_was_drawn(slots, prepared):
    arguments = {"batch": B} if slots is None else {"num_slots": 6}
    sampler = gumbel.Sampler(seed=7, **arguments)
    history, other = gumbel.History(6, V), gumbel.History(6, V)
    where = {} if slots is None else {"slots": np.array(slots, np.int32)}
    penalties = {"presence_penalty": 30.0, "top_k": 40}
    inputs = LOGITS[0].copy()
    if prepared:
        call = sampler.prepare_sample_logits(inputs, history=history, **where, **penalties)
    for t in range(STEPS):
        inputs[:] = LOGITS[0]
        out = (
            call()
            if prepared
            else sampler.sample_logits(inputs, history=history, **where, **penalties)
        )
        same = gumbel.sample_logits(
            inputs,
            seed=gumbel.Sampler(seed=7, num_slots=6).seed if slots else 7,
            position=t,
            history=other,
            **penalties,
            **({**where, "num_slots": 6} if slots else {}),
        )
        assert tokens_of(out) == tokens_of(same)
        other.update(same.tokens, slots=slots or range(B))
        np.testing.assert_array_equal(history.counts, other.counts)
    assert history.counts.sum() == STEPS * B and history.counts.max() == 1


def test_positions_of_unused_rows_do_not_advance():
    sampler, history = gumbel.Sampler(seed=7, batch=B), gumbel.History(B, V)
    sampler.sample_logits(LOGITS[0], live_rows=2, history=history)
    assert sampler.position.tolist() == [1, 1, 0, 0] and history.counts.sum() == 2


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


BAD_SEEDS = [
    (-1, ValueError, r"seed: -1 is not in \[0, 18446744073709551615\]"),
    (2**64, ValueError, "seed: 18446744073709551616 is not in"),
    (1.0, TypeError, "seed: expected an integer, got float"),
    (True, TypeError, "seed: expected an integer, got bool"),
    ("7", TypeError, "seed: expected an integer, got str"),
    (b"7", TypeError, "seed: expected an integer, got bytes"),
    (np.nan, TypeError, "seed: expected an integer"),
    ([1, -1, 2, 3], ValueError, r"seed\[1\]: -1 is not in"),
    ([1, 2.5, 2, 3], TypeError, r"seed\[1\]: expected an integer"),
    ([1, True, 2, 3], TypeError, r"seed\[1\]: expected an integer, got bool"),
    ([1, 2], ValueError, r"seed: expected one value or the shape \(4,\)"),
    (np.ones(4), TypeError, "seed: "),
    (np.ones((2, 2), int), ValueError, "seed: "),
    ({}, TypeError, "seed: "),
]


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


def test_samplers_have_a_readable_repr():
    sampler = gumbel.Sampler(seed=7, position=3)
    assert repr(sampler) == "Sampler(seed=7, batch=None, position=3, device=None)"
    draw_by_sampler(sampler, range(1))
    text = "Sampler(seed=7, batch=4, position=uint64[4] [4, 4, 4, 4], device='cpu')"
    assert repr(sampler) == text
    text = repr(gumbel.Sampler(seed=[1, 2], num_slots=2))
    assert text.startswith("Sampler(seed=uint64[2] [1, 2], num_slots=2, position=uint64[2] [0, 0]")
    assert len(repr(gumbel.Sampler(batch=10000))) < 200


def test_missing_arguments_are_named():
    with pytest.raises(ValueError, match="^slots: required by a sampler with num_slots"):
        gumbel.Sampler(num_slots=4).sample_logits(LOGITS[0])
    with pytest.raises(ValueError, match="^slots: the number of slots is unknown"):
        gumbel.Sampler().reset()
    with pytest.raises(ValueError, match="^seed: required, because the sampler was created with"):
        gumbel.Sampler(seed=[1, 2]).reset(slots=[0])
    gumbel.Sampler(seed=[1, 2]).reset(slots=[0], seed=[3])
    gumbel.Sampler(num_slots=4).reset(slots=[])


@pytest.mark.parametrize(
    "change, error",
    [
        (lambda s: None, ValueError),
        (lambda s: {k: v for k, v in s.items() if k != "root"}, ValueError),
        (lambda s: {**s, "more": 1}, ValueError),
        (lambda s: {**s, "version": 2}, ValueError),
        (lambda s: {**s, "of_slots": True}, ValueError),
        (lambda s: {**s, "seed": [], "position": []}, ValueError),
        (lambda s: {**s, "seed": s["seed"][:2]}, ValueError),
        (lambda s: {**s, "seed": None}, ValueError),
        (lambda s: {**s, "seed": 7}, TypeError),
        (lambda s: {**s, "position": [1.5] * B}, TypeError),
        (lambda s: {**s, "position": s["position"][:1]}, ValueError),
        (lambda s: {**s, "position": [-1] * B}, ValueError),
        (lambda s: {**s, "root": "7"}, TypeError),
        (lambda s: {**s, "sequences": 2**64}, ValueError),
    ],
)
def test_invalid_states_raise(change, error):
    sampler = gumbel.Sampler(seed=7, batch=B)
    draw_by_sampler(sampler, range(2))
    before = sampler.state_dict()
    with pytest.raises(error, match="^state"):
        sampler.load_state_dict(change(sampler.state_dict()))
    assert sampler.state_dict() == before


@pytest.mark.parametrize(
    "change, error, text",
    [
        ({"seed": []}, ValueError, "state.seed: expected 1 to 2147483647 rows, got 0"),
        ({"seed": range(2**40)}, ValueError, "state.seed: expected 1 to 2147483647 rows"),
        ({"seed": None, "root": None}, ValueError, "state: neither a seed for each row"),
        ({"seed": 7}, ValueError, "state: neither a seed for each row"),
        ({"seed": None, "position": [5]}, TypeError, "state.position: expected an integer"),
        ({"seed": None, "position": [5, 6, 7]}, TypeError, "state.position: expected an integer"),
        ({"version": np.ones(2)}, ValueError, "state: version array.* is not supported"),
    ],
)
def test_states_of_other_samplers_raise(change, error, text):
    state = {**gumbel.Sampler(seed=7, batch=B).state_dict(), **change}
    sampler = gumbel.Sampler()
    before = sampler.state_dict()
    with pytest.raises(error, match=f"^{text}"):
        sampler.load_state_dict(state)
    assert sampler.state_dict() == before


def test_a_device_is_known_before_the_rows_are():
    sampler = gumbel.Sampler(seed=7, like=LOGITS[0])
    assert (sampler.device, sampler.seed) == ("cpu", None)
    assert draw_by_sampler(sampler) == draw_by_calls(7)
    other = copy.deepcopy(gumbel.Sampler(like=LOGITS[0]))
    other.load_state_dict(sampler.state_dict())
    assert other.state_dict() == sampler.state_dict()


def test_an_empty_batch_does_not_fix_the_rows():
    sampler = gumbel.Sampler(seed=7)
    assert sampler.sample_logits(LOGITS[0][:0]).tokens.shape == (0, 1)
    assert sampler.seed is None and draw_by_sampler(sampler) == draw_by_calls(7)


def test_positions_may_be_written():
    sampler = gumbel.Sampler(seed=7, batch=B)
    sampler.position[:] = 40
    assert draw_by_sampler(sampler) == draw_by_calls(7, first=40)


POSITIONS = [
    40,
    [40, 41, 42, 43],
    range(40, 44),
    np.arange(40, 44, dtype=np.int32),
    np.arange(40, 48, dtype=np.uint64)[::2],
    np.arange(40, 44, dtype=">u8"),
]


@pytest.mark.parametrize("value", POSITIONS, ids=str)
@pytest.mark.parametrize("prepared", [False, True])
def test_assigned_positions_are_copied_and_advance(value, prepared):
    sampler, seeds = gumbel.Sampler(seed=7, batch=B), gumbel.Sampler(seed=7, batch=B).seed
    call = sampler.prepare_sample_logits(LOGITS[0]) if prepared else sampler.sample_logits
    kept = sampler.position
    sampler.position = value
    start = np.array(np.broadcast_to(np.asarray(value), (B,)), np.uint64)
    for t in range(3):
        same = gumbel.sample_logits(LOGITS[0], seed=seeds, position=start + np.uint64(t))
        assert tokens_of(call(LOGITS[0])) == tokens_of(same)
    assert sampler.position is kept and kept.dtype == np.uint64
    assert sampler.state_dict()["position"] == (start + np.uint64(3)).tolist()


def test_positions_are_assigned_by_an_update_and_from_themselves():
    sampler = gumbel.Sampler(seed=7, batch=B)
    sampler.position += 5
    assert sampler.position.tolist() == [5] * B
    sampler.position = [1, 2, 3, 4]
    sampler.position = sampler.position[::-1]
    assert sampler.position.tolist() == [4, 3, 2, 1]


def test_assigned_seeds_are_copied():
    sampler = gumbel.Sampler(seed=7, batch=B)
    call, kept = sampler.prepare_sample_logits(LOGITS[0]), sampler.seed
    sampler.seed = [1, 2, 3, 2**64 - 1]
    assert tokens_of(call()) == tokens_of(
        gumbel.sample_logits(LOGITS[0], seed=[1, 2, 3, 2**64 - 1])
    )
    assert sampler.seed is kept and sampler.state_dict()["seed"] == [1, 2, 3, 2**64 - 1]
    sampler.seed = 9
    assert sampler.seed is kept and sampler.state_dict()["root"] == 9
    np.testing.assert_array_equal(kept, gumbel.Sampler(seed=9, batch=B).seed)
    sampler.reset(slots=[0])
    assert sampler.seed[0] == gumbel_row_seed(9, B)


@pytest.mark.parametrize("name", ["seed", "position"])
@pytest.mark.parametrize("value, error, text", [*BAD_SEEDS, (None, TypeError, "seed: ")])
def test_invalid_assignments_are_named(name, value, error, text):
    sampler = gumbel.Sampler(seed=7, batch=B)
    before = sampler.state_dict()
    with pytest.raises(error, match=f"^{text}".replace("seed", name)):
        setattr(sampler, name, value)
    assert sampler.state_dict() == before


@pytest.mark.parametrize("name", ["seed", "position"])
def test_rows_that_are_unknown_cannot_be_assigned(name):
    with pytest.raises(ValueError, match=f"^{name}: the number of rows is unknown; create the"):
        setattr(gumbel.Sampler(seed=7), name, [1, 2])


def test_a_read_only_position_is_not_written():
    sampler = gumbel.Sampler(seed=7, batch=B)
    sampler.position.flags.writeable, before = False, sampler.state_dict()
    for change in (
        lambda: sampler.sample_logits(LOGITS[0]),
        lambda: sampler.prepare_sample_logits(LOGITS[0]),
        lambda: setattr(sampler, "position", 3),
        sampler.reset,
    ):
        with pytest.raises(ValueError, match="array is read-only; set its flags.writeable"):
            change()
        assert sampler.state_dict() == before


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


def test_tensors():
    torch = pytest.importorskip("torch")
    steps = torch.from_numpy(LOGITS)
    sampler = gumbel.Sampler(seed=2**63 + 1)
    call = sampler.prepare_sample_logits(steps[0])
    found = [call().tokens.tolist()]
    found += [sampler.sample_logits(steps[t]).tokens.tolist() for t in range(1, STEPS)]
    assert found == draw_by_calls(2**63 + 1)
    assert draw_by_sampler(gumbel.Sampler(seed=torch.tensor([1, 2, 3, 4]))) == draw_by_calls(
        [1, 2, 3, 4]
    )


@pytest.fixture
def cuda():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    return torch


def test_a_captured_graph_advances_its_positions(cuda):
    torch = cuda
    inputs = torch.from_numpy(LOGITS[0]).cuda()
    for arguments in ({"batch": B}, {"num_slots": 6}):
        where = {}
        if "num_slots" in arguments:
            where = {"slots": torch.tensor([5, 0, 3, 1], dtype=torch.int32, device="cuda")}
        history = gumbel.History(6, V, like=inputs)
        sampler = gumbel.Sampler(seed=7, like=inputs, **arguments)
        call = sampler.prepare_sample_logits(
            inputs, history=history, presence_penalty=30.0, **where
        )
        first = sampler.state_dict()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        assert sampler.state_dict() == first
        found = []
        for _ in range(STEPS):
            graph.replay()
            found.append(call.output.tokens.tolist())
        assert history.counts.sum() == STEPS * B
        eager = gumbel.Sampler(seed=7, like=inputs, **arguments)
        history = gumbel.History(6, V, like=inputs)
        for tokens_ in found:
            out = eager.sample_logits(inputs, history=history, presence_penalty=30.0, **where)
            assert out.tokens.tolist() == tokens_
        assert eager.state_dict() == sampler.state_dict()
        sampler.load_state_dict(first)
        sampler.reset(slots=[0], position=9, seed=[2**63])
        assert sampler.state_dict()["seed"][0] == 2**63


def test_a_graph_sees_assigned_positions(cuda):
    torch = cuda
    inputs = torch.from_numpy(LOGITS[0]).cuda()
    sampler = gumbel.Sampler(seed=7, batch=B, like=inputs)
    call, kept = sampler.prepare_sample_logits(inputs), sampler.position
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
        with pytest.raises(RuntimeError, match="^position: pass a tensor on the GPU while"):
            sampler.position = 3
    for value in (40, [1, 2, 3, 4], torch.tensor([5, 6, 7, 8], device="cuda")):
        sampler.position, sampler.seed = value, [1, 2, 3, 2**64 - 1]
        graph.replay()
        same = gumbel.sample_logits(inputs, seed=[1, 2, 3, 2**64 - 1], position=value)
        assert call.output.tokens.tolist() == same.tokens.tolist()
    assert sampler.position is kept and kept.tolist() == [6, 7, 8, 9]
    sampler.seed = sampler.seed.clone()  # whose bits count
    assert sampler.state_dict()["seed"][3] == 2**64 - 1


def test_a_state_is_loaded_on_the_device_of_like(cuda):
    sampler = gumbel.Sampler(seed=7)
    draw_by_sampler(sampler, range(2))
    other = gumbel.Sampler(like=cuda.zeros(1, device="cuda"))
    other.load_state_dict(sampler.state_dict())
    assert other.position.is_cuda and other.state_dict() == sampler.state_dict()


def test_a_state_moves_between_devices(cuda):
    sampler = gumbel.Sampler(seed=2**63)
    draw_by_sampler(sampler, range(2))
    other = gumbel.Sampler(batch=B, like=cuda.zeros(1, device="cuda"))
    other.load_state_dict(sampler.state_dict())
    assert other.state_dict() == sampler.state_dict()
    with pytest.raises(ValueError, match="^sampler: is on cuda:0, the call on cpu"):
        draw_by_sampler(other, range(1))

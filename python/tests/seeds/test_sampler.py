# SPDX-License-Identifier: Apache-2.0
"""A Sampler draws as calls with explicit seeds and positions, and advances positions itself."""

import gumbel
import numpy as np
import pytest
from sampler_draws import (  # noqa: F401, the fixture
    HIDDEN,
    LOGITS,
    STEPS,
    WEIGHT,
    B,
    V,
    cuda,
    draw_by_calls,
    draw_by_sampler,
    gumbel_row_seed,
    tokens_of,
)


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


def test_samplers_have_a_readable_repr():
    sampler = gumbel.Sampler(seed=7, position=3)
    assert repr(sampler) == "Sampler(seed=7, batch=None, position=3, device=None)"
    draw_by_sampler(sampler, range(1))
    text = "Sampler(seed=7, batch=4, position=uint64[4] [4, 4, 4, 4], device='cpu')"
    assert repr(sampler) == text
    text = repr(gumbel.Sampler(seed=[1, 2], num_slots=2))
    assert text.startswith("Sampler(seed=uint64[2] [1, 2], num_slots=2, position=uint64[2] [0, 0]")
    assert len(repr(gumbel.Sampler(batch=10000))) < 200


def test_an_empty_batch_does_not_fix_the_rows():
    sampler = gumbel.Sampler(seed=7)
    assert sampler.sample_logits(LOGITS[0][:0]).tokens.shape == (0, 1)
    assert sampler.seed is None and draw_by_sampler(sampler) == draw_by_calls(7)


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

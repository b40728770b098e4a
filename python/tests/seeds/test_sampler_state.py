# SPDX-License-Identifier: Apache-2.0
"""The seeds and positions of a Sampler may be saved, loaded and assigned."""

import copy
import json
import pickle

import gumbel
import numpy as np
import pytest
from sampler_draws import (  # noqa: F401, the fixture
    BAD_SEEDS,
    LOGITS,
    STEPS,
    B,
    cuda,
    draw_by_calls,
    draw_by_sampler,
    gumbel_row_seed,
    tokens_of,
)


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

# SPDX-License-Identifier: Apache-2.0
"""Operators without a seed draw one when they run, compiled or not; positions advance in place."""

import gumbel
import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.9")

import gumbel.torch  # noqa: E402

ops = torch.ops.gumbel
B, V, D = 4, 515, 32
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
COMPILED = {  # the last captures CUDA graphs
    "eager": lambda function: function,
    "compiled": lambda function: torch.compile(function, fullgraph=True),
    "graphs": lambda function: torch.compile(function, fullgraph=True, mode="reduce-overhead"),
}


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(params=COMPILED)
def compiled(request):
    torch._dynamo.reset()
    return COMPILED[request.param]


def distinct_draws(step, *inputs, calls=8):
    return {tuple(step(*inputs).flatten().tolist()) for _ in range(calls)}


def test_every_call_without_a_seed_differs(device, compiled):
    logits = torch.zeros(B, V, device=device)
    hidden, weight = torch.zeros(B, D, device=device), torch.zeros(V, D, device=device)
    drafts = torch.zeros(B, 1, dtype=torch.int32, device=device)
    for step, inputs in (
        (lambda logits: ops.sample_logits(logits, logprobs=None)[0], (logits,)),
        (lambda h, w: ops.sample(h, w, logprobs=None)[0], (hidden, weight)),
        (lambda logits, t: ops.verify_logits(logits, t, logprobs=None)[0], (logits, drafts)),
    ):
        assert len(distinct_draws(compiled(step), *inputs)) == 8


def test_two_draws_of_one_step_differ(device, compiled):
    """Compilers take two equal calls of a pure function for one."""

    def step(logits):
        first, second = (ops.sample_logits(logits, logprobs=None)[0] for _ in range(2))
        return torch.cat((first, second), 1)

    found = compiled(step)(torch.zeros(B, V, device=device))
    assert (found[:, 0] != found[:, 1]).any()


def test_a_seed_repeats_a_draw(device, compiled):
    logits, seed = torch.zeros(B, V, device=device), torch.tensor(7, device=device)
    position = torch.zeros(B, dtype=torch.int64, device=device)

    def step(logits, seed, position):
        return ops.sample_logits(logits, seed=seed, position=position, logprobs=None)[0]

    wanted = gumbel.sample_logits(np.zeros((B, V), np.float32), seed=7).tokens
    assert distinct_draws(compiled(step), logits, seed, position) == {tuple(wanted.ravel())}


def test_a_compiled_step_advances_its_positions(device, compiled):
    logits = torch.zeros(B, V, device=device)
    sampler = gumbel.Sampler(seed=7, batch=B, like=logits)
    state = (sampler.seed, sampler.position)
    seed, position = (torch.as_tensor(array).view(torch.int64) for array in state)

    def step(logits, seed, position):
        tokens = ops.sample_logits(logits, seed=seed, position=position, logprobs=None)[0]
        ops.advance(position)
        return tokens

    step = compiled(step)
    other = gumbel.Sampler(seed=7)
    for _ in range(5):
        wanted = other.sample_logits(np.zeros((B, V), np.float32)).tokens
        np.testing.assert_array_equal(step(logits, seed, position).cpu(), wanted)
    assert sampler.state_dict() == other.state_dict()


def test_advance_by_slots(device):
    position = torch.tensor([0, 2**62, 9], device=device)
    slots = torch.tensor([2, 0], dtype=torch.int32, device=device)
    ops.advance(position, slots=slots)
    live = torch.ones(1, dtype=torch.int32, device=device)
    ops.advance(position, slots=slots, live_rows=live)
    assert position.tolist() == [1, 2**62, 11]


def test_operators_pass_opcheck():
    logits, position = torch.zeros(B, V), torch.zeros(B, dtype=torch.int64)
    for operator, inputs, given in (
        (ops.advance.default, (position,), {}),
        (ops.sample_logits.default, (logits,), {"seed": torch.tensor(7), "logprobs": None}),
    ):
        torch.library.opcheck(operator, inputs, given)
    assert torch.Tag.nondeterministic_seeded in ops.sample.default.tags
    assert torch.Tag.nondeterministic_seeded not in ops.score.default.tags


def test_the_package_within_a_compiled_function():
    """A call of the package ends a graph; it draws at run time, too, and a Sampler advances."""
    torch._dynamo.reset()
    logits, sampler = torch.zeros(B, V), gumbel.Sampler(seed=7)
    step = torch.compile(lambda logits: gumbel.sample_logits(logits + 1, logprobs=None).tokens)
    assert len(distinct_draws(step, logits)) == 8
    step = torch.compile(lambda logits: sampler.sample_logits(logits + 1).tokens)
    found = [step(logits).tolist() for _ in range(5)]
    other, ones = gumbel.Sampler(seed=7), np.ones((B, V), np.float32)
    assert found == [other.sample_logits(ones).tokens.tolist() for _ in range(5)]


@pytest.fixture
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")


@pytest.mark.parametrize("prepared", [False, True])
def test_replays_of_a_graph_without_a_seed_differ(cuda, prepared):
    logits = torch.zeros(B, V, device="cuda")
    call = gumbel.prepare_sample_logits(logits) if prepared else None
    step = call if prepared else lambda: gumbel.sample_logits(logits)
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    found = set()
    for _ in range(8):
        graph.replay()
        found.add(tuple(out.tokens.flatten().tolist()))
        again = gumbel.sample_logits(logits, seed=out.seed)
        assert torch.equal(again.tokens, out.tokens)
    assert len(found) == 8

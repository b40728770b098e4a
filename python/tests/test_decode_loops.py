# SPDX-License-Identifier: Apache-2.0
"""Whole decode steps on tensors: lists, a draw, an append and the update of its rules.

On CUDA a step neither waits nor allocates, and a graph captures it.
"""

import contextlib

import gumbel
import numpy as np
import pytest

torch = pytest.importorskip("torch")

B, V, STEPS = 3, 300, 12
SERIES = (np.random.default_rng(41).normal(size=(STEPS, B, V)) * 2).astype(np.float32)
SERIES[:, :, 9:] -= 8  # few likely tokens, which repeat
GPU = pytest.param(
    "cuda:0", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
)


class Loop:
    """A decode loop on NumPy arrays (`device` None) or on tensors."""

    def __init__(self, device):
        self.series = SERIES if device is None else torch.tensor(SERIES, device=device)
        self.inputs = self.series[0].copy() if device is None else self.series[0].clone()
        like = None if device is None else self.inputs
        history = gumbel.History(B, V, like=like)
        self.recent = gumbel.Recent(B, 32, history=history, window=8, like=like)
        self.recent.start([[1, 2, 3], [2], []])
        self.lists = self.recent.make_lists(
            dry_multiplier=2.0, dry_allowed_length=1, ngram_size=[0, 3, 2], bad_words=[[4], [1, 2]]
        )
        self.updates = gumbel.RuleUpdates(B, surprise_target=2.0, like=like)
        self.call = gumbel.Sampler(seed=7, batch=B, like=like).prepare_sample_logits(
            self.inputs,
            lists=self.lists,
            history=history,
            repetition_penalty=1.2,
            order="surprise",
            surprise=self.updates.surprise,
        )

    def step(self):
        self.lists.update()
        out = self.call()  # of a Sampler, and so it appends the tokens
        self.updates.update(out.tokens, out.logprobs)

    def run(self, count, step=None):
        for at in range(count):
            self.inputs[:] = self.series[at]
            (step or self.step)()

    def texts(self):
        counts = np.array([int(count) for count in self.recent.count])
        tokens = np.array(self.recent.tokens.tolist())
        return [row[:count].tolist() for row, count in zip(tokens, counts)]


@contextlib.contextmanager
def without_waits_or_allocations(device):
    if device == "cpu":
        yield
        return
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def expected_loop():
    loop = Loop(None)
    loop.run(STEPS)
    assert all(len(set(text)) > 3 for text in loop.texts())
    assert not any(4 in text for text in loop.texts())
    return loop


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_steps_on_tensors(device):
    wanted, loop = expected_loop(), Loop(device)
    loop.run(1)
    loop.series = loop.series[1:]
    with without_waits_or_allocations(device):
        loop.run(STEPS - 1)
    assert loop.texts() == wanted.texts()
    np.testing.assert_allclose(loop.updates.surprise.cpu(), wanted.updates.surprise, atol=1e-4)
    for name in ("banned", "late_ids", "late_values", "status"):
        found = getattr(loop.lists, name)
        assert found.device == torch.device(device)
        np.testing.assert_allclose(found.cpu(), getattr(wanted.lists, name), rtol=1e-6)


@pytest.mark.parametrize("device", [GPU])
def test_a_graph_captures_a_step(device):
    wanted, loop = expected_loop(), Loop(device)
    loop.run(1)  # before the capture, so that the kernels are loaded
    loop.series, graph = loop.series[1:], torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loop.step()
    loop.run(STEPS - 1, graph.replay)
    assert loop.texts() == wanted.texts()


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_objects_stay_on_one_device(device):
    loop, other = Loop(device), Loop(None)
    if device != "cpu":
        with pytest.raises(ValueError, match="^lists: is on cpu, the call on cuda:0"):
            gumbel.sample_logits(loop.inputs, lists=other.lists)
        with pytest.raises(ValueError, match="^history: is on cpu, the rings are on cuda:0"):
            gumbel.Recent(B, 8, history=gumbel.History(B, V), like=loop.inputs)
    assert loop.recent.device == loop.lists.device == loop.updates.device == device

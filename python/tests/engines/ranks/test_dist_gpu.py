# SPDX-License-Identifier: Apache-2.0
"""Ranks on two GPUs, by NCCL and by peer memory, have the outputs of one GPU bit by bit, also in a
captured graph. A group that cannot exchange device memory raises an error.

Each kind of exchange runs once, in two processes; its cases are then compared one by one.
"""

import functools
import re

import gumbel
import pytest

torch = pytest.importorskip("torch", minversion="2.9")
dist = pytest.importorskip("gumbel.dist", exc_type=ImportError)

from gloo_ranks import on_two_ranks, reach  # noqa: E402

B, V, D = 10, 900, 64  # truncated rows take the exchange of top-64 candidates from 8 rows on
CUT = (0, 384, V)
FIELDS = ("tokens", "logprobs", "lse", "status", "ranks", "kept", "top_ids", "top_logprobs")

CASES = {
    "plain": {},
    "greedy": {"temperature": 0.0, "logprobs": None},
    "samples": {"temperature": 0.7, "num_samples": 3},
    "cut": {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "ranks": True, "kept": True},
    "nucleus": {"top_p": 0.8, "top_logprobs": 4},
    "edited": {"banned": [3, 200], "logit_bias": {11: 2.5, 500: -1.0}, "min_p": 0.02},
    "raw": {"logprobs": "raw", "top_logprobs": 3},
}


def count_gpus():
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def problem(device):
    random = torch.Generator().manual_seed(3)
    hidden = torch.randn(B, D, generator=random).to(torch.bfloat16)
    weight = (torch.randn(V, D, generator=random) / 4).to(torch.bfloat16)
    return hidden.to(device), weight.to(device)


def outputs_of(drawn):
    """Outputs of a draw, on the CPU."""
    found = {name: getattr(drawn, name) for name in FIELDS}
    return {name: value.cpu() for name, value in found.items() if value is not None}


def equal_outputs(one, other):
    return one.keys() == other.keys() and all(
        (
            torch.equal(one[name].nan_to_num(9e9), other[name].nan_to_num(9e9))
            if one[name].is_floating_point()
            else torch.equal(one[name], other[name])
        )
        for name in one
    )


def _cases(group, device, first, end):
    """For each case, whether the outputs of the group equal those of one device with the whole
    head."""
    hidden, weight = problem(device)
    logits = torch.randn(B, V, generator=torch.Generator().manual_seed(5)).to(device) * 3
    found = {}
    for name, arguments in CASES.items():
        reach(name)
        arguments = {"seed": 5, "position": 9, **arguments}
        drawn = outputs_of(group.sample(hidden, weight[first:end], **arguments))
        found["head", name] = equal_outputs(
            drawn, outputs_of(gumbel.sample(hidden, weight, **arguments))
        )
        drawn = outputs_of(group.sample_logits(logits[:, first:end], **arguments))
        found["logits", name] = equal_outputs(
            drawn, outputs_of(gumbel.sample_logits(logits, **arguments))
        )
    given = [1, 30, 600, 899, 384, 383, 0, 2, 700, 5]
    given = torch.tensor(given, dtype=torch.int32, device=device)
    drawn = outputs_of(group.score(hidden, weight[first:end], given))
    found["head", "score"] = equal_outputs(drawn, outputs_of(gumbel.score(hidden, weight, given)))
    return found


def _verified(group, device, first, end):
    """A group and one process accept the same drafts."""
    hidden, weight = problem(device)
    tokens = torch.tensor([7, 1, 2, 7, 3, 4], dtype=torch.int32, device=device)
    offsets = torch.tensor([0, 3, 6], dtype=torch.int32, device=device)
    arguments = {"offsets": offsets, "max_nodes": 3, "seed": [1, 2], "position": [4, 8]}
    ours = group.verify(hidden[:6], weight[first:end], tokens, **arguments)
    whole = gumbel.verify(hidden[:6], weight, tokens, **arguments)
    return torch.equal(ours.tokens, whole.tokens) and torch.equal(ours.emitted, whole.emitted)


def _captured(group, device, first, end):
    """A prepared call is captured, and replayed for other hidden states and positions."""
    hidden, weight = problem(device)
    position = torch.zeros(B, dtype=torch.int64, device=device)
    call = group.prepare_sample(
        hidden, weight[first:end], temperature=0.8, seed=1, position=position
    )
    call()
    group.wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    same = True
    for step in range(1, 6):
        hidden.copy_(hidden.roll(1, 0))
        position.fill_(step)
        graph.replay()
        group.wait()
        whole = gumbel.sample(hidden, weight, temperature=0.8, seed=1, position=position)
        same &= torch.equal(call.output.tokens, whole.tokens)
    return same


def _refused(group, device, first, end):
    hidden, weight = problem(device)
    with pytest.raises(RuntimeError, match="^logprobs: "):
        group.sample(hidden, weight[first:end], softcap=30.0, logprobs="raw")
    with pytest.raises(ValueError, match="^hidden: is on cpu, the group on cuda"):
        group.sample(hidden.cpu(), weight[first:end].cpu())
    return True


def _two_gpus(rank, peers):
    device = f"cuda:{rank}"
    first, end = CUT[rank], CUT[rank + 1]
    reach("group of the library's")
    with dist.Group(first, end - first, device=device, peer_memory=peers, timeout=60) as group:
        found = _cases(group, device, first, end)
        for check in (_verified, _captured, _refused):
            reach(check.__name__[1:])
            found["head", check.__name__[1:]] = check(group, device, first, end)
        reach("wait")
        group.wait()
        found["head", "peer_memory"] = group.peer_memory is (peers == "require")
        found["head", "counted"] = group.traffic["calls"] >= 2 * len(CASES)
        reach("end")
    return found


def _one_gpu(rank, mixed):
    """Both ranks on one GPU, or the second on the CPU, over gloo: the error of each rank."""
    device = "cpu" if mixed and rank == 1 else "cuda:0"
    with pytest.raises(RuntimeError) as refused:
        dist.Group(CUT[rank], CUT[rank + 1] - CUT[rank], device=device, timeout=60)
    return str(refused.value)


@functools.cache
def run_way(way):
    """The results of both ranks, or the error. Cached, so that no other case waits again."""
    try:
        if way in ("off", "require"):
            return on_two_ranks(_two_gpus, way, backend="nccl")
        return on_two_ranks(_one_gpu, way == "mixed")
    except AssertionError as problem:
        return (str(problem),) * 2


@pytest.mark.skipif(count_gpus() < 2, reason="fewer than two GPUs")
@pytest.mark.parametrize("peers", ("off", "require"))
@pytest.mark.parametrize(
    "case",
    [(way, name) for name in CASES for way in ("head", "logits")]
    + [
        ("head", name)
        for name in ("score", "verified", "captured", "refused", "peer_memory", "counted")
    ],
)
def test_two_gpus(peers, case):
    found = run_way(peers)
    for rank in (0, 1):
        assert not isinstance(found[rank], str), found[rank]
        assert found[rank][case] is True


@pytest.mark.skipif(count_gpus() < 1, reason="no GPU")
@pytest.mark.parametrize(
    "way, words",
    [("host", "transport: .*gumbel_nccl_transport"), ("mixed", "device: 1 of 2 ranks")],
)
def test_groups_that_cannot_exchange_device_memory(way, words):
    found = run_way(way)
    for rank in (0, 1):
        assert re.search(words, found[rank]), found[rank]


def test_invalid_peer_options_raise():
    def gather(own, seconds):
        return own

    for named, words in (
        ({"device": "tpu"}, "^device: "),
        ({"device": "cuda:x"}, "^device: "),
        ({"nccl": True}, "^nccl: "),
        ({"peer_memory": "yes"}, "^peer_memory: 'yes' is none of off, allow, require"),
    ):
        with pytest.raises(ValueError, match=words):
            dist.Group(0, 8, all_gather=gather, **named)
    with dist.Group(0, 8, all_gather=gather) as group:
        group.wait()
        assert group.sample_logits(torch.zeros(1, 8), temperature=0.0).tokens.tolist() == [[0]]

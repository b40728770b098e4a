# SPDX-License-Identifier: Apache-2.0
"""Ranks: threads with an all-gather of their own, and two processes of torch.distributed."""

import threading

import gumbel
import numpy as np
import pytest

dist = pytest.importorskip("gumbel.dist", exc_type=ImportError)

B, V, D = 5, 300, 16
CUTS = ((128, 300), (0, 64), (64, 128))  # any order of ranks


def make_problem():
    random = np.random.default_rng(3)
    hidden = random.standard_normal((B, D)).astype(np.float32)
    weight = random.standard_normal((V, D)).astype(np.float32)
    return hidden, weight


REQUESTS = (
    {},
    {"temperature": 0.0, "logprobs": None},
    {"top_k": 20, "top_p": 0.9, "ranks": True, "kept": True},
    {"top_p": 0.8, "top_logprobs": 4, "banned": [3, 200]},
    {"logprobs": "raw", "top_logprobs": 3, "num_samples": 2},
    {"order": "typical_p,xtc,temperature", "typical_p": 0.9, "xtc_probability": 0.5},
)


class Meeting:
    """An all-gather of threads."""

    def __init__(self, ranks):
        self.barrier, self.sent = threading.Barrier(ranks), [None] * ranks

    def of(self, rank):
        def gather(own, seconds):
            self.sent[rank] = own
            self.barrier.wait(seconds)
            found = np.concatenate(self.sent)
            self.barrier.wait(seconds)
            return found

        return gather


def run_ranks(body):
    """Run body(rank, group) on a thread for each rank; returns each result or exception."""
    meeting, found = Meeting(len(CUTS)), [None] * len(CUTS)

    def run(rank):
        first, end = CUTS[rank]
        try:
            with dist.Group(
                first,
                end - first,
                all_gather=meeting.of(rank),
                rank=rank,
                ranks=len(CUTS),
                timeout=20,
                threads=1,
            ) as group:
                found[rank] = body(rank, group)
        except Exception as problem:
            found[rank] = problem

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(CUTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def assert_same_outputs(one, other):
    for name in ("tokens", "logprobs", "lse", "status", "ranks", "kept", "top_ids", "top_logprobs"):
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None), name
        if a is not None:
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b), name)


@pytest.mark.parametrize("arguments", REQUESTS)
def test_ranks_draw_the_tokens_of_one_process(arguments):
    hidden, weight = make_problem()
    whole = gumbel.sample(hidden, weight, seed=5, position=9, **arguments)

    def body(rank, group):
        first, end = CUTS[rank]
        drawn = group.sample(hidden, weight[first:end], seed=5, position=9, **arguments)
        logits = (hidden @ weight.T)[:, first:end]
        return drawn, group.sample_logits(logits, seed=5, **arguments), group.traffic

    for found in run_ranks(body):
        drawn, by_logits, traffic = found
        assert_same_outputs(whole, drawn)
        assert_same_outputs(gumbel.sample_logits(hidden @ weight.T, seed=5, **arguments), by_logits)
        assert traffic["calls"] == 2 and traffic["rows"] == 2 * B


@pytest.mark.parametrize("logprobs", ["processed", "raw"])
def test_ranks_list_the_kept_sets_of_one_process(logprobs):
    hidden, weight = make_problem()
    rules = {"top_k": 20, "top_p": 0.9, "kept_ids": 20, "ties": "exact", "seed": 5}
    rules |= {"logprobs": logprobs, "temperature": 0.7}
    tokens = np.array([[1, 2, 3, 4, 5]], np.int32)

    def body(rank, group):
        first, end = CUTS[rank]
        drawn = group.sample(hidden, weight[first:end], **rules)
        verified = group.verify(hidden, weight[first:end], tokens, **rules)
        return drawn.kept_sets(), verified.kept_sets()

    drawn = gumbel.sample(hidden, weight, **rules).kept_sets()
    verified = gumbel.verify(hidden, weight, tokens, **rules).kept_sets()
    for found in run_ranks(body):
        for sets, expected in zip(found, (drawn, verified)):
            for one, other in zip(sets, expected):
                np.testing.assert_array_equal(one, other)


def test_different_rules_raise_on_all_ranks():
    hidden, weight = make_problem()

    def body(rank, group):
        first, end = CUTS[rank]
        typical_p = 0.8 if rank == 1 else 0.9
        with pytest.raises(RuntimeError, match="truncation: ranks 0 and 1 pass different"):
            group.sample(
                hidden, weight[first:end], order="typical_p,temperature", typical_p=typical_p
            )

    assert run_ranks(body) == [None] * len(CUTS)


def test_different_parameters_raise_on_all_ranks():
    hidden, weight = make_problem()

    def body(rank, group):
        first, end = CUTS[rank]
        seed = 6 if rank == 1 else 5
        with pytest.raises(RuntimeError, match="^seed: ranks 0 and 1 pass different values"):
            group.sample(hidden, weight[first:end], seed=seed)
        return group.sample(hidden, weight[first:end], seed=5)

    for found in run_ranks(body):
        assert_same_outputs(gumbel.sample(hidden, weight, seed=5), found)


def test_without_a_seed_ranks_share_a_fresh_one():
    hidden, weight = make_problem()

    def body(rank, group):
        first, end = CUTS[rank]
        call = group.prepare_sample(hidden, weight[first:end])
        drawn = [group.sample(hidden, weight[first:end]) for _ in range(4)]
        drafts = np.zeros((B, 1), np.int32)
        checked = group.verify(hidden, weight[first:end], drafts)
        prepared = []
        for _ in range(3):
            out = call()
            prepared.append((int(out.seed), out.tokens.copy()))
        return drawn, checked, prepared

    ranks = run_ranks(body)
    seeds = [out.seed for out in ranks[0][0]] + [ranks[0][1].seed]
    seeds += [seed for seed, _ in ranks[0][2]]
    assert len(set(seeds)) == 8
    for drawn, checked, prepared in ranks:
        for out in (*drawn, checked):
            whole = gumbel.sample(hidden, weight, seed=out.seed)
            np.testing.assert_array_equal(whole.tokens, out.tokens)
        for seed, tokens in prepared:
            np.testing.assert_array_equal(gumbel.sample(hidden, weight, seed=seed).tokens, tokens)
        assert [out.seed for out in (*drawn, checked)] == seeds[:5]
        assert [seed for seed, _ in prepared] == seeds[5:]


def test_failed_all_gather_makes_the_group_unusable():
    """An exception of the all-gather is raised by the call, and the group becomes unusable."""
    hidden, weight = make_problem()

    def gather(own, seconds):
        if len(calls) > 0:
            raise OSError("the cable is out")
        calls.append(own)
        return own

    calls = []
    with dist.Group(0, V, all_gather=gather) as group:
        with pytest.raises(RuntimeError, match="the cable is out"):
            group.sample(hidden, weight)
        with pytest.raises(RuntimeError, match="an earlier exchange failed"):
            group.sample(hidden, weight)


def _torch_rank(rank, port, results):
    import torch

    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    hidden, weight = (torch.from_numpy(array) for array in make_problem())
    first, end = ((0, 192), (192, V))[rank]
    found = []
    with dist.Group(first, end - first, timeout=60) as group:
        for arguments in REQUESTS:
            drawn = group.sample(hidden, weight[first:end], seed=5, **arguments)
            found.append((drawn.tokens.numpy(), drawn.status.numpy()))
    results.put((rank, found))
    torch.distributed.destroy_process_group()


def test_two_processes_of_torch():
    pytest.importorskip("torch")
    import multiprocessing
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=_torch_rank, args=(rank, port, results)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    found = [results.get(timeout=120) for _ in ranks]
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
    hidden, weight = make_problem()
    for _, drawn in found:
        for arguments, (tokens, status) in zip(REQUESTS, drawn):
            whole = gumbel.sample(hidden, weight, seed=5, **arguments)
            np.testing.assert_array_equal(whole.tokens, tokens)
            np.testing.assert_array_equal(whole.status, status)

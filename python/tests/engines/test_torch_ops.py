# SPDX-License-Identifier: Apache-2.0
"""torch.ops.gumbel.* equal the package's calls, compiled, in graphs and on streams."""

import gumbel
import pytest
from torch_operators import (  # noqa: F401, skips without torch
    B,
    D,
    V,
    as_package,
    assert_same_outputs,
    device,
    everything,
    make_drafts,
    make_problem,
    ops,
    row_parameters,
    torch,
)


@pytest.mark.parametrize("more", [dict, everything], ids=["plain", "everything"])
def test_draws_match_the_package(device, more):
    hidden, weight = make_problem(device)
    arguments = {**row_parameters(device), **(more(device) if more is not dict else {})}
    wanted = gumbel.sample(hidden, weight, **as_package(arguments))
    assert_same_outputs(ops.sample(hidden, weight, **arguments), wanted)
    logits = (hidden @ weight.T).float()
    assert_same_outputs(
        ops.sample_logits(logits, **arguments),
        gumbel.sample_logits(logits, **as_package(arguments)),
    )


def test_the_bits_of_seeds_count(device):
    hidden, weight = make_problem(device)
    seeds = torch.tensor([-1, 3, -(2**63), 0], device=device)
    wanted = gumbel.sample(hidden, weight, seed=[2**64 - 1, 3, 2**63, 0]).tokens
    assert torch.equal(ops.sample(hidden, weight, seed=seeds)[0], wanted)


def test_the_bits_of_first_sample_count(device):
    hidden, weight = make_problem(device)
    counters = torch.tensor([-1, 3, -(2**31), 0], dtype=torch.int32, device=device)
    wanted = gumbel.sample(hidden, weight, seed=1, first_sample=[2**32 - 1, 3, 2**31, 0]).tokens
    found = ops.sample(hidden, weight, seed=torch.tensor(1, device=device), first_sample=counters)
    assert torch.equal(found[0], wanted)


def test_orders_of_more_rules():
    """On the CPU, as GPUs do not support programs."""
    hidden, weight = make_problem("cpu")
    rows = {
        **row_parameters("cpu"),
        "typical_p": torch.tensor([0.9, 0.5, 1.0, 0.7]),
        "xtc_probability": torch.tensor(0.5),
        "min_keep": torch.tensor([1, 3, 1, 2], dtype=torch.int32),
    }
    keep = {
        "xtc_keep_offsets": torch.tensor([0, 1, 1, 1, 1]),
        "xtc_keep_ids": torch.tensor([7], dtype=torch.int32),
    }
    orders = ["llama.cpp", "temperature,typical_p,min_p,top_k,top_p,xtc"]
    program = torch.tensor([0, 1, 1, 0], dtype=torch.int32)
    for given, wanted in (
        ({"order": "llama.cpp"}, {"order": "llama.cpp"}),
        ({"orders": orders, "program": program}, {"order": orders, "program": program}),
    ):
        assert_same_outputs(
            ops.sample(hidden, weight, kept=True, **rows, **keep, **given),
            gumbel.sample(hidden, weight, kept=True, **rows, **wanted, xtc_keep=[[7], [], [], []]),
        )


def test_adaptive_p():
    """On the CPU, as GPUs do not support programs."""
    hidden, weight = make_problem("cpu")
    rows = {**row_parameters("cpu"), "order": "temperature,top_k,min_p,top_p,adaptive_p"}
    plain = gumbel.sample(hidden, weight, **rows)
    rows["adaptive_target"] = torch.tensor([0.3, -1.0, 0.9, 0.05])
    found = ops.sample(hidden, weight, **rows)
    assert_same_outputs(found, gumbel.sample(hidden, weight, **rows))
    assert not torch.equal(found[2], plain.logprobs)


def test_unrequested_outputs_are_omitted(device):
    hidden, weight = make_problem(device)
    tokens, status = ops.sample(hidden, weight, logprobs=None, num_samples=3)
    assert tokens.shape == (B, 3) and status.tolist() == [0] * B


def test_scores_rows_and_top_k(device):
    hidden, weight = make_problem(device, torch.float32)
    logits = hidden @ weight.T
    tokens = torch.randint(0, V, (B, 3), dtype=torch.int32, device=device)
    assert_same_outputs(ops.score(hidden, weight, tokens), gumbel.score(hidden, weight, tokens))
    assert_same_outputs(
        ops.score_logits(logits, tokens[:, 0]), gumbel.score_logits(logits, tokens[:, 0])
    )
    rows = row_parameters(device)
    for name in ("process_logits", "softmax"):
        found = getattr(ops, name)(logits, **rows)
        torch.testing.assert_close(found, getattr(gumbel, name)(logits, **rows), rtol=0, atol=0)
    halves = logits.to(torch.bfloat16)
    wanted = gumbel.process_logits(halves, **rows).to(torch.bfloat16)
    apart = torch.empty_like(halves)
    ops.process_logits_into(halves, apart, **rows)
    ops.process_logits_into(halves, halves, **rows)
    assert torch.equal(apart, wanted) and torch.equal(halves, wanted)
    with pytest.raises(ValueError, match="^out: requires a gradient"):
        gumbel.process_logits(logits, out=logits.clone().requires_grad_())
    for found, wanted in zip(ops.top_k(logits, 5), gumbel.top_k(logits, 5)):
        assert torch.equal(found, wanted)


def test_a_history_is_written_in_place(device):
    hidden, weight = make_problem(device)
    parts = [everything(device)[f"history_{part}"] for part in ("prompt", "output", "counts")]
    slots = torch.tensor([2, 0], dtype=torch.int32, device=device)
    offsets = torch.tensor([0, 2, 3], device=device)
    ids = torch.tensor([5, 6, 9], dtype=torch.int32, device=device)
    ops.history_start(*parts, slots, output_offsets=offsets, output_ids=ids)
    assert parts[2].nonzero().tolist() == [[0, 9], [2, 5], [2, 6]]
    ops.history_update(*parts, torch.tensor([9, 4, 9, 1], dtype=torch.int32, device=device))
    assert parts[2][0, 9] == 2 and parts[2][2, 9] == 1 and parts[2][3, 1] == 1
    kept = gumbel.History(B, V, like=hidden)
    kept.start(outputs=[[9, 9], [4], [5, 6, 9], [1]])
    assert torch.equal(parts[2], kept.counts)
    history = dict(zip(("history_prompt", "history_output", "history_counts"), parts))
    penalty, rows = torch.tensor(2.0, device=device), row_parameters(device)
    assert_same_outputs(
        ops.sample(hidden, weight, frequency_penalty=penalty, seed=rows["seed"], **history),
        gumbel.sample(hidden, weight, frequency_penalty=2.0, seed=rows["seed"], history=kept),
    )


def test_operators_pass_opcheck(device):
    hidden, weight = make_problem(device)
    logits, rows = (hidden @ weight.T).float(), row_parameters(device)
    tokens = torch.zeros((B, 1), dtype=torch.int32, device=device)
    arguments = {**rows, **everything(device)}
    for op, arguments, keywords in (
        (ops.sample, (hidden, weight), arguments),
        (ops.sample_logits, (logits,), rows),
        (ops.score, (hidden, weight, tokens), rows),
        (ops.process_logits, (logits,), rows),
        (ops.process_logits_into, (logits, torch.empty_like(logits)), rows),
        (ops.softmax, (logits,), rows),
        (ops.top_k, (logits, 3), {}),
        # Log-probabilities are NaN after the last.
        (ops.verify, make_drafts(device), {"logprobs": None, "seed": rows["seed"]}),
        (
            ops.history_update,
            tuple(arguments[f"history_{part}"] for part in ("prompt", "output", "counts")),
            {"tokens": tokens[:, 0]},
        ),
    ):
        if keywords.get("tokens") is not None:
            arguments, keywords = (*arguments, keywords["tokens"]), {}
        torch.library.opcheck(op.default, arguments, keywords)


def decode(hidden, weight, embedding, rows):
    """Three steps of a model without layers."""
    position, steps = rows["position"], []
    for _ in range(3):
        normed = torch.nn.functional.rms_norm(hidden, (D,))
        tokens, status, logprobs, lse = ops.sample(normed, weight, **{**rows, "position": position})
        hidden = hidden + embedding[tokens[:, 0].long()]
        position = position + 1
        steps.append(tokens)
    return torch.cat(steps, 1), logprobs, status


def test_compiled_steps(device):
    hidden, weight = make_problem(device, torch.float32)
    embedding = weight.flip(0)
    rows = row_parameters(device)
    wanted = decode(hidden, weight, embedding, rows)
    for backend in ("eager", "aot_eager"):
        compiled = torch.compile(decode, fullgraph=True, backend=backend)
        for a, b in zip(compiled(hidden, weight, embedding, rows), wanted):
            assert torch.equal(a, b)


def test_a_batch_of_any_size_is_compiled_once():
    hidden, weight = make_problem("cpu")
    seed, count = torch.tensor(3), 0

    def counting(module, _):
        nonlocal count
        count += 1
        return module

    step = torch.compile(
        lambda h: ops.sample(h, weight, seed=seed, logprobs=None)[0],
        fullgraph=True,
        dynamic=True,
        backend=counting,
    )
    for batch in (2, 3, 4):
        wanted = ops.sample(hidden[:batch], weight, seed=seed)[0]
        assert torch.equal(step(hidden[:batch]), wanted)
    assert count == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_graphs_and_streams():
    hidden, weight = make_problem("cuda", torch.float32)
    embedding, rows = weight.flip(0), row_parameters("cuda")
    decode(hidden, weight, embedding, rows)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = decode(hidden, weight, embedding, rows)
        rows["position"] += 3
    position = rows["position"].clone()
    for step in range(100):
        rows["position"].copy_(position + 3 * step)
        wanted = decode(hidden, weight, embedding, rows)
        graph.replay()
        assert torch.equal(captured[0], wanted[0])
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    found = []
    for turn in range(40):
        with torch.cuda.stream(streams[turn % 4]):
            found.append(ops.sample(hidden * (1 + turn % 4), weight, seed=rows["seed"])[0])
    torch.cuda.synchronize()
    for turn, tokens in enumerate(found):
        wanted = ops.sample(hidden * (1 + turn % 4), weight, seed=rows["seed"])[0]
        assert torch.equal(tokens, wanted)


@pytest.mark.parametrize(
    "arguments, text",
    [
        (
            {"bias_ids": torch.zeros(1, dtype=torch.int32)},
            "bias_offsets: pass bias_offsets and bias_ids, or neither",
        ),
        ({"history_counts": torch.zeros(B, V, dtype=torch.int16)}, "history_prompt: required"),
        ({"temperature": torch.ones(2)}, "temperature: "),
        ({"num_best": 17}, "num_best: "),
        ({"order": "any"}, "order: "),
        ({"typical_p": torch.tensor(0.5)}, "typical_p: the order 'min_p,top_k,top_p' does not"),
        ({"xtc_keep_ids": torch.zeros(1, dtype=torch.int32)}, "xtc_keep_offsets: pass "),
    ],
)
def test_errors_name_the_argument(arguments, text):
    hidden, weight = make_problem("cpu")
    with pytest.raises((TypeError, ValueError), match=text):
        ops.sample(hidden, weight, **arguments)


def test_unsupported_lists_raise():
    hidden, weight = make_problem("cpu")
    good = {name: everything("cpu")[name] for name in ("bias_offsets", "bias_ids", "bias_values")}
    for name, value, text in (
        ("bias_offsets", good["bias_offsets"].int(), "logit_bias_offsets: expected int64"),
        ("bias_offsets", good["bias_offsets"][1:], "logit_bias_offsets: expected 5"),
        ("bias_values", good["bias_values"][1:], "logit_bias_values: expected 3"),
        ("bias_ids", good["bias_ids"].long(), "logit_bias_ids: expected int32"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            ops.sample(hidden, weight, **{**good, name: value})

# SPDX-License-Identifier: Apache-2.0
"""torch.ops.gumbel.* equal the package's calls, compiled, in graphs and on streams."""

import functools
import threading

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
NAMES = "tokens status logprobs lse ranks kept top_ids top_logprobs best_ids best_scores".split()


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def make_problem(device, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(B, D, generator=generator).to(dtype)
    weight = (torch.randn(V, D, generator=generator) * 3 / D**0.5).to(dtype)
    return hidden.to(device), weight.to(device)


def row_parameters(device):
    return {
        "temperature": torch.tensor([0.0, 0.7, 1.0, 1.3], device=device),
        "seed": torch.arange(B, device=device) * 7,
        "position": torch.tensor([5], device=device).repeat(B),
        "first_sample": torch.tensor([0, 3, 1, 2**31 - 1], dtype=torch.int32, device=device),
        "top_k": torch.tensor([0, 40, 3, 0], dtype=torch.int32, device=device),
        "top_p": torch.tensor([1.0, 0.9, 1.0, 0.8], device=device),
    }


def everything(device):
    words = (V + 31) // 32
    mask = torch.full((B, words), -1, dtype=torch.int32, device=device)
    mask[:, 3] = 0x0F0F0F0F
    return {
        "mask": mask,
        "bias_offsets": torch.tensor([0, 1, 1, 3, 3], device=device),
        "bias_ids": torch.tensor([7, 8, 9], dtype=torch.int32, device=device),
        "bias_values": torch.tensor([1.5, -2.0, 3.0], device=device),
        "history_prompt": torch.zeros((B, words), dtype=torch.int32, device=device),
        "history_output": torch.zeros((B, words), dtype=torch.int32, device=device),
        "history_counts": torch.zeros((B, V), dtype=torch.int16, device=device),
        "presence_penalty": torch.tensor(0.5, device=device),
        "ranks": True,
        "kept": True,
        "top_logprobs": 4,
        "num_best": 2,
    }


def as_package(arguments):
    """The arguments of the package's own call."""
    rest = {name: value for name, value in arguments.items()}
    rest.pop("bias_offsets", None)
    if rest.pop("bias_ids", None) is not None:
        rest.pop("bias_values")
        rest["logit_bias"] = [{7: 1.5}, {}, {8: -2.0, 9: 3.0}, {}]
    parts = [rest.pop(f"history_{part}", None) for part in ("prompt", "output", "counts")]
    if parts[0] is not None:
        rest["output_tokens"] = [[]] * B
    return rest


def assert_same_outputs(found, out):
    wanted = [getattr(out, name) for name in NAMES if getattr(out, name) is not None]
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        assert a.dtype == b.dtype and a.shape == b.shape and a.device == b.device
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


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
    for found, wanted in zip(ops.top_k(logits, 5), gumbel.top_k(logits, 5)):
        assert torch.equal(found, wanted)


def make_drafts(device):
    hidden, weight = make_problem(device)
    rows = hidden.repeat_interleave(3, 0) * torch.linspace(0.5, 2, 3 * B, device=device)[:, None]
    tokens = torch.randint(0, V, (B, 3), dtype=torch.int32, device=device)
    return rows.to(torch.bfloat16), weight, tokens


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_drafts(device, rule):
    rows, weight, tokens = make_drafts(device)
    parameters = row_parameters(device)
    if rule == "coupled":
        drawn = ops.sample(rows, weight, seed=parameters["seed"].repeat_interleave(3))[0]
        tokens[:, 1] = drawn.view(B, 3)[:, 0]
    draft, proposal = {}, None
    if rule == "rejection":
        draft = {"draft_hidden": rows.flip(1).contiguous(), "draft_weight": weight}
        proposal = gumbel.proposal(draft["draft_hidden"], weight)
    found = ops.verify(rows, weight, tokens, rule=rule, **draft, **parameters)
    wanted = gumbel.verify(rows, weight, tokens, rule=rule, proposal=proposal, **parameters)
    wanted = [value for name, value in vars(wanted).items() if name != "seed"]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    logits = (rows @ weight.T).float()
    found = ops.verify_logits(logits, tokens, seed=parameters["seed"], logprobs=None)
    wanted = gumbel.verify_logits(logits, tokens, seed=parameters["seed"])
    assert len(found) == 8 and torch.equal(found[0], wanted.tokens)


def chains_of_another_model(device):
    """Chains that another model's head drew, and the lse and logprobs of its draws; greedy: none.

    Returns what verify() takes: rows, weight, tokens, and the draft_ arguments by name.
    """
    rows, weight, tokens = make_drafts(device)
    other = (rows.float() * 0.8 + 0.3 * rows.float().roll(1, 1)).to(torch.bfloat16)
    lse, logprobs = torch.full((2, B, 3), float("nan"), device=device)
    for step in range(2):
        drawn = gumbel.sample(
            other[step::3],
            weight,
            seed=torch.arange(B, device=device) * 7,
            position=5 + step,
            domain=gumbel.draft_domain(),
        )
        tokens[:, step + 1] = drawn.tokens[:, 0]
        lse[:, step], logprobs[:, step] = drawn.lse, drawn.logprobs[:, 0]
    drawn_values = {"draft_lse": lse, "draft_logprobs": logprobs}
    return rows, weight, tokens, {"draft_hidden": other, "draft_weight": weight}, drawn_values


def test_drafts_with_supplied_logprobs(device):
    rows, weight, tokens, draft, drawn_values = chains_of_another_model(device)
    parameters = {name: row_parameters(device)[name] for name in ("seed", "position")}
    alone = ops.verify(rows, weight, tokens, rule="rejection", **draft, **parameters)
    found = ops.verify(
        rows, weight, tokens, rule="rejection", **draft, **drawn_values, **parameters
    )
    for a, b in zip(found[:-1], alone[:-1], strict=True):
        assert torch.equal(a, b)
    # Products of rows are summed in another order.
    torch.testing.assert_close(found[-1], alone[-1], rtol=0, atol=1e-4, equal_nan=True)
    drew = gumbel.proposal(
        draft["draft_hidden"],
        weight,
        drawn_lse=drawn_values["draft_lse"].ravel(),
        drawn_logprobs=drawn_values["draft_logprobs"].ravel(),
    )
    wanted = gumbel.verify(rows, weight, tokens, rule="rejection", proposal=drew, **parameters)
    assert torch.equal(found[0], wanted.tokens)
    by_logits = {"draft_logits": draft["draft_hidden"].float() @ weight.float().T}
    logits = rows.float() @ weight.float().T
    alone = ops.verify_logits(logits, tokens, rule="rejection", **by_logits, **parameters)
    found = ops.verify_logits(
        logits, tokens, rule="rejection", **by_logits, **drawn_values, **parameters
    )
    assert torch.equal(found[0], alone[0])
    if device == "cuda":  # q is unknown, so the rule equals the coupled one
        unknown = {
            name: torch.full_like(value, float("nan")) for name, value in drawn_values.items()
        }
        found = ops.verify(rows, weight, tokens, rule="rejection", **draft, **unknown, **parameters)
        assert torch.equal(found[0], ops.verify(rows, weight, tokens, **parameters)[0])


def test_invalid_draft_logprobs_are_named(device):
    rows, weight, tokens, draft, drawn_values = chains_of_another_model(device)

    def assert_error(error, match, draft=draft, **changed):
        given = {
            name: value for name, value in (drawn_values | changed).items() if value is not None
        }
        with pytest.raises(error, match=match):
            ops.verify(rows, weight, tokens, rule="rejection", **draft, **given)

    for name in ("lse", "logprobs"):
        value = drawn_values[f"draft_{name}"]
        shape = rf"proposal\.drawn_{name}: expected the shape \(12,\) or \(4, 3\)"
        assert_error(ValueError, shape, **{f"draft_{name}": value[:, :2].contiguous()})
        assert_error(ValueError, shape, **{f"draft_{name}": value.T})
        assert_error(
            TypeError, rf"drawn_{name}: expected float32", **{f"draft_{name}": value.half()}
        )
        assert_error(ValueError, "requires drawn_", **{f"draft_{name}": None})
    assert_error(ValueError, "^draft_lse: requires", draft={})


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


def screened_head(rows=3000, columns=96, batch=5):
    random = np.random.default_rng(1)
    hidden = torch.tensor(random.standard_normal((batch, columns)), dtype=torch.bfloat16)
    weight = torch.tensor(random.standard_normal((rows, columns)) / 4, dtype=torch.bfloat16)
    return hidden, weight


def test_operators_take_the_bytes_of_a_screen():
    hidden, weight = screened_head()
    screen = gumbel.Screen(weight).bytes
    assert screen.dtype == torch.uint8 and screen.data_ptr() % 64 == 0
    drafted = torch.zeros(1, 5, dtype=torch.int32)
    for position in range(20):
        common = {
            "temperature": torch.tensor([0.0, 0.5, 1, 2, 100]),
            "seed": torch.tensor(7),
            "position": torch.tensor(position),
            "logprobs": None,
            "top_k": torch.tensor(40, dtype=torch.int32),
            "min_p": torch.tensor(0.01),
        }
        for call, more in ((torch.ops.gumbel.sample, ()), (torch.ops.gumbel.verify, (drafted,))):
            given = dict(common, temperature=torch.tensor(0.7)) if more else common
            wanted = call(hidden, weight, *more, **given)
            found = call(hidden, weight, *more, screen=screen, **given)
            assert all(torch.equal(a, b) for a, b in zip(found, wanted))
    plain = {"seed": torch.tensor(7), "logprobs": None}
    given = {"screen": screen, **plain}
    torch.library.opcheck(torch.ops.gumbel.sample.default, (hidden, weight), given)
    compiled = torch.compile(
        lambda h: torch.ops.gumbel.sample(h, weight, **given)[0], fullgraph=True, backend="eager"
    )
    plain = torch.ops.gumbel.sample(hidden, weight, **plain)[0]
    assert torch.equal(compiled(hidden), plain)


def test_invalid_screens_raise():
    hidden, weight = screened_head()
    screen = gumbel.Screen(weight).bytes
    for wrong, text in (
        (screen[:-1], "screen: expected the shape"),
        (screen.float(), "screen: dtype float32"),
        (torch.zeros_like(screen), "screen"),
        (gumbel.Screen(screened_head(rows=2900)[1]).bytes, "screen: expected the shape"),
        (gumbel.Screen(screened_head(rows=2999)[1]).bytes, "made for weights .2999, 96"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            torch.ops.gumbel.sample(hidden, weight, screen=wrong, logprobs=None)


def test_a_screen_serves_threads():
    hidden, weight = screened_head()
    screen = gumbel.Screen.of_bytes(weight, gumbel.Screen(weight).bytes)
    screen.verify()
    wanted = gumbel.sample(hidden, weight, seed=3, logprobs=None).tokens
    found = []

    def draw():
        found.append(gumbel.sample(hidden, screen, seed=3, logprobs=None).tokens)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(torch.equal(one, wanted) for one in found)


def test_screens_of_changed_weights_raise():
    hidden, weight = screened_head()
    parameter = torch.nn.Parameter(weight.clone())
    draw = functools.partial(gumbel.sample, hidden, seed=3, logprobs=None)
    wanted = draw(weight).tokens
    screen = gumbel.Screen(parameter)
    assert torch.equal(draw(screen).tokens, wanted)
    with torch.no_grad():
        parameter.mul_(1)
    with pytest.raises(ValueError, match="weight: it was changed in place"):
        draw(screen)
    screen.verify()  # the values are the same
    assert torch.equal(draw(screen).tokens, wanted)
    with torch.inference_mode():
        parameter.add_(1)
    with pytest.raises(ValueError, match="weight: it was changed in place"):
        draw(screen)
    with pytest.raises(ValueError, match="row 0 "):
        screen.verify()
    screen.update()
    assert torch.equal(draw(screen).tokens, draw(parameter.detach()).tokens)
    parameter.data = weight.clone()
    for call in (lambda: draw(screen), screen.verify, screen.update):
        with pytest.raises(ValueError, match="weight: its memory was replaced"):
            call()


def test_a_prepared_call_keeps_the_memory_of_its_screen():
    hidden, weight = screened_head()
    parameter = torch.nn.Parameter(weight.clone())
    wanted = gumbel.sample(hidden, weight, seed=3, logprobs=None).tokens
    call = gumbel.prepare_sample(hidden, gumbel.Screen(parameter), seed=3, logprobs=None)
    parameter.data = torch.full_like(weight, float("nan"))
    others = [torch.full_like(weight, float("nan")) for _ in range(8)]
    assert torch.equal(call(hidden).tokens, wanted) and len(others) == 8


def test_a_screen_of_inference_tensors():
    with torch.inference_mode():
        hidden, weight = screened_head()
        screen = gumbel.Screen(weight)
        wanted = gumbel.sample(hidden, weight, seed=3, logprobs=None).tokens
        assert torch.equal(gumbel.sample(hidden, screen, seed=3, logprobs=None).tokens, wanted)

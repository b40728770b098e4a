# SPDX-License-Identifier: Apache-2.0
"""Two processes draw the tokens of one, bit by bit, for all parameters. Errors if their parameters
differ, if one process dies, and if one makes no call."""

import time

import gumbel
import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.9")
dist = pytest.importorskip("gumbel.dist", exc_type=ImportError)

from gloo_ranks import die, on_two_ranks  # noqa: E402

B, V, D = 5, 700, 24
CUTS = {"blocks": 384, "uneven": 100, "one has none": 700, "padded": 640}
REAL = {"padded": 530}  # number of valid tokens; the second rank has none of them
STEPS = 3


def make_problem(dtype=torch.float32):
    random = torch.Generator().manual_seed(3)
    hidden, weight = (torch.randn(rows, D, generator=random) for rows in (B, V))
    return (hidden / 2).to(dtype), weight.to(dtype), torch.randn(V, generator=random)


def multiply(hidden, weight):
    """Logits that do not depend on how many threads multiply."""
    return (hidden.double() @ weight.double().T).float()


def per_row(*numbers, dtype=torch.float32):
    return torch.tensor(numbers, dtype=dtype)


SEEDS = {
    "seed": per_row(1, 2, 2**62, 4, 5, dtype=torch.int64),
    "position": per_row(0, 17, 9, 2**40, 3, dtype=torch.int64),
}
TEXTS = {
    "prompt_tokens": [[1, 2, 699], [3], [], [650, 650], [99, 100]],
    "output_tokens": [[5, 650], [], [384, 384, 383], [7], [101]],
}
PENALTIES = {
    "repetition_penalty": 1.3,
    "frequency_penalty": per_row(0, 0.5, 0.4, -0.2, 1),
    "presence_penalty": 0.3,
}
ALL_OUTPUTS = {"logprobs": "processed", "top_logprobs": 6, "ranks": True, "kept": True}
CUT = {
    "top_k": per_row(50, 0, 3, 1, 700, dtype=torch.int32),
    "top_p": per_row(0.9, 0.5, 1, 1, 0.3),
    "min_p": per_row(0, 0.01, 0, 0.2, 0.001),
}
CASES = {
    "greedy": {"temperature": 0.0, "logprobs": None},
    "greedy, all outputs": {"temperature": 0.0, **ALL_OUTPUTS},
    "seeds and positions": {"temperature": per_row(0, 0.5, 0.8, 1, 1.5), **SEEDS},
    "samples": {"num_samples": 4, "ranks": True, **SEEDS},
    "all outputs": {**ALL_OUTPUTS, **SEEDS},
    "all outputs, raw": {**ALL_OUTPUTS, "logprobs": "raw", "temperature": 0.6, **SEEDS},
    "bias": {
        "logit_bias": [{3: 4.0, 529: 9.0}, {520: -2.0}, {}, {1: 1.0}, {100: 3.0}],
        **ALL_OUTPUTS,
    },
    "banned": {"banned": [[3, 520], [], [0, 1, 2], [529], [384]], **ALL_OUTPUTS, **SEEDS},
    "allowed": {"allowed": [[3, 520], [], [0, 1, 2], [529], [383, 384]], **ALL_OUTPUTS, **SEEDS},
    "penalties": {**PENALTIES, **TEXTS, **ALL_OUTPUTS, **SEEDS},
    "best": {"num_best": 5, **SEEDS},
    "slots": {
        "slots": per_row(4, 2, 0, 6, 1, dtype=torch.int32),
        "num_slots": 7,
        "temperature": torch.linspace(0, 1.2, 7),
    },
    "live rows": {"live_rows": 3, **ALL_OUTPUTS},
    "domain": {"domain": 1, **SEEDS},
    "top_k": {"top_k": 50, **ALL_OUTPUTS, **SEEDS},
    "top_p": {"top_p": 0.95, **ALL_OUTPUTS, **SEEDS},
    "min_p": {"min_p": 0.02, **ALL_OUTPUTS, **SEEDS},
    "cut, penalised, biased, all outputs, raw": {
        **CUT,
        **PENALTIES,
        **TEXTS,
        **ALL_OUTPUTS,
        **SEEDS,
        "logit_bias": {520: 2.0},
        "logprobs": "raw",
    },
    **{
        f"cut, {order}": {**CUT, **ALL_OUTPUTS, **SEEDS, "order": order}
        for order in ("vllm", "hf", "llama.cpp", "sglang", "mlx", "before_temperature")
    },
    "cut, exact ties": {**CUT, **ALL_OUTPUTS, "ties": "exact"},
}
SHAPES = ({}, {"softcap": 5.0, "scale": 0.5})
GIVEN = [[1, 699], [5, -1], [384, 383], [650, 0], [100, 99]]


def arrays_of_output(output):
    return {name: np.asarray(value) for name, value in vars(output).items() if value is not None}


class Alone:
    """The calls of one process with the whole head, under the names that a group's calls have."""

    first, end = 0, V

    def __getattr__(self, name):
        return getattr(gumbel, name)


class Ranked:
    """A shard, with the calls of a group."""

    def __init__(self, group, first, end):
        self.group, self.first, self.end = group, first, end

    def __getattr__(self, name):
        return getattr(self.group, name)


def mask_of(end):
    """A mask that allows two thirds of the tokens, in words up to `end`."""
    allowed = (np.arange(B)[:, None] * 7 + np.arange(32 * ((V + 31) // 32))) % 3 > 0
    words = np.packbits(allowed, axis=1, bitorder="little").view(np.int32)
    return torch.from_numpy(words[:, : (end + 31) // 32].copy())


def run_every_call(by, vocab):
    """Results of calls of every kind, by name."""
    found = {}
    hidden, weight, bias = make_problem()
    for name, arguments in CASES.items():
        for number, shape in enumerate(SHAPES):
            call = {"seed": 5, "vocab_size": vocab, **shape, **arguments}
            own = bias[by.first : by.end]
            drawn = by.sample(hidden, weight[by.first : by.end], bias=own, **call)
            found[f"{name} {number}"] = arrays_of_output(drawn)
        logits = multiply(hidden, weight)[:, by.first : by.end]
        found[f"{name} from logits"] = arrays_of_output(by.sample_logits(logits, **call))
    shard = weight[by.first : by.end]
    columns = multiply(hidden, weight)[:, by.first : by.end].contiguous()
    mask = {"mask": mask_of(by.end), "vocab_size": vocab, **SEEDS}
    found["mask"] = arrays_of_output(by.sample(hidden, shard, **mask, **ALL_OUTPUTS))
    found["mask of logits"] = arrays_of_output(by.sample_logits(columns, **mask, **CUT))
    scored = {"vocab_size": vocab, "top_logprobs": 3}
    found["score"] = arrays_of_output(by.score(hidden, shard, GIVEN, **scored))
    found["score raw"] = arrays_of_output(
        by.score_logits(columns, GIVEN, logprobs="raw", **CUT, **scored)
    )
    for dtype in (torch.bfloat16, torch.float16):
        few, short, _ = make_problem(dtype)
        drawn = by.sample(few, short[by.first : by.end], vocab_size=vocab, **CUT, **SEEDS)
        found[str(dtype)] = arrays_of_output(drawn)
    found.update(run_histories(by, hidden, shard, vocab))
    found.update(run_drafts(by, vocab))
    found.update(run_prepared_calls(by, hidden, shard, columns, vocab))
    return found


def run_histories(by, hidden, shard, vocab):
    """Steps with penalties; each rank keeps a history of its own shard."""
    history, found = gumbel.History(B, by.end, like=hidden), {}
    below = [[token for token in text if token < by.end] for text in TEXTS["prompt_tokens"]]
    history.start(below)
    for step in range(STEPS):
        arguments = {
            **PENALTIES,
            "temperature": 0.3,
            "seed": 1,
            "position": step,
            "vocab_size": vocab,
        }
        drawn = by.sample(hidden, shard, history=history, **arguments)
        history.update(drawn.tokens)
        found[f"history {step}"] = arrays_of_output(drawn)
    return found


def run_drafts(by, vocab):
    """Two chains of three drafts; the first one drafts the tokens that will be drawn."""
    hidden, weight, _ = make_problem()
    rows = hidden[torch.tensor([0, 1, 2, 3, 1, 2, 3, 4])]
    arguments = {"seed": SEEDS["seed"][:2], "temperature": 0.7, "vocab_size": vocab}
    each = [0, 1, 2, 3] * 2
    drawn = gumbel.sample(
        rows,
        weight,
        vocab_size=vocab,
        temperature=0.7,
        seed=SEEDS["seed"][:2].repeat_interleave(4),
        position=torch.tensor(each) + 11,
    ).tokens.view(2, 4)
    chains = torch.tensor([[9, *drawn[0, :3]], [9, drawn[1, 0], 5, 6]], dtype=torch.int32)
    arguments["position"] = per_row(11, 11, dtype=torch.int64)
    shard, columns = weight[by.first : by.end], multiply(rows, weight)[:, by.first : by.end]
    offsets = per_row(0, 4, 8, dtype=torch.int32)
    return {
        "verify": arrays_of_output(by.verify(rows, shard, chains, **arguments)),
        "verify, cut": arrays_of_output(
            by.verify(rows, shard, chains, **arguments, top_k=40, top_p=0.9)
        ),
        "verify from logits": arrays_of_output(
            by.verify_logits(columns, chains.view(-1), offsets=offsets, **arguments)
        ),
    }


def run_prepared_calls(by, hidden, shard, columns, vocab):
    """Steps by prepared calls, which write into the same arrays at each step."""
    found = {}
    for name, kind, inputs in (
        ("prepared", by.prepare_sample, (hidden, shard)),
        ("prepared from logits", by.prepare_sample_logits, (columns,)),
    ):
        position = torch.zeros(B, dtype=torch.int64)
        for more in ({}, {**CUT, **ALL_OUTPUTS}):
            call = kind(*inputs, seed=SEEDS["seed"], position=position, vocab_size=vocab, **more)
            places = set()
            for step in range(STEPS):
                position[:] = step
                again = inputs[0].clone() if step == 2 else None
                drawn = call(again) if step == 2 else call()
                places.add(drawn.tokens.data_ptr())
                found[f"{name} {len(more)} {step}"] = {
                    key: value.copy() for key, value in arrays_of_output(drawn).items()
                }
            assert len(places) == 1
    return found


def _everything(rank, cut):
    first, end = ((0, CUTS[cut]), (CUTS[cut], V))[rank]
    with dist.Group(first, end - first, timeout=60, threads=1) as group:
        found = run_every_call(Ranked(group, first, end), REAL.get(cut, V))
        return found, group.traffic


@pytest.mark.parametrize("cut", CUTS)
def test_all_parameters(cut):
    whole = run_every_call(Alone(), REAL.get(cut, V))
    ranks = on_two_ranks(_everything, cut)
    for rank in (0, 1):
        assert not isinstance(ranks[rank], str), ranks[rank]
        found, traffic = ranks[rank]
        assert found.keys() == whole.keys()
        for name, wanted in whole.items():
            assert found[name].keys() == wanted.keys(), name
            for field, value in wanted.items():
                np.testing.assert_array_equal(found[name][field], value, f"{name}, {field}")
        assert traffic["calls"] >= len(found) and traffic["rows"] > 0


# Parameters of rank 1 that differ, and the errors on both ranks.
DIFFERENT = {
    "seed": {"seed": 6},
    "position": {"position": 1},
    "temperature": {"temperature": 0.5},
    "truncation": {"top_k": 7},
    "vocab_size": {"vocab_size": V - 1},
    "head": {"scale": 0.5},
    "output": {"ranks": True},
    "num_samples": {"num_samples": 2},
    "domain": {"domain": 1},
    "transforms": {"allowed": [1, 2]},
}
# Invalid arguments of rank 1: for the package, for the library, and for its workspace size.
REFUSED = (
    {"temperature": "hot"},
    {"temperature": -1.0},
    {"top_logprobs": 500},
    {"mask": [1]},
    {"min_p": per_row(0, 0, 0, 0, 2)},
)


def error_of(call):
    try:
        call()
    except (RuntimeError, TypeError, ValueError) as problem:
        return f"{type(problem).__name__}: {problem}"
    return None


def _differing(rank):
    hidden, weight, _ = make_problem()
    first, end = ((0, 384), (384, V))[rank]
    found = {}
    with dist.Group(first, end - first, timeout=60, threads=1) as group:
        for name, arguments in (*DIFFERENT.items(), *enumerate(REFUSED)):
            more = arguments if rank == 1 else {}
            found[name] = error_of(lambda: group.sample(hidden, weight[first:end], **more))
        call = group.prepare_sample(hidden, weight[first:end])
        found["prepared"] = error_of(lambda: call(hidden[: B - rank]))
        few = hidden[: B - rank]
        found["batch"] = error_of(lambda: group.sample(few, weight[first:end]))
        nodes = torch.tensor([[9, 5 + rank, 7, 8, 9]], dtype=torch.int32)
        found["draft"] = error_of(lambda: group.verify(hidden, weight[first:end], nodes))
        drawn = group.sample(hidden, weight[first:end], seed=5)
    found["closed"] = error_of(call)
    return found, drawn.tokens.numpy()


def test_ranks_that_differ_get_errors_and_go_on():
    ranks = on_two_ranks(_differing)
    hidden, weight, _ = make_problem()
    for rank in (0, 1):
        assert not isinstance(ranks[rank], str), ranks[rank]
        found, tokens = ranks[rank]
        for name in (*DIFFERENT, "batch", "draft"):
            assert f"{name}: ranks 0 and 1 pass different values" in found[name], found[name]
        for name in (*range(len(REFUSED)), "prepared"):
            wanted = "RuntimeError: " if rank == 0 else ("ValueError: ", "TypeError: ")
            assert found[name].startswith(wanted), found[name]
            assert rank == 1 or "rank 1: bad argument" in found[name], found[name]
        assert found["closed"] == "ValueError: group: is closed"
        np.testing.assert_array_equal(tokens, gumbel.sample(hidden, weight, seed=5).tokens)


def _left_alone(rank, end, seconds):
    hidden, weight, _ = make_problem()
    first, last = ((0, 384), (384, V))[rank]
    group = dist.Group(first, last - first, timeout=seconds, threads=1)
    group.sample(hidden, weight[first:last])
    if rank == 1:
        end()
    begin = time.monotonic()
    first_error = error_of(lambda: group.sample(hidden, weight[first:last]))
    waited = time.monotonic() - begin
    return first_error, waited, error_of(lambda: group.sample(hidden, weight[first:last]))


def _sleep():
    time.sleep(60)


@pytest.mark.parametrize("end", [die, _sleep], ids=["dies", "hangs"])
def test_an_absent_rank_is_an_error(end):
    found = on_two_ranks(_left_alone, end, 3.0, answers=1)
    assert not isinstance(found[0], str), found[0]
    first_error, waited, then = found[0]
    limit = " within 3000 ms" if end is _sleep else ""
    assert first_error.startswith(f"RuntimeError: group: an exchange failed{limit}: ")
    assert waited < 10
    assert then == "RuntimeError: group: an earlier exchange failed"

# SPDX-License-Identifier: Apache-2.0
"""Explained draws are those of sample_logits(): tokens, scores, kept counts, and rules."""

import json
import re
import time

import gumbel
import numpy as np
import pytest

VALUES = {
    "min_p": {"min_p": [0.0, 0.02, 0.3]},
    "top_k": {"top_k": [0, 1, 7, 60, 5000]},
    "top_p": {"top_p": [1.0, 0.5, 0.93]},
    "typical_p": {"typical_p": [1.0, 0.3, 0.9]},
    "top_n_sigma": {"top_n_sigma": [0.0, 0.5, 1.9]},
    "epsilon": {"epsilon": [0.0, 0.004]},
    "eta": {"eta": [0.0, 0.01]},
    "top_a": {"top_a": [0.0, 0.15]},
    "p_less": {"p_less": [True, False]},
    "surprise": {"surprise": [float("inf"), 7.0, 2.0]},
    "smoothing": {"smoothing_factor": [0.0, 0.1], "smoothing_curve": [1.0, 1.5]},
    "adaptive_p": {"adaptive_target": [-1.0, -0.5, 0.0, 0.4]},
    "xtc": {"xtc_probability": [0.0, 0.5, 1.0], "xtc_threshold": [0.02, 0.1, 0.7]},
    "temperature": {"temperature": [0.0, 0.3, 1.0, 1.7]},
}
NAMED = {
    "vllm": ["min_p", "top_k", "top_p"],
    "hf": ["top_k", "top_p", "min_p", "typical_p", "epsilon", "eta"],
    "llama.cpp": ["top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc"],
    "text-generation-webui": ["top_n_sigma", "smoothing", "top_k", "top_p", "surprise", "xtc"],
    "sglang": ["top_k", "top_p", "min_p"],
    "mlx": ["top_k", "top_p", "min_p"],
    "before_temperature": ["min_p", "top_k", "top_p"],
}
HOSTILE = ("equal", "one", "nan", "infinite", "empty", "huge", "tiny", "two values")


def make_logits(random, rows, vocab):
    logits = random.normal(size=(rows, vocab)) * random.choice([0.1, 3, 10])
    logits = logits.clip(-20, 20).astype(np.float32)
    for row in range(rows):
        kind = random.choice([*HOSTILE, *["plain"] * 8])
        if kind in ("one", "empty"):
            logits[row] = -np.inf
        if kind == "equal":
            logits[row] = 1
        if kind == "two values":
            logits[row] = np.arange(vocab) % 2
        if kind in ("huge", "tiny"):
            logits[row] *= np.float32(1e37 if kind == "huge" else 1e-38)
        at = random.integers(vocab)
        logits[row, at] = {"one": -3, "nan": np.nan, "infinite": np.inf}.get(kind, logits[row, at])
    return logits


def make_order(random):
    """(order, its rules)."""
    if random.integers(3) == 0:
        name = str(random.choice(list(NAMED)))
        return name, [*NAMED[name], "temperature"]
    rules = [rule for rule in VALUES if rule not in ("xtc", "adaptive_p", "temperature")]
    rules = [str(rule) for rule in random.permutation(rules)[: random.integers(1, 6)]]
    rules.insert(int(random.integers(len(rules) + 1)), "temperature")
    if random.integers(3) == 0:
        rules.insert(len(rules) - (rules[-1] == "temperature"), "xtc")
    elif random.integers(3) == 0:
        rules.append("adaptive_p")
    return ",".join(rules), rules


def make_call(seed):
    """Random logits and arguments of sample_logits()."""
    random = np.random.default_rng(seed)
    rows, vocab = int(random.integers(1, 5)), int(random.choice([1, 2, 17, 200, 1111]))
    order, rules = make_order(random)
    call = {"order": order, "seed": int(random.integers(2**63))}
    call["ties"] = str(random.choice(["all", "exact"]))
    for rule in rules:
        for name, values in VALUES[rule].items():
            one = rule == "p_less" or random.integers(2)
            drawn = [values[i] for i in random.integers(len(values), size=1 if one else rows)]
            call[name] = drawn[0] if one else drawn
    if random.integers(3) == 0:
        call["banned"] = [[int(random.integers(vocab))] for _ in range(rows)]
    if random.integers(3) == 0:
        call["logit_bias"] = {int(random.integers(vocab)): 2.5}
        call["prompt_tokens"] = [[0, vocab - 1]] * rows
        call["repetition_penalty"] = 1.3
    if random.integers(4) == 0:
        call["position"] = [int(at) for at in random.integers(2**62, size=rows)]
        call["first_sample"] = 3
    if order not in ("sglang", "mlx") and random.integers(4) == 0:
        call["min_keep"] = int(random.integers(1, 9))
    return make_logits(random, rows, vocab), call


def draw(logits, call):
    rows = len(logits)
    call = {"position": np.arange(rows), **call, "seed": [call["seed"]] * rows}
    return gumbel.sample_logits(logits, kept=True, num_best=16, **call)


@pytest.mark.parametrize("seed", range(200))
def test_draws_equal_those_of_sample_logits(seed):
    logits, call = make_call(seed)
    out = draw(logits, call)
    found = gumbel.explain_draw(logits, max_tokens=16, **call)
    assert len(found.steps) == len(logits) and found.vocab_size == logits.shape[1]
    z = gumbel.process_logits(logits, **call)
    for row, step in enumerate(found.steps):
        assert (step.row, step.status) == (row, gumbel.RowStatus(out.status[row]).name)
        assert step.kept == out.kept[row]
        if step.status != "OK":
            assert step.winner is step.margin is None and step.survivors == ()
            continue
        assert step.winner.token == out.tokens[row, 0]
        check_scores(step, out.best_ids[row], out.best_scores[row])
        check_rules(step, z[row])
    check_forms(found)


def check_scores(step, ids, scores):
    best = {int(i): float(score) for i, score in zip(ids, scores) if i >= 0}
    assert step.winner.score == best[step.winner.token]
    for each in step.survivors:
        assert each.score == best.get(each.token, each.score), "bit for bit"
        assert each.score <= step.winner.score
        assert (each.noise is None) == step.greedy
    runner_up = int(ids[1]) if len(best) > 1 else None
    assert (step.runner_up and step.runner_up.token) == runner_up
    if runner_up is not None:
        assert step.margin == step.winner.score - best[runner_up] >= 0
        assert step.runner_up in step.survivors
    assert step.winner in step.survivors


def check_rules(step, z):
    assert step.rules[0].name == "logits processing"
    for one, other in zip(step.rules, step.rules[1:]):
        assert one.after == other.before
    assert step.rules[-1].after == step.kept == (~np.isneginf(z)).sum()
    for rule in step.rules:
        assert rule.removed >= 0 and 0 <= rule.mass <= 1 + 1e-9
        assert len(rule.examples) == min(rule.removed, 3)
        if not rule.active:
            assert rule.removed == rule.changed == rule.lowered == 0
    for each in step.survivors:
        assert each.value == z[each.token]
    assert sum(each.probability for each in step.survivors) <= 1 + 1e-9
    probabilities = [each.probability for each in step.ranking]
    assert probabilities == sorted(probabilities, reverse=True)
    for each in step.ranking:
        assert (each.removed_by is not None) == np.isneginf(z[each.token])


def check_forms(found):
    plain = found.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert max(map(len, str(found).splitlines())) <= 80
    numbers = re.sub(r"surprise <code>inf|a logit is \+inf", "", found.to_html())
    assert not re.search(r"\b(nan|inf)\b", numbers)


LOGITS = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05], np.float32))


def test_rules_report_their_removals():
    found = gumbel.explain_draw(
        LOGITS, vocabulary=list("abcde"), order="top_k,typical_p,min_p,temperature", top_k=4,
        min_p=0.3, temperature=0.5, banned=[0], seed=1,
    )  # fmt: skip
    bans, top_k, typical_p, min_p, temperature = found.steps[0].rules
    assert (bans.before, bans.after, bans.changed) == (5, 4, 0)
    assert bans.mass == pytest.approx(0.4) and bans.examples[0].text == "a"
    assert (top_k.active, top_k.removed) == (True, 0)
    assert not typical_p.active and typical_p.parameters == {"typical_p": 1.0}
    assert (min_p.removed, min_p.mass) == (0, 0) or min_p.removed == 1
    assert min_p.parameters == {"min_p": 0.3}
    assert temperature.parameters == {"temperature": 0.5}


def test_the_mass_of_a_removal():
    found = gumbel.explain_draw(LOGITS, top_k=3, temperature=1.0)
    top_k = next(rule for rule in found.steps[0].rules if rule.name == "top_k")
    assert top_k.removed == 2 and top_k.mass == pytest.approx(0.15)
    assert [each.token for each in top_k.examples] == [3, 4]
    assert [each.removed_by for each in found.steps[0].ranking] == [None] * 3 + ["top_k"] * 2


def test_xtc_lowers_the_likeliest_tokens():
    xtc = {"xtc_probability": 0.5, "xtc_threshold": 0.1, "order": "xtc,temperature"}
    rule = gumbel.explain_draw(LOGITS, **xtc).steps[0].rules[1]
    mass = 0.85  # of the three tokens above the least likely one of 0.1 or more
    expected = np.log(0.5 / (1 + 0.5 * mass / (1 - mass)))
    assert (rule.name, rule.lowered, rule.removed) == ("xtc", 3, 0)
    assert rule.shift == pytest.approx(expected, abs=1e-5)
    xtc["xtc_probability"] = 1.0
    rule = gumbel.explain_draw(LOGITS, **xtc).steps[0].rules[1]
    assert (rule.lowered, rule.shift, rule.removed) == (0, None, 3)


def test_penalties_are_logits_processing():
    rule = gumbel.explain_draw(LOGITS, logit_bias={1: 1.0, 2: -np.inf}).steps[0].rules[0]
    assert (rule.active, rule.removed, rule.changed) == (True, 1, 1)


def test_steps_have_one_seed_and_their_positions():
    logits = np.zeros((3, 50), np.float32)
    found = gumbel.explain_draw(logits, seed=2**64 - 1)
    for step in found.steps:
        out = gumbel.sample_logits(logits[:1], seed=2**64 - 1, position=step.position)
        assert step.seed == 2**64 - 1 and step.winner.token == out.tokens[0, 0]
    assert [step.position for step in found.steps] == [0, 1, 2]
    fresh = gumbel.explain_draw(logits).steps
    assert fresh[0].seed == fresh[1].seed != gumbel.explain_draw(logits).steps[0].seed


def test_rows_name_their_order():
    logits = np.random.default_rng(1).normal(size=(2, 99)).astype(np.float32)
    orders = ["llama.cpp", "temperature,typical_p"]
    call = {"order": orders, "program": [1, 0], "typical_p": 0.5, "seed": 3, "top_k": 9}
    found = gumbel.explain_draw(logits, **call).steps
    assert [rule.name for rule in found[0].rules][1:] == ["temperature", "typical_p"]
    assert found[1].order == "llama.cpp" and found[1].rules[-1].name == "temperature"
    kept = gumbel.sample_logits(logits, kept=True, **call).kept
    assert [step.kept for step in found] == kept.tolist()


def test_lists_of_tokens_may_be_iterators():
    logits = np.zeros((2, 64), np.float32)
    found = gumbel.explain_draw(logits, banned=iter([1, 2]), seed=1)
    assert [step.rules[0].removed for step in found.steps] == [2, 2]
    found = gumbel.explain_draw(logits, banned=[iter([1]), iter([2, 3])], seed=1)
    assert [step.rules[0].removed for step in found.steps] == [1, 2]
    padded = np.array([[1, 2, np.nan, np.inf]], np.float32)
    step = gumbel.explain_draw(padded, vocab_size=2, seed=1).steps[0]
    assert (step.status, step.rules[0].before, step.rules[0].after) == ("OK", 4, 2)


def test_a_history_and_a_mask_have_one_entry_for_each_row():
    logits = np.random.default_rng(1).normal(size=(2, 64)).astype(np.float32)
    history = gumbel.History(num_slots=2, vocab_size=64)
    history.start([[1, 2], [3]], [[5], [6]])
    mask = np.array([[-1, 0], [0, -1]], np.int32)
    found = gumbel.explain_draw(logits, history=history, presence_penalty=1.0, mask=mask)
    assert [step.rules[0].after for step in found.steps] == [32, 32]
    assert [step.rules[0].changed for step in found.steps] == [1, 0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "bits"])
def test_dtypes_and_tensors(dtype):
    torch = pytest.importorskip("torch")
    kind = torch.bfloat16 if dtype == "bits" else getattr(torch, dtype)
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(2, 64))).to(kind)
    given = logits.view(torch.uint16).numpy() if dtype == "bits" else logits
    found = gumbel.explain_draw(given, seed=1, temperature=torch.tensor([0.5, 1.5]))
    wide = gumbel.explain_draw(logits.float().numpy(), seed=1, temperature=[0.5, 1.5])
    assert found == wide


def test_a_real_vocabulary_takes_well_below_a_second():
    logits = np.random.default_rng(1).normal(size=(1, 151936)).astype(np.float32) * 3
    start = time.perf_counter()
    call = {"typical_p": 0.95, "top_p": 0.95, "eta": 1e-4, "top_k": 500, "temperature": 0.9}
    assert gumbel.explain_draw(logits, order="hf", **call).steps[0].winner is not None
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    ("logits", "given", "message"),
    [
        (np.zeros((0, 5), np.float32), {}, r"logits: the shape \[0, 5\] has no element"),
        (np.zeros((1, 1, 5), np.float32), {}, r"logits: has 3 axes, expected \[V\] or \[T, V\]"),
        (np.zeros(5), {}, "logits: .*float64"),
        (LOGITS, {"vocabulary": ["a"]}, "vocabulary: has 1 tokens, but the logits have 5"),
        (LOGITS, {"vocabulary": "abcde"}, "vocabulary: expected a sequence of 5 texts"),
        (LOGITS, {"vocabulary": {"a": 1}}, "vocabulary: expected a sequence of 5 texts"),
        (LOGITS, {"vocabulary": [b"a"] * 5}, r"vocabulary\[\d\]: expected str, got b'a' \(bytes"),
        (LOGITS, {"max_tokens": 1}, "max_tokens: 1 is not in"),
        (LOGITS, {"seed": -1}, "seed: -1 is not in"),
        (LOGITS, {"top_p": 1.5}, "top_p: is 1.5"),
        (LOGITS, {"typical_p": 0.5}, "typical_p: the order"),
        (LOGITS, {"temperature": [1.0, 2.0]}, "temperature: "),
    ],
)
def test_errors_name_the_argument(logits, given, message):
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        gumbel.explain_draw(logits, **given)


@pytest.mark.parametrize("name", ["num_samples", "given", "logprobs", "slots"])
def test_arguments_of_other_outputs_are_errors(name):
    with pytest.raises(TypeError, match=f"takes no argument '{name}'"):
        gumbel.explain_draw(LOGITS, **{name: 1})

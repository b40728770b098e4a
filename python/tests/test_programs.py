# SPDX-License-Identifier: Apache-2.0
"""Orders of sampling rules against the oracle, their errors, and prepared calls."""

import ctypes

import gumbel
import numpy as np
import oracle
import pytest
from gumbel import _abi
from gumbel._inputs import common, programs
from gumbel._inputs.arrays import NumpyArrays

B, V = 4, 203
RNG = np.random.default_rng(11)
LOGITS = (RNG.normal(size=(B, V)) * 3).astype(np.float32)

# A value of each parameter that removes some tokens, or changes values.
VALUES = {
    "min_p": 0.02,
    "top_k": 60,
    "top_p": 0.93,
    "typical_p": 0.9,
    "top_n_sigma": 1.9,
    "epsilon": 0.004,
    "eta": 0.01,
    "top_a": 0.15,
    "p_less": True,
    "surprise": 7.0,
    "xtc": {"xtc_probability": 0.6, "xtc_threshold": 0.08},
    "smoothing": {"smoothing_factor": 0.1, "smoothing_curve": 1.5},
    "adaptive_p": {"adaptive_target": 0.3},
    "temperature": {"temperature": 0.8},
}
LAST = ("xtc", "adaptive_p", "temperature")
HF = "temperature,top_k,top_p,min_p,typical_p,epsilon,eta"
LLAMA = "top_n_sigma,top_k,typical_p,top_p,min_p,xtc,temperature"
WEBUI = (
    "top_n_sigma,temperature,smoothing,top_k,top_p,typical_p,epsilon,eta,top_a,min_p,surprise,xtc"
)
ENGINES = {
    "vllm": "temperature,min_p,top_k,top_p",
    "hf": HF,
    "transformers": HF,
    "llama.cpp": LLAMA,
    "exllamav3": "temperature,min_p,top_k,top_p",
    "text-generation-webui": WEBUI,
}


def parameters_of(rules):
    found = {}
    for rule in rules:
        value = VALUES[rule]
        found.update(value if isinstance(value, dict) else {rule: value})
    return found


def run_rows(rules, request):
    each = [{name: np.broadcast_to(x, B)[b] for name, x in request.items()} for b in range(B)]
    return np.array([oracle.run_program(LOGITS[b], rules=rules, **each[b]) for b in range(B)])


def check_rows(order, rules, request):
    found = gumbel.process_logits(LOGITS, order=order, **request)
    expected = run_rows(rules, request)
    np.testing.assert_array_equal(np.isneginf(found), np.isneginf(expected))
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=3e-5)
    return found


@pytest.mark.parametrize("rule", [rule for rule in VALUES if rule != "temperature"])
def test_each_rule_matches_the_oracle(rule):
    places = ([rule, "temperature"], ["temperature", rule])
    for rules in places[1:] if rule == "adaptive_p" else places:
        request = parameters_of(rules)
        found = check_rows(",".join(rules), rules, request)
        changed = np.isneginf(found).any() or not np.allclose(found, LOGITS / np.float32(0.8))
        assert changed, "the rule does nothing"
        np.testing.assert_array_equal(
            gumbel.process_logits(LOGITS, order=rules, **request), found, "a list of rules"
        )


@pytest.mark.parametrize("seed", range(40))
def test_random_orders_match_the_oracle(seed):
    draw = np.random.default_rng(seed)
    rules = list(draw.permutation([rule for rule in VALUES if rule not in LAST]))
    rules = rules[: draw.integers(1, 6)] + ["xtc"] * int(draw.integers(2))
    rules.insert(int(draw.integers(len(rules) + 1)) if "xtc" not in rules else -1, "temperature")
    request = parameters_of(rules)
    if "xtc" not in rules and draw.integers(2):
        rules.append("adaptive_p")
        request["adaptive_target"] = draw.random()
    if draw.integers(2):
        request["min_keep"] = int(draw.integers(1, 9))
    check_rows(",".join(rules), rules, request)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_orders_of_engines(engine):
    rules = ENGINES[engine].split(",")
    check_rows(engine, rules, parameters_of(rules))


@pytest.mark.parametrize(
    "order", ["typical_p,top_k", "temperature,typical_p,top_k", "typical_p , top_k"]
)
def test_the_temperature_is_first_if_the_order_does_not_list_it(order):
    rules = ["temperature", "typical_p", "top_k"]
    check_rows(order, rules, parameters_of(rules))


def test_parameters_of_rows():
    request = {
        "typical_p": [0.3, 1.0, 0.9, 0.95],
        "top_n_sigma": np.array([0, 2, 1.5, 0], np.float32),
        "xtc_probability": [0.0, 0.5, 1.0, 0.3],
        "min_keep": [1, 2, 30, 1],
        "temperature": [0.7, 1.0, 1.5, 2.0],
    }
    check_rows("llama.cpp", LLAMA.split(","), request)


def test_a_temperature_with_a_range():
    request = {"temperature": 1.0, "temperature_range": [0.5, 0.0, 0.9, 2.0], "top_k": 30}
    request["temperature_exponent"] = [1.0, 1.0, 0.5, 2.0]
    check_rows("top_k,temperature", ["top_k", "temperature"], request)


def test_rows_name_their_order():
    orders = ["llama.cpp", "hf", ["temperature", "min_p"], "top_k,typical_p,temperature"]
    rules = [LLAMA.split(","), HF.split(","), orders[2], orders[3].split(",")]
    request = parameters_of(["top_k", "typical_p", "min_p", "temperature"])
    places = np.array([3, 1, 2, 0], np.int32)
    found = gumbel.process_logits(LOGITS, order=orders, program=places, **request)
    for b, place in enumerate(places):
        expected = oracle.run_program(LOGITS[b], rules=rules[place], **request)
        np.testing.assert_array_equal(np.isneginf(found[b]), np.isneginf(expected))
    same = gumbel.process_logits(LOGITS, order=orders, program=1, **request)
    np.testing.assert_array_equal(same, gumbel.process_logits(LOGITS, order="hf", **request))


def test_xtc_skips_rows_that_would_lose_a_kept_token():
    request = {**VALUES["xtc"], "temperature": 1.0, "order": "xtc,temperature"}
    plain = gumbel.process_logits(LOGITS, **request)
    changed = np.flatnonzero((plain != LOGITS).any(axis=1))
    assert len(changed) > 1
    best = int(LOGITS[changed[0]].argmax())
    lists = [[best] if b == changed[0] else [] for b in range(B)]
    found = gumbel.process_logits(LOGITS, xtc_keep=lists, **request)
    np.testing.assert_array_equal(found[changed[0]], LOGITS[changed[0]])
    np.testing.assert_array_equal(found[changed[1:]], plain[changed[1:]])
    with pytest.raises(ValueError, match=rf"^xtc_keep: {V} is not in the vocabulary"):
        gumbel.sample_logits(LOGITS, xtc_keep=[V], **request)


def test_draws_follow_the_processed_rows():
    request = {"order": LLAMA, **parameters_of(LLAMA.split(","))}
    z = gumbel.process_logits(LOGITS, **request)
    common = {"seed": [3, 5, 7, 9], "position": 4, "num_samples": 5, "kept": True}
    out = gumbel.sample_logits(LOGITS, **common, **request)
    np.testing.assert_array_equal(out.kept, np.isfinite(z).sum(axis=1))
    for b in range(B):
        norm = oracle.log_normaliser(z[b].astype(float))
        for s in range(5):
            token = np.argmax(z[b] + oracle.noise(np.arange(V), common["seed"][b], 4, s))
            assert out.tokens[b, s] == token
            np.testing.assert_allclose(out.logprobs[b, s], z[b, token] - norm, atol=1e-4)
    hidden = RNG.normal(size=(B, 16)).astype(np.float32)
    weight = RNG.normal(size=(V, 16)).astype(np.float32)
    drawn = gumbel.sample(hidden, weight, **common, **request)
    logits = hidden.astype(float) @ weight.T.astype(float)
    assert (drawn.kept < V).all() and drawn.tokens.shape == (B, 5) and logits.shape == (B, V)
    scored = gumbel.score(hidden, weight, drawn.tokens[:, 0], seed=1, **request)
    np.testing.assert_array_equal(scored.logprobs[:, 0], drawn.logprobs[:, 0])


def test_drafts_are_verified_by_programs():
    hidden = RNG.normal(size=(2, 16)).astype(np.float32)
    weight = RNG.normal(size=(V, 16)).astype(np.float32)
    request = {"order": "llama.cpp", "typical_p": 0.7, "top_k": 40, "temperature": 0.8}
    request.update(seed=[3, 4])
    drawn = gumbel.sample(hidden, weight, position=5, **request)
    drafts = np.array([[-1, 1], [-1, 2]], np.int32)
    out = gumbel.verify(np.repeat(hidden, 2, axis=0), weight, drafts, position=5, **request)
    np.testing.assert_array_equal(out.tokens[:, 0], drawn.tokens[:, 0])


def test_samplers_screens_and_prepared_calls_draw_the_same():
    hidden = RNG.normal(size=(B, 16)).astype(np.float32)
    weight = RNG.normal(size=(V, 16)).astype(np.float32)
    request = {"order": "llama.cpp", "typical_p": 0.8, "xtc_probability": 0.5, "logprobs": None}
    plain, sampler = gumbel.Sampler(seed=3), gumbel.Sampler(seed=3)
    prepared = sampler.prepare_sample(hidden, gumbel.Screen(weight), **request)
    for _ in range(3):
        tokens = plain.sample(hidden, weight, **request).tokens
        np.testing.assert_array_equal(prepared().tokens, tokens)


def test_drafts_of_programs_are_rejected_exactly():
    """Tokens of two programs of one row: their distribution is the target's."""
    rows, draw = 4000, np.random.default_rng(3)
    hidden = draw.normal(size=(1, 16)).astype(np.float32)
    weight = (draw.normal(size=(V, 16)) * 0.4).astype(np.float32)
    far = (hidden + draw.normal(size=(1, 16)) / 2).astype(np.float32)
    target = {"order": "hf", "typical_p": 0.7, "top_k": 100}
    draft = {"order": "llama.cpp", "top_n_sigma": 1.5}
    seeds = list(range(rows))
    many = np.repeat(far, rows, axis=0)
    drawn = gumbel.sample(many, weight, seed=seeds, domain=gumbel.draft_domain(), **draft)
    tokens = np.stack([np.zeros(rows, np.int32), drawn.tokens[:, 0]], axis=1)
    out = gumbel.verify(
        np.repeat(hidden, 2 * rows, axis=0),
        weight,
        tokens,
        rule="rejection",
        seed=seeds,
        proposal=gumbel.proposal(np.repeat(far, 2 * rows, axis=0), weight, **draft),
        **target,
    )
    expected = rows * gumbel.softmax(hidden @ weight.T, **target)[0].astype(float)
    counts = np.bincount(out.tokens[:, 0], minlength=V)
    assert not counts[expected == 0].any() and 0.05 < out.accepted.mean() < 0.9
    cells = expected >= 8
    deviation = ((counts - expected)[cells] ** 2 / expected[cells]).sum() - cells.sum()
    assert cells.sum() > 20 and deviation < 5 * np.sqrt(2 * cells.sum())


ARRAYS = {
    "typical_p": ("hf", np.float32, [0.9, 0.5, 0.2, 1.0], [0.2, 0.9, 0.9, 0.3]),
    "top_n_sigma": ("llama.cpp", np.float32, [1, 0, 2, 1], [0, 1, 1, 2]),
    "epsilon": ("hf", np.float32, [0.01, 0, 0.1, 0.01], [0.1, 0.02, 0, 0]),
    "eta": ("hf", np.float32, [0.01, 0, 0.1, 0.01], [0.1, 0.02, 0, 0]),
    "top_a": ("top_a", np.float32, [0.1, 0, 0.3, 0.1], [0, 0.2, 0, 1]),
    "surprise": ("surprise", np.float32, [3, np.inf, 5, 4], [5, 3, 2, np.inf]),
    "xtc_probability": ("xtc", np.float32, [1, 0, 0.5, 1], [0, 1, 1, 0.5]),
    "xtc_threshold": ("xtc", np.float32, [0.05, 0.5, 0.1, 0.05], [0.5, 0.05, 0.05, 0.1]),
    "smoothing_factor": ("smoothing", np.float32, [0, 0.1, 1, 2], [1, 0, 0.5, 0.2]),
    "smoothing_curve": ("smoothing", np.float32, [1, 2, 3, 1], [2, 1, 1, 3]),
    "adaptive_target": ("adaptive_p", np.float32, [0.3, -1, 1, 0], [0.9, 0.2, 0.1, -1]),
    "temperature_range": ("vllm", np.float32, [0.1, 0.9, 0, 1], [0.5, 0, 1, 0.2]),
    "temperature_exponent": ("vllm", np.float32, [1, 2, 0, 0.5], [2, 1, 1, 1]),
    "min_keep": ("hf", np.int32, [1, 5, 100, 2], [100, 1, 2, 50]),
    "program": (["hf", "llama.cpp", "vllm"], np.int32, [0, 1, 0, 2], [1, 0, 2, 0]),
}
PARTNERS = {
    "xtc_threshold": {"xtc_probability": 1.0},
    "smoothing_curve": {"smoothing_factor": 0.5},
    "temperature_exponent": {"temperature_range": 0.9},
    "min_keep": {"top_p": 0.5},
    "program": {"typical_p": 0.6},
}


def test_every_parameter_is_read_in_place():
    assert set(ARRAYS) == {*programs.ROW_PARAMETERS, "program"}


@pytest.mark.parametrize("name", ARRAYS)
def test_prepared_calls_read_arrays_in_place(name):
    order, dtype, first, second = ARRAYS[name]
    values = np.array(first, dtype)
    request = {"order": order, "seed": 5, "kept": True, **PARTNERS.get(name, {})}
    call = gumbel.prepare_sample_logits(LOGITS, **request, **{name: values})
    results = []
    for now in (first, second):
        values[:] = now
        out = call()
        expected = gumbel.sample_logits(LOGITS, **request, **{name: now})
        for part in ("tokens", "logprobs", "kept"):
            np.testing.assert_array_equal(getattr(out, part), getattr(expected, part))
        results.append(np.concatenate([out.kept, out.lse]))
    assert (results[0] != results[1]).any()
    with pytest.raises(TypeError, match=f"^{name}: a prepared call reads it in place"):
        gumbel.prepare_sample_logits(
            LOGITS, **request, **{name: values.astype(np.int64 if dtype == np.int32 else float)}
        )


def test_rows_of_slots():
    slots = {"slots": [2, 0, 1, 4], "num_slots": 5}
    kept = {"order": ["hf", "llama.cpp"], "temperature": 0.8}
    of_slots = {"program": [0, 1, 0, 1, 1], "typical_p": [0.9, 0.2, 0.5, 0.1, 0.7]}
    of_rows = {name: [values[slot] for slot in slots["slots"]] for name, values in of_slots.items()}
    np.testing.assert_array_equal(
        gumbel.process_logits(LOGITS, **slots, **kept, **of_slots),
        gumbel.process_logits(LOGITS, **kept, **of_rows),
    )


def truncation_of(**request):
    sampling = common.read_common(NumpyArrays(None, None), B, V, **request).sampling
    return sampling.truncation[0] if sampling.truncation else None


@pytest.mark.parametrize("order", list(programs.ORDERS))
def test_named_orders_of_three_rules_are_no_programs(order):
    found = truncation_of(top_k=5, min_p=0.1, order=order)
    assert not found.programs
    assert truncation_of(order=order) is None


def test_rules_that_are_off_are_in_no_program():
    found = truncation_of(order="llama.cpp", typical_p=0.9, top_k=0, top_p=[0.9] * B, eta=0.0)
    rules = ctypes.string_at(found.programs[0].rules, _abi.PROGRAM_LENGTH)
    numbers = _abi.PROGRAM_RULES
    assert list(rules[:4]) == [numbers[n] for n in ("typical_p", "top_p", "temperature")] + [0]
    assert truncation_of(order="top_k,typical_p,p_less") is None


@pytest.mark.parametrize(
    "request_, text",
    [
        ({"typical_p": 0.5}, "typical_p: the order 'min_p,top_k,top_p' does not list 'typical_p'"),
        ({"eta": 0.1, "order": "llama.cpp"}, "eta: the order 'llama.cpp' does not list 'eta'"),
        ({"top_p": 0.9, "order": "top_k"}, "top_p: the order 'top_k' does not list 'top_p'"),
        ({"xtc_keep": [1], "order": "hf"}, "xtc_keep: the order 'hf' does not list 'xtc'"),
        ({"p_less": True, "order": "hf"}, "p_less: the order 'hf' does not list 'p_less'"),
        ({"smoothing_curve": 2, "order": "hf"}, "smoothing_curve: the order 'hf' does not"),
        ({"epsilon": 0.1, "order": "sglang"}, "epsilon: is not supported with the order 'sglang'"),
        ({"min_keep": 2, "order": "mlx"}, "min_keep: is not supported with the order 'mlx'"),
        ({"min_keep": 2, "order": "joint"}, "min_keep: is not supported with the order 'joint'"),
        ({"order": "top_k,top_p,top_k"}, "order: lists 'top_k' twice"),
        ({"order": "top_k,typ"}, "order: 'typ' is none of the rules 'temperature', "),
        ({"order": ["top_k", "top k"]}, "order: 'top k' is none of the rules"),
        ({"order": ["top_k", "hf"]}, "order: 'hf' is no rule; a list of orders requires program="),
        ({"order": [["top_k"]]}, r"order: \['top_k'\] is no rule; a list of orders requires"),
        ({"order": ["top_k"] * 17}, "order: lists 17 rules"),
        ({"order": "joint,top_k"}, "order: 'joint' is not combined"),
        ({"order": "xtc,top_k"}, "order: lists 'top_k' after 'xtc'"),
        ({"order": "adaptive_p,temperature"}, "order: lists 'temperature' after 'adaptive_p', whi"),
        ({"order": "xtc,adaptive_p"}, "order: lists both 'xtc' and 'adaptive_p'; use one of them"),
        ({"order": "adaptive_p", "adaptive_target": 1.5}, "adaptive_target: is 1.5"),
        (
            {"order": "llama.cpp", "adaptive_target": 0.5},
            "adaptive_target: the order 'llama.cpp' does not list 'adaptive_p'; name the place of "
            "the rule, as in order='top_n_sigma,top_k,typical_p,top_p,min_p,temperature,adaptive_p",
        ),
        (
            {"order": "top_k,adaptive_p", "min_p": 0.1},
            "min_p: the order 'top_k,adaptive_p' does not list 'min_p'; name the place of the "
            "rule, as in order='temperature,top_k,min_p,adaptive_p'",
        ),
        ({"order": ["hf", "mlx"], "program": 0}, r"order\[1\]: 'mlx' is a joint order"),
        ({"order": ["hf", "top_k,,"], "program": 0}, r"order\[1\]: '' is none of the rules"),
        ({"order": ["hf"] * 17, "program": 0}, "order: has 17 orders, expected 1 to 16"),
        ({"order": [], "program": 0}, "order: has 0 orders"),
        ({"order": "hf", "program": 0}, "program: requires a list of orders"),
        ({"order": ["hf"], "program": 1, "top_k": 2}, r"program: is 1; it must be in 0\.\.0"),
        ({"order": ["hf"], "program": [0] * 3 + [2], "top_k": 2}, r"program\[3\]: is 2"),
        ({"order": ["hf"], "program": 1}, r"program: is 1; it must be in 0\.\.0"),
        ({"order": ["hf"], "program": [0] * 3 + [2]}, r"program\[3\]: is 2"),
        ({"order": ["hf"], "program": -1}, "program: -1 is not in"),
        ({"order": ["hf"], "program": [0, 0]}, "program: expected one value or the shape"),
        ({"order": ["hf", "vllm"], "program": 0, "top_a": 0.1}, "top_a: none of the orders lists"),
        (
            {"order": "llama.cpp", "xtc_probability": 0.5, "temperature_range": 1},
            "temperature_range: the order 'llama.cpp' lists 'temperature' after 'xtc'",
        ),
        ({"order": "hf", "typical_p": 0}, "typical_p: is -?0"),
        ({"order": "hf", "typical_p": [1, 1, 1, 2]}, r"typical_p\[3\]: is 2"),
        ({"order": "hf", "epsilon": 1}, r"epsilon: is 1; it must be in \[0, 1\)"),
        ({"order": "hf", "min_keep": 0}, "min_keep: is 0; it must be >= 1"),
        ({"order": "xtc", "xtc_threshold": 0}, "xtc_threshold: is -?0"),
    ],
)
def test_errors_name_the_parameter(request_, text):
    with pytest.raises(ValueError, match=f"^{text}"):
        gumbel.sample_logits(LOGITS, **request_)


@pytest.mark.parametrize("program", ["rubbish", 0.5, [0.5] * B])
def test_programs_that_are_no_integers(program):
    with pytest.raises(TypeError, match="^program"):
        gumbel.sample_logits(LOGITS, order=["hf", "vllm"], program=program)


def test_programs_in_tensors_are_checked():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"^program\[3\]: is 2; it must be in 0\.\.0"):
        gumbel.sample_logits(
            torch.tensor(LOGITS), order=["hf"], program=torch.tensor([0, 0, 0, 2])
        )


def test_the_advice_of_errors_is_an_order():
    with pytest.raises(ValueError, match="^eta: ") as error:
        gumbel.sample_logits(LOGITS, eta=0.1, order="llama.cpp")
    advised = str(error.value).partition("order=")[2].strip("'")
    gumbel.sample_logits(LOGITS, eta=0.1, order=advised)

# SPDX-License-Identifier: Apache-2.0
"""Rules of vLLM's requests (extra_args["gumbel"]): texts are equal alone and in a batch, on both
runners, and equal those of the command; faulty rules raise an error when a request arrives."""

import functools
import types

import pytest
from vllm_jobs import PROMPTS, RUNNERS, need_vllm, request, run

need_vllm()

import gumbel  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from gumbel._vllm import request_rules as rules, rule_devices  # noqa: E402
from gumbel._vllm.draw_parameters import DrawParameters, LogprobsRequest  # noqa: E402
from gumbel._vllm.drawer import Drawer  # noqa: E402
from gumbel_command import run_generate  # noqa: E402
from vllm import SamplingParams  # noqa: E402

DRAWN = {"temperature": 0.8, "seed": 5}
TYPICAL = {"order": "temperature,typical_p", "typical_p": 0.3}
LLAMA = {"order": "llama.cpp", "top_n_sigma": 1.5, "xtc_probability": 0.5, "min_keep": 2}
RANGED = {"order": "temperature,top_a", "top_a": 0.3, "temperature_range": 0.5}
# The range of temperatures and the order of LLAMA require two calls.
CASES = [
    {"extra_args": {"gumbel": TYPICAL}},
    {"extra_args": {"gumbel": LLAMA}, "top_k": 40},
    {"extra_args": {"gumbel": RANGED}},
    {},
    {"top_p": 0.5},
    {"extra_args": {"gumbel": '{"order": "p_less", "p_less": true}'}},
    {"extra_args": {"gumbel": {**TYPICAL, "temperature": 0}}},
]
REFUSED = """
import vllm
stock = vllm.LLM.generate
def generate(self, prompts, parameters, **named):
    faulty = vllm.SamplingParams(max_tokens=2, extra_args={"gumbel": {"typicalp": 0.5}})
    try:
        stock(self, prompts[:1], faulty, **named)
    except ValueError as refused:
        print("refused:", refused)
    return stock(self, prompts, parameters, **named)
vllm.LLM.generate = generate
"""


def requests(**more):
    return [
        request(PROMPTS[place % len(PROMPTS)], 12, **{**DRAWN, **case, **more})
        for place, case in enumerate(CASES)
    ]


@functools.cache
def job(runner):
    # bad_words is served by vLLM's processors on the V2 runner.
    rounds = [*([each] for each in requests()), requests(), requests(logprobs=2)]
    return run([*rounds, requests(bad_words=[" zzzz"])], runner=runner, before=REFUSED)


@pytest.mark.parametrize("runner", RUNNERS)
def test_rules_in_batches(runner):
    done, alone = job(runner), len(CASES)
    texts = [done.ids(at)[0] for at in range(alone)]
    for place in range(3):
        assert done.ids(alone + place) == texts
    assert len(set(map(tuple, texts))) == alone
    for at in range(alone + 1):
        done.assert_drawn(at, "fused")
    done.assert_drawn(alone + 2, "processed" if runner == "V2" else "fused")


@pytest.mark.parametrize("runner", RUNNERS)
def test_an_unknown_rule_is_refused_and_the_engine_goes_on(runner):
    refused = "refused: extra_args['gumbel']: 'typicalp' is none of order, typical_p"
    assert refused in job(runner).log


def test_runners_write_one_text():
    assert [job("V1").ids(at) for at in range(len(CASES))] == [
        job("V2").ids(at) for at in range(len(CASES))
    ]


def test_texts_are_those_of_the_command():
    prompt = "In the beginning"
    samplers = ("--samplers", "temperature;top_k;typ_p;top_p", "--typical", "0.3")
    found = run_generate(prompt, 5, 24, 0.8, 50, 0.95, *samplers)
    given = {"order": "temperature,top_k,typical_p,top_p", "typical_p": 0.3}
    options = {**DRAWN, "top_k": 50, "top_p": 0.95, "extra_args": {"gumbel": given}}
    done = run([[request(found["prompt_ids"], 24, **options)]])
    assert done.ids(0)[0] == found["samples"][0]["ids"]


# ---------------------------------------------------------------------------------- batches ----


def draw_each(logits, given, seeds):
    drawn = [
        gumbel.sample_logits(logits[row : row + 1], seed=seeds[row], position=3, **each)
        for row, each in enumerate(given)
    ]
    return [int(found.tokens[0, 0]) for found in drawn]


def test_more_orders_than_programs_of_a_call():
    """60 rows with an order each, which four calls draw."""
    names = ["top_k", "top_p", "min_p", "typical_p", "epsilon"]
    random = np.random.default_rng(3)
    orders = list({tuple(random.permutation(names)): None for _ in range(90)})[:60]
    values = {"top_k": 30, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.9, "epsilon": 0.004}
    logits = random.normal(0, 2, (60, 300)).astype(np.float32)
    given = [{"order": ",".join(order), "temperature": 0.7, **values} for order in orders]
    parsed = [rules.parse(each, SamplingParams()) for each in given]
    found = {
        row: rules.read(SamplingParams(extra_args={"gumbel": each}))
        for row, each in enumerate(parsed)
        if row % 10
    }
    rows = {
        "temperature": torch.ones(60),
        "seed": torch.arange(60),
        "position": torch.full((60,), 3),
    }
    batch = rules.BatchRules(range(60), found)
    assert len(batch.parts) == 4 and max(len(part.orders) for part in batch.parts) == 16
    drawn = Drawer().draw(
        torch.from_numpy(logits), batch.add_to(DrawParameters(rows)), LogprobsRequest(2, False)
    )
    for row in range(0, 60, 10):
        given[row] = {}
    assert drawn.tokens.view(-1).tolist() == draw_each(logits, given, range(60))
    assert drawn.ids[:, 0].tolist() == drawn.tokens.view(-1).tolist()


def test_rules_of_slots_stay_in_place():
    kept = {}

    def hold(name, values):
        return kept.setdefault(name, values.clone()).copy_(values)

    parameters = DrawParameters({"temperature": torch.ones(4), "top_k": torch.zeros(4).int()})
    first = rules.BatchRules([2, 1], {2: rules.Rules("typical_p,temperature", {"typical_p": 0.5})})
    rows = first.add_to(parameters, hold).rows
    assert rows["program"].tolist() == [0, 0, 1, 0]
    assert rows["typical_p"].tolist() == [1, 1, 0.5, 1]
    second = rules.BatchRules([1], {1: rules.Rules("typical_p,temperature", {"typical_p": 0.25})})
    again = second.add_to(parameters, hold).rows
    assert all(again[name] is rows[name] for name in ("program", "typical_p", "temperature"))
    assert rows["typical_p"].tolist() == [1, 0.25, 1, 1]
    assert not torch.equal(again["program"], torch.zeros(4, dtype=torch.int32))


# -------------------------------------------------------------------------------- admission ----


def config(**changes):
    given = {
        "model_config": types.SimpleNamespace(runner_type="generate"),
        "parallel_config": types.SimpleNamespace(
            pipeline_parallel_size=1, tensor_parallel_size=changes.pop("ranks", 1)
        ),
        "speculative_config": None,
    }
    return types.SimpleNamespace(**{**given, **changes})


def test_admitted_parameters():
    given = {"gumbel": LLAMA, "other": 1}
    parameters = SamplingParams(temperature=0.7, top_k=40, min_p=0.1, extra_args=given)
    rules.admit(parameters, config())
    found = parameters.extra_args["gumbel"]
    assert found.pop("order") == "top_n_sigma,top_k,min_p,xtc,temperature"
    assert found == {
        "temperature": 0.7,
        "top_k": 40,
        "min_p": 0.1,
        "top_n_sigma": 1.5,
        "xtc_probability": 0.5,
        "min_keep": 2,
    }
    off = (parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p)
    assert off == (1, 0, 1, 0) and parameters.extra_args["other"] == 1
    assert given["gumbel"] is LLAMA and "temperature" not in LLAMA  # the caller's own
    before = dict(parameters.extra_args)
    before["gumbel"] = found | {"order": "top_n_sigma,top_k,min_p,xtc,temperature"}
    parameters.extra_args["gumbel"] = before["gumbel"]
    rules.admit(parameters, config())  # a request that a second front end receives
    assert parameters.extra_args == before


def test_greedy_requests_have_no_rules():
    parameters = SamplingParams(temperature=0, extra_args={"gumbel": TYPICAL})
    rules.admit(parameters, config())
    assert parameters.extra_args == {} and parameters.temperature == 0
    parameters = SamplingParams(temperature=0, extra_args={"gumbel": {"typical_p": 7}})
    with pytest.raises(ValueError, match="typical_p"):
        rules.admit(parameters, config())


@pytest.mark.parametrize(
    "given, words",
    [
        ({"typ": 1}, "'typ' is none of order, typical_p"),
        ({"xtc_keep": [[1]]}, "'xtc_keep' is none of"),
        ("{bad", "is no JSON"),
        ([1], "is a list"),
        ({"typical_p": 0.3}, "typical_p: the order 'vllm' does not list"),
        ({"order": "typical_p", "typical_p": 2.0}, "typical_p: is 2; it must be in"),
        ({"order": "typical_p", "typical_p": [0.5]}, "expected a number"),
        ({"order": "p_less", "p_less": 1}, "p_less: is 1, expected True or False"),
        ({"order": "eta", "eta": float("nan")}, "eta: is nan"),
        ({"order": "llama.cpp", "min_keep": 2.5}, "min_keep: expected an integer"),
        ({"order": "sglang"}, "'sglang' is a joint order"),
        ({"order": "nothing"}, "order: 'nothing' is none of"),
        ({"order": "typical_p", "top_k": 5}, "top_k: the order 'typical_p' does not list"),
    ],
)
def test_faulty_rules_are_refused(given, words):
    parameters = SamplingParams(extra_args={"gumbel": given})
    with pytest.raises(ValueError) as refused:
        rules.admit(parameters, config())
    assert str(refused.value).startswith("extra_args['gumbel']: ") and words in str(refused.value)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"ranks": 2}, "tensor parallelism"),
        ({"speculative_config": types.SimpleNamespace()}, "drafts"),
        ({"watermark_config": 1}, "draws are vLLM's own, as watermarks"),
    ],
)
def test_configurations_without_rules(changes, words):
    parameters = SamplingParams(extra_args={"gumbel": TYPICAL})
    with pytest.raises(ValueError, match=words):
        rules.admit(parameters, config(**changes))
    rules.admit(SamplingParams(extra_args={"other": 1}), config(**changes))


def on_platform(monkeypatch, vocab, **kinds):
    """The configuration of an engine on a fake platform."""
    from vllm import platforms

    found = types.SimpleNamespace(**{"is_cpu": lambda: False, "is_cuda": lambda: True, **kinds})
    monkeypatch.setattr(platforms, "current_platform", found)
    monkeypatch.setattr(rule_devices, "_known", {})
    model = types.SimpleNamespace(runner_type="generate", get_vocab_size=lambda: vocab)
    return config(model_config=model)


def admit_typical(given):
    rules.admit(SamplingParams(extra_args={"gumbel": TYPICAL}), given)


def test_the_library_decides_which_gpus_have_rules(monkeypatch):
    """A GPU whose shared memory holds the rows of one vocabulary, and not those of another."""
    probed = []

    def probe(vocab):
        probed.append(vocab)
        return None if vocab <= 135168 else "no allowed rung serves this call: programs"

    monkeypatch.setattr(rule_devices, "_probe_library", probe)
    admit_typical(on_platform(monkeypatch, 135168))
    large = on_platform(monkeypatch, 151936)
    for _ in range(2):
        with pytest.raises(ValueError, match="are not drawn by this GPU: no allowed rung"):
            admit_typical(large)
    assert probed == [135168, 151936]  # once each
    with pytest.raises(ValueError, match="require a CPU, or a GPU of CUDA"):
        admit_typical(on_platform(monkeypatch, 9, is_cuda=lambda: False))


def test_a_failed_probe_is_repeated(monkeypatch):
    """The child process runs; on this machine it has no GPU."""
    found = on_platform(monkeypatch, 1000)
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ValueError, match="cannot be checked on this GPU: "):
        admit_typical(found)
    assert rule_devices._known == {}
    monkeypatch.setattr(rule_devices, "_PROBE", rule_devices._PROBE.replace('"cuda"', '"cpu"'))
    admit_typical(found)
    assert rule_devices._known == {1000: None}
    monkeypatch.setattr(rule_devices, "_ROW", {"order": "nothing"})
    with pytest.raises(ValueError, match="cannot be checked on this GPU: .*'nothing' is none of"):
        admit_typical(on_platform(monkeypatch, 1000))

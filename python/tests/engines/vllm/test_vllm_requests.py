# SPDX-License-Identifier: Apache-2.0
"""All parameters of vLLM's requests, with the plugin: greedy texts, log-probabilities and ranks
equal those of vLLM alone. Drawn texts are equal on both runners, and with and without n-gram
drafts."""

import functools

import pytest
from vllm_jobs import RUNNERS, need_drafts, need_vllm, request, run

need_vllm()

PROMPTS = [[0, 5, 9, 100, 5, 9, 100], [0, 300, 20, 300, 20]]
ENDS = {"ignore_eos": False, "stop_token_ids": [12, 268, 259]}
PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.3}
GRAMMAR = {"structured_outputs": {"regex": "(the |and |king |lord )*x"}, "ignore_eos": False}
CASES = {
    "nothing": {},
    "logprobs": {"logprobs": 3},
    "prompt_logprobs": {"prompt_logprobs": 2},
    "penalties": PENALTIES,
    "penalties and logprobs": {**PENALTIES, "logprobs": 2},
    "logit_bias": {"logit_bias": {"12": -3.0, "268": -4.0, "300": 2.0}},
    "min_p": {"min_p": 0.2},
    "allowed_token_ids": {"allowed_token_ids": [12, 268, 300, 259, 288, 1000]},
    "bad_words": {"bad_words": [" and", " and all", ","]},
    "min_tokens": {"min_tokens": 5, **ENDS},
    "choice": {"structured_outputs": {"choice": ["the LORD said", "and he"]}, "ignore_eos": False},
    "grammar and logprobs": {**GRAMMAR, "logprobs": 2},
    "many logprobs": {"logprobs": 200},
}
NAMES = list(CASES)
# How many steps of each kind of request are drawn in which way; requests that are not listed are
# drawn from hidden states (fused).
FROM_LOGITS = {
    "penalties and logprobs": "logits",
    "grammar and logprobs": "logits",
    "many logprobs": "processed",
}
BY_V2 = dict.fromkeys(["bad_words", "min_tokens"], "processed")
DRAWN = {"temperature": 0.8, "top_k": 20, "top_p": 0.95, "seed": 5}
NGRAMS = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
# vLLM does not support these with drafts, and raises an error.
WITHOUT_DRAFTS = ("prompt_logprobs", "many logprobs")


def way_of(name, runner):
    way = FROM_LOGITS.get(name, "fused")
    return BY_V2.get(name, way) if runner == "V2" else way


def rounds(names, **more):
    return [[request(prompt, 8, **CASES[name], **more) for prompt in PROMPTS] for name in names]


@functools.cache
def run_plugin(runner):
    return run(rounds(NAMES) + rounds(NAMES, **DRAWN), runner)


@functools.cache
def run_stock():
    return run(rounds(NAMES), plugin=False)


@functools.cache
def run_with_drafts(runner):
    names = [name for name in NAMES if name not in WITHOUT_DRAFTS]
    job = run(rounds(names) + rounds(names, **DRAWN), runner, speculative_config=NGRAMS)
    return names, job


def equal_results(one, other):
    """Whether two results are equal, numbers to a thousandth."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or abs(one - other) < 1e-3
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            equal_results(one[key], other[key]) for key in one
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal_results, one, other))
    return one == other


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("runner", RUNNERS)
def test_greedy_requests_are_stock_ones(runner, name):
    at = NAMES.index(name)
    found, wanted = (job.rounds[at]["requests"] for job in (run_plugin(runner), run_stock()))
    assert equal_results(found, wanted), (found, wanted)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("runner", RUNNERS)
def test_steps_are_drawn_in_the_shortest_way(runner, name):
    run_plugin(runner).assert_drawn(NAMES.index(name), way_of(name, runner))


@pytest.mark.parametrize("name", NAMES)
def test_both_runners_draw_one_text(name):
    at = len(NAMES) + NAMES.index(name)
    one, other = (job.rounds[at]["requests"] for job in map(run_plugin, RUNNERS))
    assert [request["texts"][0]["ids"] for request in one] == [
        request["texts"][0]["ids"] for request in other
    ]


@pytest.mark.parametrize("runner", RUNNERS)
def test_drafts_change_no_text(runner):
    need_drafts(runner)
    names, job = run_with_drafts(runner)
    shown = ("logprobs", "penalties and logprobs")
    for at, name in enumerate(names):
        for drawn in (0, 1):
            wanted = run_plugin("V1").rounds[drawn * len(NAMES) + NAMES.index(name)]["requests"]
            found = job.rounds[drawn * len(names) + at]["requests"]
            for one, other in zip(found, wanted):
                one, other = one["texts"][0], other["texts"][0]
                assert one["ids"] == other["ids"], name
                if name in shown:
                    assert equal_results(one["logprobs"], other["logprobs"]), name
    assert sum(job.counts(0).values()) == job.counts(0)["fused"] > 0
    assert job.rounds[-1]["counts"]["stock"] == 0


def test_drafts_save_steps():
    """The texts of these requests repeat themselves, because few tokens are allowed."""
    need_drafts("V1")
    names, job = run_with_drafts("V1")
    name = "allowed_token_ids"
    plain = run_plugin("V1").counts(NAMES.index(name))["fused"]
    assert 0 < job.counts(names.index(name))["fused"] < plain


def test_the_kind_of_logprobs_changes_no_text():
    """Logits are truncated once, also where vLLM's processors and truncated logits are involved.

    V1 only: Triton's interpreter fails in the kernel by which vLLM truncates on the V2 runner.
    """
    drawn = {**DRAWN, "top_p": 0.6, "logprobs": 2}
    names = ["nothing", "penalties", "bad_words", "min_tokens"]
    raw, processed = (
        run(rounds(names, **drawn), "V1", logprobs_mode=f"{kind}_logprobs")
        for kind in ("raw", "processed")
    )
    for name, one, other in zip(names, raw.rounds, processed.rounds):
        for left, right in zip(one["requests"], other["requests"]):
            assert left["texts"][0]["ids"] == right["texts"][0]["ids"], name


def test_requests_with_and_without_a_seed_share_a_batch():
    """A request's text does not depend on a neighbour without a seed, nor that one's on it."""
    seeded = request(PROMPTS[0], 8, temperature=1.0, seed=5)
    fresh = request(PROMPTS[1], 8, temperature=1.0)
    alone = run([[seeded], [seeded, fresh]], "V1")
    texts = [[it["texts"][0]["ids"] for it in found["requests"]] for found in alone.rounds]
    assert texts[0][0] == texts[1][0] and len(texts[1][1]) == 8

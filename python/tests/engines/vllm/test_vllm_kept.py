# SPDX-License-Identifier: Apache-2.0
"""vLLM's sampling masks: sets of kept tokens are those of vLLM alone, in every kind of step."""

import dataclasses
import functools

import pytest
from vllm_jobs import PROMPTS, need_drafts, need_vllm, request, run

need_vllm()

from vllm.config import ModelConfig  # noqa: E402

if "return_sampling_mask" not in {field.name for field in dataclasses.fields(ModelConfig)}:
    pytest.skip("this vLLM has no sampling masks", allow_module_level=True)

TOKENS = 5
CUTS = (
    {"temperature": 0.8, "top_k": 20, "seed": 5},
    {"temperature": 1.2, "top_k": 100, "top_p": 0.8, "seed": 6},
    {"temperature": 1.0, "top_k": 9, "min_p": 0.1, "seed": 7},
    {"temperature": 1.0, "top_k": 1, "seed": 8},
    {"temperature": 0.9, "top_k": 30, "repetition_penalty": 1.3, "logprobs": 2, "seed": 9},
    {"temperature": 0.9, "top_k": 12, "logit_bias": {"3": 4.0}, "allowed_token_ids": [3, 5, 8, 70]},
)
REQUESTS = [request(PROMPTS[at % 3], TOKENS, **cut) for at, cut in enumerate(CUTS)]
# vLLM processes the logits of these requests.
PROCESSED = [[ids, {**options, "bad_words": ["the"]}] for ids, options in REQUESTS]
MASKS = {"return_sampling_mask": True, "logprobs_mode": "processed_logprobs"}
RULES = {"order": "top_k,typical_p,temperature", "typical_p": 0.7}


# Triton cannot interpret vLLM's truncation. Faulty requests are printed.
BEFORE = """
import vllm
import vllm.v1.sample.ops.topk_topp_sampler as ops
ops.HAS_TRITON = False
generate = vllm.LLM.generate
def checked(self, *arguments, **named):
    try:
        return generate(self, *arguments, **named)
    except ValueError as refused:
        print("refused:", refused)
        return []
vllm.LLM.generate = checked
"""


def run_masks(rounds, **more):
    return run(rounds, "V2", before=BEFORE, **MASKS, **more)


@functools.cache
def job(plugin=True):
    rounds = [REQUESTS, PROCESSED]
    if plugin:
        ruled = {"temperature": 0.8, "top_k": 25, "seed": 3, "extra_args": {"gumbel": RULES}}
        greedy = {**ruled, "extra_args": {"gumbel": {"temperature": 0}}}
        rounds += [[request(PROMPTS[0], TOKENS, **ruled), *REQUESTS[:2]]]
        rounds += [[request(PROMPTS[0], TOKENS, **greedy)]]
    return run_masks(rounds, plugin=plugin)


@pytest.mark.parametrize("at", [0, 1], ids=["fused", "processed"])
def test_sets_are_those_of_vllm(at):
    ours, stock = job(), job(plugin=False)
    for ids, kept, other, wanted in zip(ours.ids(at), ours.kept(at), stock.ids(at), stock.kept(at)):
        assert len(kept) == len(wanted) == TOKENS
        same = next((n for n in range(TOKENS) if ids[n] != other[n]), TOKENS - 1) + 1
        assert kept[:same] == wanted[:same]  # of equal texts, which begin with the same prompt
        assert all(token in found for token, found in zip(ids, kept))
    assert ours.kept(at)[3] == [[token] for token in ours.ids(at)[3]]


def test_steps_are_fused_unless_vllm_processes_them():
    job().assert_drawn(0, "fused")
    assert job().counts(1)["processed"] == TOKENS and job().counts(1)["stock"] == 0


def test_rules_of_requests_have_their_sets():
    texts = job()
    assert texts.kept(2)[1:] == texts.kept(0)[:2]
    ruled = texts.kept(2)[0]
    assert all(token in kept for token, kept in zip(texts.ids(2)[0], ruled))
    assert all(0 < len(kept) <= 25 for kept in ruled) and any(len(kept) < 25 for kept in ruled)


def test_greedy_rules_are_refused():
    assert job().rounds[3]["requests"] == []
    assert "temperature: is 0, but sampling masks are requested" in job().log


def test_drafts_have_the_sets_of_plain_decoding():
    need_drafts("V2")
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    cuts = [cut for cut in CUTS if not {"min_p", "logit_bias"} & cut.keys()]
    plain_cuts = [cut for cut in cuts if "repetition_penalty" not in cut]
    again = [0, 5, 9, 100, 5, 9, 100, 5]
    rounds = [[request(again, 24, temperature=0.3, top_k=2, seed=1)]]
    rounds += [[request(again, 8, **cut) for cut in some] for some in (plain_cuts, cuts)]
    plain = run_masks(rounds)
    found = run_masks(rounds, speculative_config={**drafts, "prompt_lookup_min": 1})
    for at in range(3):
        assert found.ids(at) == plain.ids(at)
        assert found.kept(at) == plain.kept(at)
    assert found.counts(0)["fused"] < 24  # some drafts are accepted
    assert found.counts(1)["processed"] == 0 < found.counts(2)["processed"]


def test_masks_are_not_computed_unless_requested():
    assert run([REQUESTS[:1]], "V2").kept(0) == [None]


def test_ranks_have_the_sets_of_one_process():
    ranks = run_masks([REQUESTS[:3]], ranks=2)
    assert ranks.ids(0) == job().ids(0)[:3]
    assert ranks.kept(0) == job().kept(0)[:3]

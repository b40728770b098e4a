# SPDX-License-Identifier: Apache-2.0
"""Random MTP, DFlash and EAGLE 3 drafters: texts and log-probabilities equal those without drafts,
and the drafts have the target's noise, also in the step after some were rejected.

vLLM's V2 runner has no EAGLE that drafts all tokens at once ("parallel"); "eagle3" differs from the
EAGLE of test_vllm_drafts.py by its vocabulary, which lacks some of the target's tokens."""

import pytest
from vllm_drafters import write_dflash, write_eagle3, write_mtp_model
from vllm_jobs import ANY_TEMPERATURE, PROMPTS, equal_logprobs, need_vllm, request, run, version

need_vllm()

if tuple(map(int, version().split(".")[:2])) < (0, 32):
    pytest.skip(f"vLLM {version()} has other drafters", allow_module_level=True)

DRAWN = {"temperature": 0.8, "seed": 5}
TOKENS, STEPS = 16, 3
CASES = [
    {},
    DRAWN,
    {**DRAWN, "top_k": 20, "top_p": 0.9},
    {**DRAWN, "min_p": 0.02},
    {**DRAWN, "logit_bias": {"12": 3.0, "268": -100.0}, "min_p": 0.02, "logprobs": 2},
]
# Noise decides nearly alone at HOT, and at WARM about two of three drafts are accepted.
HOT, WARM = {"temperature": 200.0, "seed": 3}, {"temperature": 5.0, "seed": 3}
WARM_TOKENS = 24
KINDS = [("mtp", "V1"), ("mtp", "V2"), ("dflash", "V1"), ("dflash", "V2"), ("eagle3", "V2")]
KINDS += [("parallel", "V1")]
ROUNDS = [
    [request(PROMPTS[at % 3], TOKENS - at, **case) for at, case in enumerate(CASES[:4])],
    [request(PROMPTS[0] * 9, 3), *(request(PROMPTS[1], TOKENS, **case) for case in CASES[3:])],
    [request(prompt, TOKENS, **HOT) for prompt in PROMPTS],
    [request(PROMPTS[1], WARM_TOKENS, **WARM)],
]
HOT_ROUND, WARM_ROUND = 2, 3


@pytest.fixture(scope="module", name="jobs")
def make_jobs(tmp_path_factory):
    """Results by kind of drafts and runner; without drafts, of the kind's target on V1."""
    known = {}

    def options(kind):
        folder = tmp_path_factory.mktemp(kind)
        if kind == "mtp":
            return {"model": str(folder), "speculative_config": write_mtp_model(folder)}
        if kind == "dflash":
            return {"speculative_config": write_dflash(folder)}
        return {"speculative_config": write_eagle3(folder, parallel=kind == "parallel")}

    def job(kind, runner=None):
        key = (kind, runner) if runner or kind == "mtp" else (None, None)
        if key not in known:
            given = options(kind)
            if runner:
                given["speculative_config"]["num_speculative_tokens"] = STEPS
            else:
                del given["speculative_config"]
            known[key] = run(ROUNDS, runner or "V1", before=ANY_TEMPERATURE, **given)
        return known[key]

    return job


@pytest.mark.parametrize("kind, runner", KINDS)
def test_drafts_change_no_text(jobs, kind, runner):
    plain, found = jobs(kind), jobs(kind, runner)
    for at in range(len(ROUNDS)):
        assert found.ids(at) == plain.ids(at), at
        for one, other in zip(found.rounds[at]["requests"], plain.rounds[at]["requests"]):
            assert equal_logprobs(one["texts"][0]["logprobs"], other["texts"][0]["logprobs"]), at
    assert found.rounds[-1]["counts"]["stock"] == 0


@pytest.mark.parametrize("kind, runner", KINDS)
def test_drafts_have_the_noise_of_the_target(jobs, kind, runner):
    found = jobs(kind, runner)
    assert found.steps(HOT_ROUND) <= TOKENS // (STEPS + 1) + 3
    assert found.steps(WARM_ROUND) <= WARM_TOKENS // 2 + 1


def test_steps_without_drafts_are_as_many_as_tokens(jobs):
    assert jobs("mtp").steps(HOT_ROUND) == jobs("dflash").steps(HOT_ROUND) == TOKENS

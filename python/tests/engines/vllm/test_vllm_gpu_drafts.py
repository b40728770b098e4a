# SPDX-License-Identifier: Apache-2.0
"""Drafts on a GPU, where the V2 runner captures the drafter's draws in CUDA graphs: replays read
the seeds, temperatures, positions and truncation of their own batch. Noise decides nearly alone in
most requests, so that a draft with the seed or position of another row or step is not accepted."""

import pytest
from vllm_drafters import write_dflash, write_eagle, write_eagle3, write_mtp_model
from vllm_jobs import (
    ANY_TEMPERATURE,
    PROMPTS,
    ROOT,
    RUNNERS,
    TARGET,
    need_gpu,
    request,
    run,
    version,
)

need_gpu()

if tuple(map(int, version().split(".")[:2])) < (0, 32):
    pytest.skip(f"vLLM {version()} has other drafters", allow_module_level=True)

TOKENS, STEPS = 32, 3
ENGINE = {
    "device": "cuda",
    "before": ANY_TEMPERATURE,
    "gpu_memory_utilization": 0.3,
    "dtype": "bfloat16",
}
# A draft model, and drafters of which each captures graphs in another way.
DRAFT_MODEL = {"model": str(ROOT / "tests/models/kjv-draft"), "method": "draft_model"}
KINDS = {
    "draft_model": lambda folder: dict(DRAFT_MODEL),
    "eagle": write_eagle,
    "eagle3": write_eagle3,
    "mtp": write_mtp_model,
    "dflash": write_dflash,
}


def hot(prompt, seed, tokens=TOKENS, **truncation):
    """A request whose logits count for so little that their rounding changes no token."""
    return request(prompt, tokens, temperature=20000.0, seed=seed, **truncation)


def warm(prompt, seed, **truncation):
    return request(prompt, TOKENS, temperature=1.0, seed=seed, **truncation)


# Batches of 1, 3 and 5 requests, of which graphs pad the last two to larger ones. The five requests
# end at different steps, so that the rows of requests change.
ROUNDS = [
    [hot(PROMPTS[0], 3)],
    [hot(prompt, 2**40 + at) for at, prompt in enumerate(PROMPTS)],
    [hot(PROMPTS[at % 3] * (at + 1), 77 * at, TOKENS - 4 * at) for at in range(5)],
    [request(PROMPTS[1], TOKENS, temperature=5.0, seed=3)],
    [request(PROMPTS[1], TOKENS), hot(PROMPTS[1], 3), request(PROMPTS[2], TOKENS)],
]
HOT_ROUNDS, WARM_ROUND = (0, 1, 2), 3
# Requests that keep few tokens: drafts from all tokens would seldom be among them.
TRUNCATED = [
    [hot(PROMPTS[0], 3, top_k=20)],
    [warm(PROMPTS[1], 4, top_p=0.5)],
    [warm(PROMPTS[2], 5, min_p=0.4)],
    [hot(PROMPTS[2], 6, top_k=20), hot(PROMPTS[0], 7), warm(PROMPTS[1], 8, top_p=0.5)],
]
MOST_STEPS = TOKENS // (STEPS + 1) + 4


@pytest.fixture(scope="module", name="jobs")
def make_jobs(tmp_path_factory):
    """Results by kind of drafts and runner, with drafts and without."""
    known = {}

    def job(kind, runner, drafts):
        key = (kind if drafts or kind == "mtp" else None, runner, drafts)
        if key not in known:
            folder = tmp_path_factory.mktemp(kind)
            config = {**KINDS[kind](folder), "num_speculative_tokens": STEPS}
            options = dict(ENGINE)
            if kind == "mtp":
                options["model"] = str(folder)
            if drafts:
                options["speculative_config"] = config
            known[key] = run(ROUNDS, runner, **options)
            assert "Graph capturing finished" in known[key].log
        return known[key]

    return job


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_drafts_change_no_text(jobs, runner, kind):
    """Texts of which noise decides; others can part at near ties of the model's own products."""
    plain, found = jobs(kind, runner, False), jobs(kind, runner, True)
    for at in HOT_ROUNDS:
        assert found.ids(at) == plain.ids(at), at
    assert found.rounds[-1]["counts"]["stock"] == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_drafts_have_the_noise_of_the_target(jobs, runner, kind):
    found = jobs(kind, runner, True)
    for at in HOT_ROUNDS:
        assert found.steps(at) <= MOST_STEPS, at
    assert found.steps(WARM_ROUND) <= TOKENS // 2 + 2


@pytest.mark.parametrize("runner", RUNNERS)
def test_drafts_are_truncated_as_the_target(runner):
    """The drafter is the target itself, so that both keep the same tokens but for rounding."""
    drafts = {**DRAFT_MODEL, "model": str(TARGET), "num_speculative_tokens": STEPS}
    found = run(TRUNCATED, runner, speculative_config=drafts, **ENGINE)
    for at in range(len(TRUNCATED)):
        assert found.steps(at) <= MOST_STEPS, at

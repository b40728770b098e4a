# SPDX-License-Identifier: Apache-2.0
"""Drafts of a draft model and of a random EAGLE head, on both runners: texts and log-probabilities
equal those without drafts, with min_p and logit_bias too, and drafts have the target's noise."""

import types

import pytest
from vllm_drafters import write_eagle
from vllm_jobs import (
    ANY_TEMPERATURE,
    PROMPTS,
    ROOT,
    RUNNERS,
    equal_logprobs,
    need_vllm,
    request,
    run,
    version,
)

need_vllm()

if tuple(map(int, version().split(".")[:2])) < (0, 32):
    pytest.skip(f"vLLM {version()} has other drafters", allow_module_level=True)

DRAFT = str(ROOT / "tests/models/kjv-draft")
DRAWN = {"temperature": 0.8, "seed": 5}
TOKENS = 16  # the V2 runner is interpreted on a CPU
CASES = [
    {},
    DRAWN,
    {**DRAWN, "top_k": 20, "top_p": 0.9, "logprobs": 3},
    {**DRAWN, "min_p": 0.1},
    {**DRAWN, "min_p": 0.02, "logit_bias": {"12": 3.0, "268": -100.0}, "logprobs": 2},
    {"logit_bias": {"300": 12.0}, "presence_penalty": 0.5},
    {**DRAWN, "logit_bias": {"300": 4.0}, "repetition_penalty": 1.3, "min_p": 0.05},
    {**DRAWN, "bad_words": [" the"], "logit_bias": {"12": 5.0}, "min_p": 0.05},
    {"temperature": 1.0, "seed": 9, "top_k": 50},
]
# At this temperature, which vLLM refuses, noise decides nearly alone. Draws with equal noise are
# then nearly always equal, whatever the logits are, and others nearly never.
HOT = {"temperature": 200.0, "seed": 3}
STEPS = 3
# The drafts of the plug-in, and with "own" vLLM's own, which have other noise.
KINDS = {
    "draft_model": {"draft_sample_method": "probabilistic"},
    "eagle": {},
    "own": {"draft_sample_method": "probabilistic"},
}
OWN_DRAFTS = "import gumbel._vllm.drafting as it; it.find_v1_hooks = it.find_v2_hooks = tuple"


def rounds():
    each = [request(PROMPTS[at % 3], TOKENS, **case) for at, case in enumerate(CASES)]
    hot = [request(prompt, TOKENS, **HOT) for prompt in PROMPTS]
    lengths = [request(PROMPTS[0] * 9, 3), *each, request(PROMPTS[1], 7, temperature=1.0, seed=1)]
    return [*([it] for it in each), lengths, hot]


HOT_ROUND = len(CASES) + 1


@pytest.fixture(scope="module", name="jobs")
def make_jobs(tmp_path_factory):
    """Results by runner and kind of drafts."""
    eagle = write_eagle(tmp_path_factory.mktemp("eagle"))
    known = {}

    def job(runner, kind=None):
        if (runner, kind) not in known:
            options = {"max_num_seqs": 16}
            if kind:
                drafts = eagle if kind == "eagle" else {"model": DRAFT, "method": "draft_model"}
                options["speculative_config"] = {
                    **drafts,
                    "num_speculative_tokens": STEPS,
                    **KINDS[kind],
                }
            before = ANY_TEMPERATURE + (OWN_DRAFTS if kind == "own" else "")
            known[runner, kind] = run(rounds(), runner, before=before, **options)
        return known[runner, kind]

    return job


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_drafts_change_no_text(jobs, runner, kind):
    plain, found = jobs(runner), jobs(runner, kind)
    for at in range(len(plain.rounds)):
        assert found.ids(at) == plain.ids(at), at
        for one, other in zip(found.rounds[at]["requests"], plain.rounds[at]["requests"]):
            assert equal_logprobs(one["texts"][0]["logprobs"], other["texts"][0]["logprobs"]), at
    assert found.rounds[-1]["counts"]["stock"] == 0


def test_the_parameters_change_texts(jobs):
    """min_p and logit_bias have an effect on the texts above, which are equal in a batch."""
    plain = jobs("V1")
    texts = [plain.ids(at)[0] for at in range(len(CASES))]
    assert plain.ids(len(CASES))[1:-1] == texts
    assert texts[3] != run([[request(PROMPTS[0], TOKENS, **DRAWN)]]).ids(0)[0]
    assert texts[5].count(300) > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_drafts_have_the_noise_of_the_target(jobs, runner, kind):
    """At a high temperature, nearly every cycle accepts all drafts, and none of other noise."""
    cycles = jobs(runner, kind).steps(HOT_ROUND)
    if kind == "own":
        assert cycles >= TOKENS - 2
    else:
        assert cycles <= TOKENS // (STEPS + 1) + 5


@pytest.mark.parametrize("runner", RUNNERS)
def test_drafts_save_steps(jobs, runner):
    """Of seeded requests, more than drafts with other noise do; of greedy ones as many."""
    noisy, own = jobs(runner, "draft_model"), jobs(runner, "own")
    assert noisy.steps(0) == own.steps(0) < TOKENS - 4
    drawn = [at for at, case in enumerate(CASES) if "seed" in case]
    assert sum(noisy.steps(at) for at in drawn) < sum(own.steps(at) for at in drawn)


# -------------------------------------------------------------------------------- admission ----


def config(**changes):
    given = {
        "model_config": types.SimpleNamespace(runner_type="generate"),
        "parallel_config": types.SimpleNamespace(
            pipeline_parallel_size=1, tensor_parallel_size=changes.pop("ranks", 1)
        ),
        "speculative_config": types.SimpleNamespace(rejection_sample_method="standard"),
    }
    return types.SimpleNamespace(**{**given, **changes})


@pytest.mark.parametrize("options", [{"min_p": 0.1}, {"logit_bias": {3: 1.0}}])
def test_requests_are_refused_where_vllm_draws(options):
    from gumbel._vllm import draft_requests
    from vllm import SamplingParams

    (_, _, validate), *_ = draft_requests.find_front_end_hooks()
    parameters, drafts = SamplingParams(**options), types.SimpleNamespace()
    with draft_requests.admit_under_drafts(config()):
        validate(parameters, drafts)
    other = types.SimpleNamespace(rejection_sample_method="fly")
    for changes in ({"ranks": 2}, {"speculative_config": other}):
        with draft_requests.admit_under_drafts(config(**changes)):
            with pytest.raises(Exception, match="not yet supported with speculative decoding"):
                validate(parameters, drafts)
    with pytest.raises(Exception, match="not yet supported"):
        validate(parameters, drafts)


@pytest.mark.parametrize("v2", [False, True])
def test_vllm_keeps_random_drafts_that_have_other_noise(v2):
    from gumbel._vllm.support import refusal

    def refused(method, model_type="", architecture=""):
        model = types.SimpleNamespace(
            architectures=[architecture], hf_config=types.SimpleNamespace(model_type=model_type)
        )
        drafts = types.SimpleNamespace(
            method=method, draft_sample_method="probabilistic", draft_model_config=model
        )
        found = refusal(config(speculative_config=drafts, use_v2_model_runner=v2))
        assert found in (None, "random drafts have noise of their own")
        return found is not None

    assert not any(map(refused, ("draft_model", "eagle", "eagle3", "mtp", "dflash")))
    assert all(map(refused, ("ngram", "dspark", "medusa")))
    for model_type in ("step3p5_mtp", "gemma4_mtp"):
        assert refused("mtp", model_type=model_type) == (not v2)
    for architecture in ("DFlash2DraftModel", "LiLiCorrDraftModel", "DFlashQwen3XPressModel"):
        assert refused("dflash", architecture=architecture) == v2


def test_forms_of_v2_drafters_are_known(monkeypatch):
    """Parameters that later versions added are passed on; there are no hooks for other ones."""
    from gumbel._vllm.drafting import find_v2_hooks
    from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

    names = "hidden_states, sample_src_positions, idx_mapping, temperature, seeds, draft_step, "
    drafter = types.SimpleNamespace(_gumbel_sampler=None, use_local_argmax_reduction=False)

    def hooks(more):
        found = {}
        exec(f"def sample_draft(self, {names}draft_logits{more}): return locals()", found)
        monkeypatch.setattr(DraftModelSpeculator, "sample_draft", found["sample_draft"])
        return find_v2_hooks()

    forms = {"": {}, ", spec_step_idx=0": {"spec_step_idx": 7}}
    forms[", spec_step_idx=0, num_steps=1"] = {"spec_step_idx": 7, "num_steps": 3}
    for more, later in forms.items():
        ((_, name, hook),) = hooks(more)
        passed = hook(drafter, *range(7), **later)
        assert name == "sample_draft"
        assert list(passed.values()) == [drafter, *range(7), *later.values()]
    assert hooks(", spec_step_idx=0, unknown=0") == ()

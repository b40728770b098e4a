# SPDX-License-Identifier: Apache-2.0
"""vLLM with the plugin: stock texts where they are greedy, without logits; one text for one seed
and prompt, in any batch, process and runner, and by the other ways in; the law of the model."""

import functools

import numpy as np
import pytest
from vllm_jobs import PROMPTS, ROOT, RUNNERS, need_vllm, request, run

need_vllm()

from golden_texts import (  # noqa: E402
    HOW,
    PARTED_MAX,
    TARGET,
    TEXTS,
    TOKENS,
    assert_one_text,
    generated,
)

SEEDS = [7, 2**63 - 1, -3]
OTHERS = [
    {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 0},
    {"temperature": 0.7, "repetition_penalty": 1.2, "logprobs": 2},
    {"temperature": 1.3, "seed": 7},
]
SHORT = 6
GREEDY = [request(prompt, 24) for prompt in PROMPTS]
ALONE = [[request(prompt, SHORT, seed=seed, **HOW)] for prompt, seed in zip(PROMPTS, SEEDS)]
AMONG = [
    [
        *(request(PROMPTS[row % 3], SHORT, **OTHERS[row % 4]) for row in range(17)),
        *(texts[0] for texts in ALONE),
        *(request(PROMPTS[row % 2], SHORT, **OTHERS[row % 4]) for row in range(20)),
    ]
]
ROUNDS = [GREEDY, *ALONE, *AMONG]


@functools.cache
def written(runner, processes=False):
    return run(ROUNDS, runner, processes=processes, max_num_seqs=40)


@functools.cache
def of_texts(runner):
    """The texts of one seed and prompt each, in vLLM's own int64 of the seed's bits."""
    rounds = [
        [request(generated(prompt, seed)[0], TOKENS, seed=seed - (seed >> 63 << 64), **HOW)]
        for prompt, seed in TEXTS
    ]
    job = run(rounds, runner)
    return [job.ids(at)[0] for at in range(len(rounds))]


@functools.cache
def stock_greedy():
    return run([GREEDY], plugin=False).ids(0)


@pytest.mark.parametrize("runner", RUNNERS)
def test_greedy_texts_are_stock_texts_without_logits(runner):
    job = written(runner)
    assert job.ids(0) == stock_greedy()
    found = job.counts(0)
    assert found == {"fused": 24, "logits": 0, "processed": 0, "stock": 0, "materialised": 0}


@pytest.mark.parametrize("processes", [False, True], ids=["one process", "processes"])
@pytest.mark.parametrize("runner", RUNNERS)
def test_the_log_names_the_runner_and_the_counts(runner, processes):
    log = written(runner, processes).log
    assert f"draws are libgumbel's, by the {runner} runner" in log
    assert "steps drawn without logits" in log


@pytest.mark.parametrize("processes", [False, True], ids=["one process", "processes"])
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_text_depends_on_seed_and_prompt_alone(runner, processes):
    job = written(runner, processes)
    alone = [job.ids(1 + row)[0] for row in range(3)]
    assert job.ids(4)[17:20] == alone
    assert len({tuple(text) for text in alone}) == 3
    assert alone == [written("V1").ids(1 + row)[0] for row in range(3)]


def test_another_seed_writes_another_text():
    seeds = [[request(PROMPTS[0], seed=seed, **HOW) for seed in (1, 2, 1)]]
    one, two, again = run(seeds).ids(0)
    assert one == again and one != two


@pytest.mark.parametrize("runner", RUNNERS)
def test_one_seed_and_prompt_give_one_text(runner):
    written = iter(of_texts(runner))
    assert_one_text(lambda *_: next(written))


@pytest.mark.parametrize("runner", RUNNERS)
def test_transformers_writes_the_same_texts(runner):
    transformers = pytest.importorskip("transformers")
    if not transformers.__version__.startswith(("5.16.", "5.17.")):
        pytest.skip("gumbel.transformers knows transformers 5.16 and 5.17")
    import gumbel.transformers
    import torch

    model = transformers.AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    same = 0
    for (prompt, seed), found in zip(TEXTS, of_texts(runner)):
        ids = generated(prompt, seed)[0]
        inputs = torch.tensor([ids])
        generated = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=True,
            seed=seed,
            max_new_tokens=TOKENS,
            eos_token_id=None,
            custom_generate=gumbel.transformers.generate,
            **HOW,
        )
        same += generated[0, len(ids) :].tolist() == found
    assert same >= len(TEXTS) - PARTED_MAX


def chi_squared(counts, probabilities):
    """The z-score of Pearson's statistic, over tokens that are expected 5 times and the rest."""
    expected = probabilities * counts.sum()
    often = expected >= 5
    seen = np.append(counts[often], counts[~often].sum())
    wanted = np.append(expected[often], expected[~often].sum())
    free = len(seen) - 1
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    # Wilson and Hilferty's cube root is close to normal.
    return ((statistic / free) ** (1 / 3) - (1 - 2 / (9 * free))) / (2 / (9 * free)) ** 0.5


def test_first_tokens_have_the_models_law():
    load_file = pytest.importorskip("safetensors.numpy").load_file
    golden = load_file(ROOT / "tests/models/golden.safetensors")
    prompt = golden["context"][0, : golden["positions"][0] + 1].tolist()
    requests = [request(prompt, 1, temperature=1.0, seed=seed) for seed in range(4096)]
    drawn = [ids[0] for ids in run([requests], max_num_seqs=256).ids(0)]
    counts = np.bincount(drawn, minlength=golden["target.logits"].shape[1])
    logits = golden["target.logits"][0].astype(np.float64)

    def score(temperature):
        scaled = np.exp((logits - logits.max()) / temperature)
        return chi_squared(counts, scaled / scaled.sum())

    assert abs(score(1.0)) < 3.9  # p = 1e-4
    assert score(1.1) > 5 and score(0.9) > 5  # a temperature 10% off shows

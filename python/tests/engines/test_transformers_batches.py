# SPDX-License-Identifier: Apache-2.0
"""Continuous batching of transformers gives the texts of generate(), and computes no logits."""

import pytest
from transformers_fixtures import (  # noqa: F401, fixtures; skips without transformers
    DRAWN,
    PROMPTS,
    gumbel,
    model,
    generate_texts,
    tokenizer,
    torch,
    transformers,
    command_texts,
)
from transformers.generation import ContinuousBatchingConfig
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager

SEEDS = [3, 4, 2**64 - 1, 0]


@pytest.fixture(autouse=True)
def room(model):
    """On a CPU transformers requires psutil, to determine the memory for its cache."""
    if model.device.type == "cpu":
        pytest.importorskip("psutil")


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]


def make_batching(**more):
    sizes = {"num_blocks": 32, "max_batch_tokens": 64, "block_size": 32}
    return ContinuousBatchingConfig(**{**sizes, **more})


def make_config(tokens=16, eos=-1, **more):
    return transformers.GenerationConfig(max_new_tokens=tokens, eos_token_id=eos, **more)


def generate_batch(model, prompts, config, seed=None, **more):
    """The texts of a batch, drawn by the library."""
    model.head_calls = 0
    out = gumbel.transformers.generate_batch(
        model, prompts, config, make_batching(**more), seed=seed
    )
    assert all(one.error is None for one in out.values())
    return [one.generated_tokens for one in out.values()]


def generate_singly(model, prompts, seeds, **more):
    """Texts of generate(), one prompt at a time."""
    found = []
    for prompt, seed in zip(prompts, seeds):
        ids = torch.tensor([prompt])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        given = {"eos_token_id": None, **more}
        found += generate_texts(model, inputs, seed=seed, **given)[:, len(prompt) :].tolist()
    return found


def test_greedy_texts_are_stock_texts_without_logits(model, prompts):
    config = make_config(do_sample=False)
    stock = model.generate_batch(prompts, config, make_batching(return_logprobs=True))
    model.head_calls = 0
    ours = gumbel.transformers.generate_batch(
        model, prompts, config, make_batching(return_logprobs=True)
    )
    assert model.head_calls == 0 and list(ours) == list(stock)
    for name in stock:
        assert ours[name].generated_tokens == stock[name].generated_tokens
        assert ours[name].logprobs == pytest.approx(stock[name].logprobs, abs=1e-3)


@pytest.mark.parametrize(
    "more",
    [
        DRAWN,
        {"do_sample": True, "top_k": 0, "min_p": 0.1},
        {**DRAWN, "typical_p": 0.9, "epsilon_cutoff": 0.002, "eta_cutoff": 0.01},
        {**DRAWN, "num_return_sequences": 3},
    ],
    ids=str,
)
def test_texts_of_a_batch_are_those_of_generate(model, prompts, more):
    together = generate_batch(model, prompts, make_config(**more), SEEDS)
    assert model.head_calls == 0
    assert together == generate_singly(model, prompts, SEEDS, **more)


def test_unsupported_options_run_transformers_processors(model, prompts):
    more = {"do_sample": True, "top_k": 0, "top_h": 0.9}
    together = generate_batch(model, prompts, make_config(**more), SEEDS)
    assert model.head_calls > 0
    assert together == generate_singly(model, prompts, SEEDS, **more)


def test_a_text_depends_on_seed_and_prompt_alone(model, prompts):
    """In compiled steps that split prompts, in batches that other texts join and leave."""
    config = make_config(**DRAWN)
    alone = generate_batch(model, prompts[1:2], config, 4)[0]
    many = [*prompts, [0, *prompts[3] * 9], prompts[1], *prompts[:3] * 2]
    seeds = list(range(100, 100 + len(many)))
    seeds[5] = 4
    assert generate_batch(model, many, config, seeds, max_batch_tokens=7)[5] == alone
    compiled = transformers.CompileConfig(backend="eager", mode="default")
    given = {"varlen_compile_config": compiled, "decode_compile_config": compiled}
    assert generate_batch(model, prompts[:2], config, [9, 4], **given)[1] == alone
    assert generate_batch(model, prompts[1:2], config, 5)[0] != alone


def test_the_command_writes_the_same_texts(model, tokenizer):
    seeds = (3, 4, 5, 6)
    theirs = [command_texts(tokenizer, prompt, seed) for prompt, seed in zip(PROMPTS, seeds)]
    ours = generate_batch(model, [ids for ids, _ in theirs], make_config(**DRAWN), seeds)
    assert ours == [text for _, (text,) in theirs]


def test_texts_end_and_without_a_seed_torch_decides(model, prompts):
    config, found = make_config(eos=[269, 259], **DRAWN), []
    for state in (1, 1, 2):
        torch.manual_seed(state)
        found.append(generate_batch(model, prompts, config))
    assert found[0] == found[1] != found[2]
    for text in sum(found, []):
        assert len(text) == 16 or text[-1] in (269, 259)
        assert not {269, 259} & set(text[:-1])
    assert gumbel.transformers.generate_batch(model, []) == {}


def test_managers_of_a_patched_process(model, prompts, monkeypatch):
    """A seed and a temperature a request; managers of transformers alone are not affected."""
    config = make_config(**DRAWN)
    stock = ContinuousBatchingManager.__init__
    monkeypatch.setattr(ContinuousBatchingManager, "__init__", stock)
    gumbel.transformers.patch_continuous_batching()
    found, temperatures = {}, [0.5, 0.8, 1.5, 0.8]
    model.head_calls = 0
    with model.continuous_batching_context_manager(
        config, continuous_batching_config=make_batching(per_request_processors=True)
    ) as manager:
        for prompt, seed, temperature in zip(prompts, SEEDS, temperatures):
            manager.add_request(prompt, seed=seed, temperature=temperature)
        manager.add_request(prompts[0])
        while len(found) < 5:
            one = manager.get_result(timeout=1)
            if one is not None:
                found[one.request_id] = one.generated_tokens
    assert model.head_calls == 0
    for row, temperature in enumerate(temperatures):
        given = {**DRAWN, "temperature": temperature}
        assert [found[f"req_{row}"]] == generate_singly(
            model, prompts[row : row + 1], SEEDS[row : row + 1], **given
        )
    assert len(found["req_4"]) == 16


def test_a_manager_that_fails_leaves_the_model_as_it_was(model, prompts, monkeypatch):
    def fail(self):
        raise MemoryError("no room")

    attention = model.config._attn_implementation
    with monkeypatch.context() as patched:
        patched.setattr(ContinuousBatchingManager, "warmup", fail)
        with pytest.raises(MemoryError):
            generate_batch(model, prompts, make_config(**DRAWN))
    assert model.config._attn_implementation == attention
    assert len(generate_batch(model, prompts, make_config(**DRAWN))) == 4


def test_invalid_arguments_raise(model, prompts):
    config = make_config(**DRAWN)
    for seed, text in (([1, 2], "seed: expected one, or 4"), (-1, "seed: ")):
        with pytest.raises(ValueError, match=text):
            generate_batch(model, prompts, config, seed)
    model.generate_batch(prompts, config, make_batching(), persistent_manager=True)
    with pytest.raises(RuntimeError, match="destroy_cached_continuous_batching_manager"):
        generate_batch(model, prompts, config)
    model.destroy_cached_continuous_batching_manager()
    assert len(generate_batch(model, prompts, config)) == 4

# SPDX-License-Identifier: Apache-2.0
"""Several texts of a prompt: text s is sample s of its seed, and a step draws one sample a row."""

import pytest
from transformers_fixtures import DRAWN, gumbel, heads, torch  # noqa: F401
from test_transformers_batches import make_batching, make_config
from tiny_models import VOCAB, make

from gumbel._calls import sample_calls
from gumbel._transformers import draws

S, TOKENS, SEED = 5, 6, 2**64 - 3
RULES = {"temperature": 0.8, "top_k": 20}


@pytest.fixture(scope="module")
def model():
    return make(spread=0.3)


def generate_sequences(model, prompts, copies, seed, **more):
    return model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=TOKENS,
        do_sample=True,
        pad_token_id=0,
        num_return_sequences=copies,
        seed=seed,
        **RULES,
        **more,
        custom_generate=gumbel.transformers.generate,
    )


def draw_all(model, text, length, seed, processed):
    """Draw each token of a text [L] after its prompt as S samples of its row."""
    head = heads.get_head(model)
    with torch.no_grad():
        hidden = head.decoder(input_ids=text[None]).last_hidden_state[0, length - 1 : -1]
        seeds = torch.full((len(hidden),), seed, dtype=torch.uint64)
        given = {
            "num_samples": S,
            "seed": seeds,
            "logprobs": None,
            "order": "hf",
            **RULES,
            "position": torch.arange(length - 1, len(text) - 1),
        }
        if processed:
            return gumbel.sample_logits(torch.nn.functional.linear(hidden, head.weight), **given)
        return gumbel.sample(hidden, head.weight, **given)


@pytest.mark.parametrize("processed", [False, True], ids=["fused", "from logits"])
def test_texts_are_the_samples_of_one_draw(model, processed):
    """The oracle draws S samples for each row, and takes sample s of text s."""
    prompts = torch.tensor([[1, 2, 3], [7, 8, 9]])
    more = {"bad_words_ids": [[VOCAB - 1, VOCAB - 1]]} if processed else {}
    texts = generate_sequences(model, prompts, S, [SEED, 4], **more)
    assert len(set(map(tuple, texts.tolist()))) == 2 * S
    for row, text in enumerate(texts):
        drawn = draw_all(model, text, 3, [SEED, 4][row // S], processed).tokens
        assert drawn[:, row % S].tolist() == text[3:].tolist()


@pytest.mark.parametrize("processed", [False, True], ids=["fused", "from logits"])
def test_a_step_draws_one_sample_a_row(model, processed, monkeypatch):
    shapes = []

    def watch(owner, name):
        own = getattr(owner, name)

        def watched(*given, **named):
            out = own(*given, **named)
            call = out if callable(out) else None
            shapes.append((call.output if call else out).tokens.shape)
            return out

        monkeypatch.setattr(owner, name, watched)

    watch(draws._prepared, "prepare_sample")
    watch(draws._sampling, "sample_logits")
    more = {"no_repeat_ngram_size": 4} if processed else {}
    generate_sequences(model, torch.tensor([[1, 2, 3]]), 64, 7, **more)
    assert set(shapes) == {(64, 1)}


@pytest.mark.parametrize("more", [{}, {"top_h": 0.9}], ids=["fused", "from logits"])
def test_texts_of_a_batch_are_the_samples_of_one_draw(model, more, monkeypatch):
    pytest.importorskip("psutil")
    name, samples = "sample_logits" if more else "sample", []
    own = getattr(sample_calls, name)

    def watched(*given, **named):
        out = own(*given, **named)
        samples.append(out.tokens.shape[1])
        return out

    monkeypatch.setattr(sample_calls, name, watched)
    prompts, rules = [[1, 2, 3], [7, 8, 9, 10]], {"do_sample": True, **RULES, **more}
    out = gumbel.transformers.generate_batch(
        model,
        prompts,
        make_config(tokens=TOKENS, num_return_sequences=S, **rules),
        make_batching(),
        seed=[SEED, 4],
    )
    found = [one.generated_tokens for one in out.values()]
    assert set(samples) == {1}
    for at, prompt in enumerate(prompts):
        wanted = generate_sequences(model, torch.tensor([prompt]), S, [SEED, 4][at], **more)
        assert found[at * S : at * S + S] == wanted[:, len(prompt) :].tolist()

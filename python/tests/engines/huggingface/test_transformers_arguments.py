# SPDX-License-Identifier: Apache-2.0
"""Arguments of generate() and generate_batch() that transformers drops; invalid prompts."""

import functools
import threading

import numpy as np
import pytest
from transformers_fixtures import (  # noqa: F401
    DRAFT,
    DRAWN,
    PROMPTS,
    Streamer,
    gumbel,
    model,
    generate_texts,
    tokenizer,
    torch,
    transformers,
)
from test_transformers_batches import make_batching, make_config
from transformers.generation.continuous_batching.model_runner import ModelRunner

from gumbel._transformers import batching as batching_module, decoding
from gumbel._transformers.stops import LateStopCheck

STOPS = ["the", "and"]


@pytest.mark.parametrize("by", [{}, {"prompt_lookup_num_tokens": 3}], ids=str)
@pytest.mark.parametrize("where", ["argument", "config of the call", "config of the model"])
def test_strings_stop_texts(model, tokenizer, where, by, monkeypatch):
    inputs = tokenizer(PROMPTS[1], return_tensors="pt")
    given = {"tokenizer": tokenizer, "tokens": 30, "do_sample": False, "eos_token_id": None, **by}
    if where == "argument":
        given["stop_strings"] = STOPS
    elif where == "config of the call":
        given["generation_config"] = transformers.GenerationConfig(stop_strings=STOPS)
    else:
        monkeypatch.setattr(model.generation_config, "stop_strings", STOPS)
    wanted = generate_texts(model, inputs, ours=False, **given)
    assert any(stop in tokenizer.decode(wanted[0, -2:]) for stop in STOPS)
    assert wanted.shape[1] < inputs["input_ids"].shape[1] + 30
    found = generate_texts(model, inputs, **given)
    assert torch.equal(found, wanted)


def test_strings_stop_the_texts_of_a_batch(model, tokenizer):
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    given = {
        "stop_strings": STOPS,
        "tokenizer": tokenizer,
        "seed": 5,
        "tokens": 20,
        "pad_token_id": 0,
        **DRAWN,
    }
    together = generate_texts(model, inputs, **given)
    for row, prompt in enumerate(PROMPTS):
        alone = generate_texts(model, tokenizer(prompt, return_tensors="pt"), **given)[0]
        end = len(tokenizer(prompt)["input_ids"])
        drawn = together[row, inputs["input_ids"].shape[1] :]
        assert torch.equal(drawn[: len(alone) - end], alone[end:])
        assert not drawn[len(alone) - end :].any()


def test_a_method_with_arguments_bound_takes_them_too(model, tokenizer):
    inputs = tokenizer(PROMPTS[1], return_tensors="pt").to(model.device)
    given = {"max_new_tokens": 30, "stop_strings": STOPS, "tokenizer": tokenizer, **DRAWN}
    bound = functools.partial(gumbel.transformers.generate, seed=5)
    found = model.generate(**inputs, custom_generate=bound, **given)
    whole = {"seed": 5, "custom_generate": gumbel.transformers.generate}
    assert torch.equal(found, model.generate(**inputs, **whole, **given))
    with pytest.raises(ValueError, match="tokenizer"):
        model.generate(**inputs, **whole, max_new_tokens=3, stop_strings=STOPS)


def test_streamers_are_streamed_to_and_end(model, tokenizer):
    inputs, streamers = tokenizer(PROMPTS[0], return_tensors="pt"), [Streamer(), Streamer()]
    plain = generate_texts(model, inputs, seed=1, **DRAWN)
    for name, streamer in zip(("streamer", "token_streamer"), streamers):
        assert torch.equal(
            generate_texts(model, inputs, seed=1, **{name: streamer}, **DRAWN), plain
        )
        assert streamer.tokens == plain[0].tolist() and streamer.ended
    iterator = transformers.TextIteratorStreamer(tokenizer, timeout=60)
    thread = threading.Thread(
        target=generate_texts,
        args=(model, inputs),
        kwargs={"seed": 1, "streamer": iterator, **DRAWN},
    )
    thread.start()
    assert "".join(iterator) == tokenizer.decode(plain[0])
    thread.join()


def test_an_assistant_model_drafts(model, tokenizer):
    draft = transformers.AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.float32).eval()
    draft.to(model.device)
    inputs = tokenizer(PROMPTS[1], return_tensors="pt")
    plain = generate_texts(model, inputs, seed=1, tokens=24, **DRAWN)
    before = model.forwards
    found = generate_texts(model, inputs, seed=1, tokens=24, assistant_model=draft, **DRAWN)
    assert torch.equal(found, plain) and model.forwards - before < 24


def test_methods_of_others_are_called_as_before(model, tokenizer):
    inputs, seen = tokenizer(PROMPTS[0], return_tensors="pt").to(model.device), {}

    def method(model, input_ids, **given):
        seen.update(given)
        return input_ids

    model.generate(
        **inputs, custom_generate=method, max_new_tokens=1, tokenizer=tokenizer, streamer=Streamer()
    )
    assert not {"tokenizer", "streamer", "draft_model"} & set(seen)


# ---------------------------------------------------------------------------- generate_batch()


@pytest.mark.parametrize(
    "prompts, error, text",
    [
        ("In the beginning", TypeError, "inputs: got a str; expected a list of token ids"),
        (["In the", "And the"], TypeError, r"inputs\[0\]: got a str; .*tokenizer\(prompts\)"),
        ([[1, 2], "And"], TypeError, r"inputs\[1\]: got a str"),
        (None, TypeError, "inputs: got None"),
        (7, TypeError, "inputs: got an int"),
        ([1, 2, 3], TypeError, r"inputs\[0\]: got an int"),
        ([[1], None], TypeError, r"inputs\[1\]: got None"),
        ([[[1, 2]]], TypeError, r"inputs\[0\]\[0\]: got a list"),
        ([[1, 2.0]], TypeError, r"inputs\[0\]\[1\]: got a float"),
        ([[1, True]], TypeError, r"inputs\[0\]\[1\]: got a bool"),
        ([["In"]], TypeError, r"inputs\[0\]\[0\]: got a str"),
        (torch.tensor([[1, 2]]), TypeError, r"inputs: got a Tensor; .*input_ids"),
        ([torch.tensor([1, 2])], TypeError, r"inputs\[0\]: got a Tensor"),
        (np.array([[1, 2]]), TypeError, "inputs: got a ndarray"),
        ({"input_ids": [[1]]}, TypeError, "inputs: got a dict"),
        (iter([[1]]), TypeError, "inputs: got a list_iterator"),
        ([[1], []], ValueError, r"inputs\[1\]: the prompt has no tokens"),
        ([[1, -1]], ValueError, r"inputs\[0\]\[1\]: token -1 is not in \[0, 8192\)"),
        ([[8192]], ValueError, r"inputs\[0\]\[0\]: token 8192 is not in"),
        ([[2**70]], ValueError, r"inputs\[0\]\[0\]: token 1180591620717411303424 is not in"),
    ],
    ids=repr,
)
def test_invalid_prompts_raise_before_generation(model, prompts, error, text):
    attention = model.config._attn_implementation
    with pytest.raises(error, match=text):
        gumbel.transformers.generate_batch(model, prompts)
    assert model.config._attn_implementation == attention


def test_tokenizer_outputs_are_accepted(model, tokenizer):
    pytest.importorskip("psutil")
    ids = tokenizer(PROMPTS).input_ids
    others = [tuple(map(np.int64, prompt)) for prompt in ids]
    found = [
        [
            one.generated_tokens
            for one in gumbel.transformers.generate_batch(
                model, prompts, make_config(**DRAWN), make_batching(), seed=1
            ).values()
        ]
        for prompts in (ids, others)
    ]
    assert found[0] == found[1] and all(found[0])


def test_stop_strings_of_a_batch_raise(model, tokenizer):
    pytest.importorskip("psutil")
    with pytest.raises(ValueError, match="stop_strings: continuous batching does not stop"):
        gumbel.transformers.generate_batch(model, [[1]], make_config(stop_strings=["a"]))


def test_a_step_that_fails_is_an_exception(model, tokenizer, monkeypatch):
    pytest.importorskip("psutil")
    prompts, attention = tokenizer(PROMPTS).input_ids, model.config._attn_implementation

    def fail(*given):
        raise ArithmeticError("no such product")

    for copies in (1, 3):
        config = make_config(num_return_sequences=copies, **DRAWN)
        with monkeypatch.context() as patched:
            patched.setattr(batching_module.BatchDraw, "__call__", fail)
            with pytest.raises(gumbel.transformers.BatchError, match="no such product") as raised:
                gumbel.transformers.generate_batch(model, prompts, config, make_batching())
        assert isinstance(raised.value, RuntimeError) and raised.value.outputs == {}
        assert model.config._attn_implementation == attention
        assert len(gumbel.transformers.generate_batch(model, prompts, config, make_batching())) == (
            4 * copies
        )


def test_a_thread_that_ends_is_an_exception(model, tokenizer, monkeypatch):
    pytest.importorskip("psutil")

    class Ended(BaseException):
        pass

    def end(*given):
        raise Ended("the thread")

    monkeypatch.setattr(threading, "excepthook", lambda *_: None)
    monkeypatch.setattr(ModelRunner, "compute_batch", end)
    with pytest.raises(gumbel.transformers.BatchError, match="ended with 0 of 4 texts"):
        gumbel.transformers.generate_batch(
            model, tokenizer(PROMPTS).input_ids, make_config(**DRAWN), make_batching(), warmup=False
        )


def test_missing_psutil_is_named(model, monkeypatch):
    if model.device.type != "cpu":
        pytest.skip("needed on a CPU")
    monkeypatch.setattr(batching_module, "is_psutil_available", lambda: False)
    with pytest.raises(ImportError, match="pip install psutil"):
        gumbel.transformers.generate_batch(model, [[1]])


@pytest.mark.parametrize("late", [False, True])
def test_logits_without_a_token_are_an_error(model, tokenizer, late, monkeypatch):
    """NaN weights, and rows that the processors empty; also with drafts and in a batch."""

    def empty(ids, scores):
        scores[-1] = float("-inf")
        return scores

    if late:
        monkeypatch.setattr(
            decoding,
            "make_stop_check",
            lambda ids, criteria, *given: LateStopCheck(given[-1], ids, criteria.max_length),
        )
    inputs = tokenizer(PROMPTS[:2], return_tensors="pt", padding=True)
    emptied = {"logits_processor": [empty], "do_sample": True, "seed": 1}
    with pytest.raises(RuntimeError, match="row 1: no token can be drawn"):
        generate_texts(model, inputs, **emptied)
    single = tokenizer(PROMPTS[0], return_tensors="pt")
    with pytest.raises(RuntimeError, match="row 0: no token can be drawn"):
        generate_texts(model, single, prompt_lookup_num_tokens=3, **emptied)
    kept = model.lm_head.weight.detach().clone()
    model.lm_head.weight.data[:] = float("nan")
    try:
        with pytest.raises(RuntimeError, match="row 0: no token can be drawn"):
            generate_texts(model, inputs, **DRAWN)
        if model.device.type == "cpu":
            with pytest.raises(gumbel.transformers.BatchError, match="no token can be drawn"):
                gumbel.transformers.generate_batch(
                    model, tokenizer(PROMPTS).input_ids, make_config(**DRAWN), make_batching()
                )
    finally:
        model.lm_head.weight.data[:] = kept

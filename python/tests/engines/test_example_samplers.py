# SPDX-License-Identifier: Apache-2.0
"""docs/examples: the samplers for onnxruntime-genai and exllamav3."""

import importlib
import subprocess
import sys
import types

import gumbel
import numpy as np
import pytest
from golden_texts import EXAMPLES, GREEDY, HOW, TARGET, TOKENS, assert_one_text


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))


# -------------------------------------------------------------------------- onnxruntime-genai


@pytest.fixture(scope="module")
def onnx(tmp_path_factory):
    """The bundled model as onnxruntime-genai's own builder writes it."""
    pytest.importorskip("onnxruntime_genai")
    for name in ("torch", "transformers", "onnx", "onnx_ir"):
        pytest.importorskip(name, reason=f"the builder of models needs {name}")
    folder = tmp_path_factory.mktemp("onnx")
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
    command += ["-i", TARGET, "-o", folder / "model", "-p", "fp32", "-e", "cpu"]
    done = subprocess.run([*command, "-c", folder / "cache"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "model"


def test_texts_by_onnxruntime_genai(onnx, examples):
    import onnxruntime_genai
    from ort_genai_sampler import generate

    model = onnxruntime_genai.Model(str(onnx))
    for golden in GREEDY:
        prompt, wanted = golden["prompt_ids"], golden["greedy_ids"]
        assert list(generate(model, prompt, len(wanted), temperature=0)) == wanted
    prompt = GREEDY[0]["prompt_ids"]
    generated = list(generate(model, prompt, 16, 5, **HOW))
    assert generated == list(generate(model, prompt, 16, 5, **HOW))
    assert generated != list(generate(model, prompt, 16, 6, **HOW))
    assert_one_text(lambda ids, seed: generate(model, ids, TOKENS, seed, **HOW))


def test_its_program(onnx):
    program = EXAMPLES / "ort_genai_sampler.py"
    command = [sys.executable, program, onnx, "In the beginning", "3"]
    runs = [subprocess.run(command, capture_output=True, text=True) for _ in range(2)]
    assert runs[0].returncode == 0, runs[0].stderr
    assert runs[0].stdout == runs[1].stdout and len(runs[0].stdout) > 20


# ---------------------------------------------------------------------------------- exllamav3


class Base:
    """A stand-in for exllamav3's Sampler, because the package requires CUDA: the attributes that
    its generator reads."""

    def __init__(self):
        self.reqs_past_ids = self.reqs_torch_seed = False


@pytest.fixture
def exllamav3(monkeypatch, examples):
    """The example's sampler, with a stand-in for the package."""
    for name in ("exllamav3", "exllamav3.generator", "exllamav3.generator.sampler"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["exllamav3.generator.sampler"].Sampler = Base
    monkeypatch.delitem(sys.modules, "exllamav3_sampler", raising=False)
    yield importlib.import_module("exllamav3_sampler").GumbelSampler
    del sys.modules["exllamav3_sampler"]


def test_the_sampler_for_exllamav3(exllamav3):
    torch = pytest.importorskip("torch", minversion="2.9")
    vocab, padded = 301, 320
    generated = np.random.default_rng(1).standard_normal((1, 1, padded)).astype(np.float16) * 3
    logits, ids = torch.from_numpy(generated), torch.zeros((1, 18), dtype=torch.int64)
    tokenizer = types.SimpleNamespace(actual_vocab_size=vocab)
    sampler = exllamav3(seed=4, **HOW)
    assert sampler.reqs_past_ids
    rows = logits[0, :, :vocab]

    def wanted(rows, **more):
        return gumbel.sample_logits(rows, seed=4, position=17, **HOW, **more).tokens.tolist()

    token = sampler.forward(logits, ids, 99, tokenizer)
    assert token.dtype == torch.int64 and token.tolist() == wanted(rows)
    assert sampler.forward(logits, ids).tolist() == wanted(logits[0])
    allowed = np.zeros(352, bool)
    allowed[10:300:3] = True
    bits = torch.from_numpy(np.packbits(allowed, bitorder="little").view(np.int32))[None]
    added = torch.where(torch.from_numpy(allowed[:vocab]), 0.0, -torch.inf).half()[None]
    masked = wanted(rows + added)
    assert masked != wanted(rows) and allowed[masked[0][0]]
    assert sampler.forward(logits, ids, 99, tokenizer, logit_mask=bits).tolist() == masked
    assert sampler.forward(logits, ids, 99, tokenizer, logit_mask=added).tolist() == masked
    narrow = sampler.forward(logits, ids, 99, tokenizer, logit_mask=bits[:, :2])
    assert allowed[narrow.item()] and narrow.item() < 64

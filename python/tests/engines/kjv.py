# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the transformers tests: the bundled models, and calls of generate()."""

import json
import os
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.9")
transformers = pytest.importorskip("transformers")
if not transformers.__version__.startswith(("5.16.", "5.17.")):
    pytest.skip("transformers 5.16 and 5.17 are known", allow_module_level=True)

import gumbel.transformers  # noqa: E402
from gumbel._transformers import heads  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
TARGET = ROOT / "tests" / "models" / "kjv-target"
DRAFT = ROOT / "tests" / "models" / "kjv-draft"
BUILT = [
    os.environ.get("GUMBEL_CLI"),
    ROOT / "build/dev/cli/gumbel",
    ROOT / "build/release/cli/gumbel",
]
COMMAND = next((path for path in BUILT if path and Path(path).is_file()), None)
PROMPTS = ["In the beginning", "And the LORD said unto Moses", "Blessed are", "The king of"]
DRAWN = {"do_sample": True, "temperature": 0.8, "top_k": 50, "top_p": 0.95}
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


@pytest.fixture(scope="module", params=DEVICES)
def model(request):
    """A model that counts the calls of its head and of its decoder."""
    loaded = transformers.AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    loaded.to(request.param).eval().head_calls = loaded.forwards = 0
    product = torch.nn.functional.linear

    @torch.compiler.disable  # or a compiled step would count when it is compiled, not when it runs
    def count(states, weight, bias=None):
        loaded.head_calls += weight is loaded.lm_head.weight
        return product(states, weight, bias)

    @torch.compiler.disable
    def count_forwards(*_):
        loaded.forwards += 1

    loaded.base_model.register_forward_hook(count_forwards)
    loaded.generate(
        torch.tensor([[5]], device=loaded.device),
        max_new_tokens=1,
        custom_generate=gumbel.transformers.generate,
    )  # tries the head, once
    torch.nn.functional.linear = count  # a hook on the head would have it called
    yield loaded
    torch.nn.functional.linear = product


@pytest.fixture(scope="module")
def tokenizer():
    loaded = transformers.AutoTokenizer.from_pretrained(TARGET, padding_side="left")
    loaded.pad_token = "<|endoftext|>"
    return loaded


def compiled_everywhere():
    """On a CPU, too, where transformers compiles nothing of itself; without a C++ compiler."""
    loaded = transformers.CompileConfig(backend="eager", mode=None)
    loaded._compile_all_devices = True
    return loaded


def texts(model, inputs, ours=True, **parameters):
    inputs = {name: value.to(model.device) for name, value in inputs.items()}
    if parameters.get("compile_config") == "everywhere":
        parameters["compile_config"] = compiled_everywhere()
    if ours:
        parameters["custom_generate"] = gumbel.transformers.generate
    model.head_calls = 0
    return model.generate(**inputs, max_new_tokens=parameters.pop("tokens", 16), **parameters)


def written(tokenizer, prompt, seed, sequences=1):
    """Texts of `gumbel generate` with DRAWN, 16 tokens each: ids of the prompt and of each text.

    Its products round in another order; its prompts begin with token 0.
    """
    if COMMAND is None:
        pytest.skip("the command is not built; GUMBEL_CLI names one")
    done = subprocess.run(
        [
            COMMAND,
            "generate",
            "--model",
            TARGET,
            "--prompt",
            prompt,
            "--seed",
            str(seed),
            "--samples",
            str(sequences),
            "--temperature",
            "0.8",
            "--top-k",
            "50",
            "--top-p",
            "0.95",
            "--max-tokens",
            "16",
            "--ignore-eos",
            "--json",
        ],
        check=True,
        capture_output=True,
    )
    ids = [0, *tokenizer(prompt)["input_ids"]]
    return ids, [sample["ids"] for sample in json.loads(done.stdout)["samples"]]


class Streamer:
    """A streamer that collects tokens."""

    def __init__(self):
        self.tokens, self.ended = [], False

    def put(self, tokens):
        self.tokens += tokens.flatten().tolist()

    def end(self):
        self.ended = True

# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of transformers: the bundled models, and calls of generate()."""

import pytest

torch = pytest.importorskip("torch", minversion="2.9")
transformers = pytest.importorskip("transformers")
if not transformers.__version__.startswith(("5.16.", "5.17.")):
    pytest.skip("only transformers 5.16 and 5.17 are supported", allow_module_level=True)

import gumbel.transformers  # noqa: E402
from gumbel._transformers import heads  # noqa: E402, F401
from gumbel_command import DRAFT, ROOT, TARGET, run_generate  # noqa: E402, F401

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

    @torch.compiler.disable  # otherwise a compiled step would count at its compilation
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
    )  # the package tests the head at the first call
    torch.nn.functional.linear = count  # with a hook on the head, the package would call the head
    yield loaded
    torch.nn.functional.linear = product


@pytest.fixture(scope="module")
def tokenizer():
    loaded = transformers.AutoTokenizer.from_pretrained(TARGET, padding_side="left")
    loaded.pad_token = "<|endoftext|>"
    return loaded


def compiled_everywhere():
    """A CompileConfig for every device, also CPUs, and without a C++ compiler."""
    loaded = transformers.CompileConfig(backend="eager", mode=None)
    loaded._compile_all_devices = True
    return loaded


def generate_texts(model, inputs, ours=True, **parameters):
    """Texts of generate(): by the package or, unless `ours`, by transformers alone."""
    inputs = {name: value.to(model.device) for name, value in inputs.items()}
    if parameters.get("compile_config") == "everywhere":
        parameters["compile_config"] = compiled_everywhere()
    if ours:
        parameters["custom_generate"] = gumbel.transformers.generate
    model.head_calls = 0
    return model.generate(**inputs, max_new_tokens=parameters.pop("tokens", 16), **parameters)


def command_texts(tokenizer, prompt, seed, sequences=1):
    """Texts of `gumbel generate` with DRAWN, 16 tokens each: ids of the prompt and of each text.

    The command adds token 0 before a prompt, and rounds products in another order.
    """
    found = run_generate(prompt, seed, 16, 0.8, 50, 0.95, "--samples", str(sequences))
    ids = [0, *tokenizer(prompt)["input_ids"]]
    return ids, [sample["ids"] for sample in found["samples"]]


class Streamer:
    """A streamer that collects tokens."""

    def __init__(self):
        self.tokens, self.ended = [], False

    def put(self, tokens):
        self.tokens += tokens.flatten().tolist()

    def end(self):
        self.ended = True

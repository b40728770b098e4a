# SPDX-License-Identifier: Apache-2.0
"""Problems for tests of torch.ops.gumbel, and comparisons with the package; skips without torch."""

import pytest

torch = pytest.importorskip("torch", minversion="2.9")

import gumbel.torch  # noqa: E402, F401

ops = torch.ops.gumbel
B, V, D = 4, 515, 32
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
NAMES = "tokens status logprobs lse ranks kept top_ids top_logprobs best_ids best_scores".split()


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def make_problem(device, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(B, D, generator=generator).to(dtype)
    weight = (torch.randn(V, D, generator=generator) * 3 / D**0.5).to(dtype)
    return hidden.to(device), weight.to(device)


def row_parameters(device):
    return {
        "temperature": torch.tensor([0.0, 0.7, 1.0, 1.3], device=device),
        "seed": torch.arange(B, device=device) * 7,
        "position": torch.tensor([5], device=device).repeat(B),
        "first_sample": torch.tensor([0, 3, 1, 2**31 - 1], dtype=torch.int32, device=device),
        "top_k": torch.tensor([0, 40, 3, 0], dtype=torch.int32, device=device),
        "top_p": torch.tensor([1.0, 0.9, 1.0, 0.8], device=device),
    }


def everything(device):
    words = (V + 31) // 32
    mask = torch.full((B, words), -1, dtype=torch.int32, device=device)
    mask[:, 3] = 0x0F0F0F0F
    return {
        "mask": mask,
        "bias_offsets": torch.tensor([0, 1, 1, 3, 3], device=device),
        "bias_ids": torch.tensor([7, 8, 9], dtype=torch.int32, device=device),
        "bias_values": torch.tensor([1.5, -2.0, 3.0], device=device),
        "history_prompt": torch.zeros((B, words), dtype=torch.int32, device=device),
        "history_output": torch.zeros((B, words), dtype=torch.int32, device=device),
        "history_counts": torch.zeros((B, V), dtype=torch.int16, device=device),
        "presence_penalty": torch.tensor(0.5, device=device),
        "ranks": True,
        "kept": True,
        "top_logprobs": 4,
        "num_best": 2,
    }


def as_package(arguments):
    """The arguments of the package's own call."""
    rest = {name: value for name, value in arguments.items()}
    rest.pop("bias_offsets", None)
    if rest.pop("bias_ids", None) is not None:
        rest.pop("bias_values")
        rest["logit_bias"] = [{7: 1.5}, {}, {8: -2.0, 9: 3.0}, {}]
    parts = [rest.pop(f"history_{part}", None) for part in ("prompt", "output", "counts")]
    if parts[0] is not None:
        rest["output_tokens"] = [[]] * B
    return rest


def assert_same_outputs(found, out):
    wanted = [getattr(out, name) for name in NAMES if getattr(out, name) is not None]
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        assert a.dtype == b.dtype and a.shape == b.shape and a.device == b.device
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def make_drafts(device):
    hidden, weight = make_problem(device)
    rows = hidden.repeat_interleave(3, 0) * torch.linspace(0.5, 2, 3 * B, device=device)[:, None]
    tokens = torch.randint(0, V, (B, 3), dtype=torch.int32, device=device)
    return rows.to(torch.bfloat16), weight, tokens

# SPDX-License-Identifier: Apache-2.0
"""The contestants of bench_peers.py: ways to draw one token a row with torch tensors on a GPU.

A contestant prepares a call for given inputs. The call queues one step on the current stream,
which may be capturing a graph, and returns the tokens, [B] or [B, 1]. The temperature is 1.
libgumbel and FlashSampling read it from device memory; the others do not apply one.
"""

import ctypes
import functools
from dataclasses import dataclass
from typing import Callable

import torch
from gumbel import _abi

DTYPES = {torch.float32: _abi.FLOAT32, torch.bfloat16: _abi.BFLOAT16}


@dataclass(frozen=True)
class Contestant:
    """`prepare` takes hidden states and weight, or logits."""

    column: str  # its head in the table
    about: str
    prepare: Callable[..., Callable[[], torch.Tensor]]
    exact: bool = True  # samples exactly from the softmax, which is checked


# ------------------------------------------------------------------------------- libgumbel ----


class Call:
    """One call of the library on `source`, with its own outputs; calling the object queues it."""

    def __init__(self, library, function, source, batch, wanted):
        self.device, self.function, self.source = library.device, function, source
        dtypes = {"tokens": torch.int32, **dict.fromkeys(wanted, torch.float32)}
        self.outputs = {
            name: torch.full((batch,), -7, dtype=dtype, device="cuda")
            for name, dtype in dtypes.items()
        }
        self.output = _abi.Output(**{name: x.data_ptr() for name, x in self.outputs.items()})
        self.rows = library.rows(batch)
        rows = {name: _abi.Rows(x.data_ptr(), 0) for name, x in self.rows.items()}
        self.sampling = _abi.Sampling(**rows)
        head, logits = (source, None) if isinstance(source, _abi.Head) else (None, source)
        size, error = ctypes.c_size_t(), _abi.Error()
        status = _abi.lib.gumbel_workspace_size(
            self.device, head, logits, self.sampling, self.output, size, error
        )
        _abi.check_status(status, error)
        self.workspace = torch.empty(size.value, dtype=torch.uint8, device="cuda")

    def __call__(self):
        error = _abi.Error()
        status = self.function(
            self.device,
            torch.cuda.current_stream().cuda_stream,
            self.source,
            self.sampling,
            self.output,
            self.workspace.data_ptr(),
            self.workspace.numel(),
            error,
        )
        _abi.check_status(status, error)
        return self.outputs["tokens"]


class Library:
    """libgumbel on the first GPU. Calls of equal sizes share row parameters and workspace, as in an
    engine."""

    def __init__(self):
        self.device, error = ctypes.c_void_p(), _abi.Error()
        options = _abi.DeviceOptions(device=b"cuda:0")
        _abi.check_status(_abi.lib.gumbel_open(options, self.device, error), error)
        self.rows = functools.cache(self.rows)

    def rows(self, batch):
        """Row parameters: a temperature, a seed and a position for each row."""
        return {
            "temperature": torch.ones(batch, device="cuda"),
            "seed": torch.arange(1, batch + 1, dtype=torch.int64, device="cuda"),
            "position": torch.full((batch,), 17, dtype=torch.int64, device="cuda"),
        }

    def fused(self, hidden, weight, wanted=()):
        """Hidden states [B, D] and weight [V, D]; `wanted` of "logprobs", "scores"."""
        head = _abi.Head(hidden=tensor(hidden), weight=tensor(weight))
        return Call(self, _abi.lib.gumbel_sample, head, hidden.shape[0], wanted)

    def from_logits(self, logits, wanted=()):
        """Logits [B, V]; else as fused()."""
        source, batch = _abi.Logits(logits=tensor(logits)), logits.shape[0]
        return Call(self, _abi.lib.gumbel_sample_logits, source, batch, wanted)


def tensor(x):
    """A torch matrix as the C ABI names it; the caller keeps it alive."""
    return _abi.Tensor(x.data_ptr(), DTYPES[x.dtype], x.shape[0], x.shape[1], x.stride(0))


# ------------------------------------------------------------------------- draws from logits ----


@dataclass(frozen=True)
class Draw:
    """Logits [B, V] in, tokens out."""

    column: str
    about: str
    function: Callable[[torch.Tensor], torch.Tensor]
    compiled: bool = False
    exact: bool = True


def softmax_multinomial(logits):
    return torch.multinomial(torch.softmax(logits, -1, dtype=torch.float32), 1)


def gumbel_argmax(logits):
    """Gumbel noise is minus the logarithm of a standard exponential."""
    exponential = torch.empty_like(logits, dtype=torch.float32).exponential_()
    return torch.argmax(logits - exponential.log_(), -1)


def torch_draws():
    about = "softmax, torch.multinomial"
    race = "argmax of logits + Gumbel noise"
    return {
        "softmax_multinomial": Draw("multin", f"{about}, eager", softmax_multinomial),
        "softmax_multinomial_compiled": Draw(
            "multin-c", f"{about}, torch.compile", softmax_multinomial, compiled=True
        ),
        "gumbel_argmax": Draw("noise", f"{race}, eager", gumbel_argmax),
        "gumbel_argmax_compiled": Draw(
            "noise-c", f"{race}, torch.compile", gumbel_argmax, compiled=True
        ),
    }


def flashinfer_draws():
    """Seed and offset in device memory, as FlashInfer requires of calls in a graph."""
    from flashinfer import sampling

    state = {
        name: torch.full((1,), 7, dtype=torch.int64, device="cuda") for name in ("seed", "offset")
    }
    sampling.get_sampling_module()  # builds the module, or raises an error, before the measurement
    return {
        "flashinfer": Draw(
            "flashinf",
            "FlashInfer sampling_from_logits",
            functools.partial(sampling.sampling_from_logits, **state),
        ),
        "flashinfer_top_k_top_p": Draw(
            "flashi-kp",
            "FlashInfer top_k_top_p_sampling_from_logits, k = 50, p = 0.95; another distribution",
            functools.partial(
                sampling.top_k_top_p_sampling_from_logits, top_k=50, top_p=0.95, **state
            ),
            exact=False,
        ),
    }


def flashsampling():
    """FlashSampling's Triton kernel: prepare(hidden, weight)."""
    from fused_mm_sampling.core import fused_mm_sample_triton

    temperature = torch.ones((), device="cuda")
    return lambda hidden, weight: functools.partial(
        fused_mm_sample_triton, weight, hidden, num_samples=1, temperature=temperature, seed=7
    )


# ------------------------------------------------------------------------------- contestants ----


def gemm(hidden, weight):
    return torch.mm(hidden, weight.t())


def prepare(draw, product=None):
    """A `prepare` function that runs `draw` on logits, or on the logits of `product`."""

    def step(*inputs):
        return draw.function(product(*inputs) if product else inputs[0])

    chosen = torch.compile(step, dynamic=False) if draw.compiled else step
    return lambda *inputs: functools.partial(chosen, *inputs)


class Contestants:
    """The contestants that can be imported; `skipped` has the others, with the reason."""

    def __init__(self):
        self.library = Library()
        self.skipped = {}
        self.draws = torch_draws()
        self.draws.update(self._imported("flashinfer", flashinfer_draws) or {})
        self.flashsampling = self._imported("flashsampling", flashsampling)

    def _imported(self, name, make):
        try:
            return make()
        except Exception as error:  # a failing package is skipped; the others continue
            self.skipped[name] = reason(error)
            return None

    def _ours(self, column, about, prepared) -> dict[str, Contestant]:
        logprobs = functools.partial(prepared, wanted=("logprobs",))
        return {
            column: Contestant(column, about, prepared),
            f"{column}_with_logprobs": Contestant("+logprob", f"{about}, logprobs", logprobs),
        }

    def from_hidden_states(self) -> dict[str, Contestant]:
        alone = Contestant(
            "gemm",
            "torch.mm to bfloat16 logits (cuBLAS), nothing drawn",
            lambda *inputs: functools.partial(gemm, *inputs),
            exact=False,
        )
        found = {"gemm": alone}
        for name, draw in self.draws.items():
            step = prepare(draw, gemm)
            found[f"gemm_{name}"] = Contestant(draw.column, f"gemm, {draw.about}", step, draw.exact)
        if self.flashsampling:
            about = "FlashSampling fused_mm_sample_triton"
            found["flashsampling"] = Contestant("flashsamp", about, self.flashsampling)
        return {**found, **self._ours("fused", "libgumbel, fused", self.library.fused)}

    def from_logits(self) -> dict[str, Contestant]:
        about = "torch.argmax of the logits, nothing drawn"
        argmax = Draw("max", about, lambda logits: torch.argmax(logits, -1), exact=False)
        found = {
            name: Contestant(draw.column, draw.about, prepare(draw), draw.exact)
            for name, draw in {"argmax": argmax, **self.draws}.items()
        }
        return {**found, **self._ours("logits", "libgumbel", self.library.from_logits)}


def reason(error):
    """One line of an error."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]

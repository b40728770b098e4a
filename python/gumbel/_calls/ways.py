# SPDX-License-Identifier: Apache-2.0
"""What public functions share: one call of the library, its workspace and its results."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .. import _abi
from .._inputs.arguments import INT32_MAX, matrix, vector
from .._inputs.arrays import NumpyArrays, Workspace, address, arrays_of, taken, workspace
from .._inputs.common import DISTRIBUTIONS, Request, read_common
from .._inputs.numbers import integer, number
from .outputs import SampleOutput
from .screens import Screen

INT64_MAX = 2**63 - 1

# A head or logits, and None for the other.
WayIn = Tuple[Optional[_abi.Head], Optional[_abi.Logits]]


class Callee(NamedTuple):
    """Whose calls are made: those of a group of ranks, in place of the device's own."""

    handle: Any
    workspace_size: Any
    verify_workspace_size: Any


def callee_of(arrays: NumpyArrays, callee: Optional[Callee]) -> Callee:
    """Who is called: `callee`, or the device of these arrays."""
    if callee is not None:
        return callee
    lib = _abi.lib
    return Callee(arrays.device, lib.gumbel_workspace_size, lib.gumbel_verify_workspace_size)


def open_arrays(inputs: dict[str, Any], common: Any) -> tuple[NumpyArrays, dict[str, Any]]:
    """The arrays of a call, on the device that it asks for; the other parameters."""
    rest = dict(common)
    if rest.get("mask") is not None:
        rest["mask"] = inputs["mask"] = taken("mask", rest["mask"])
    isa, threads = rest.pop("isa", None), rest.pop("threads", None)
    return arrays_of(inputs, isa, threads), rest


def of_logits(
    scale: float, softcap: float, vocab_size: Optional[int], first_token: int = 0
) -> dict[str, Any]:
    """The fields that both ways in share."""
    factor = number("scale", scale)
    if factor == 0:  # which the library reads as its default, 1
        raise ValueError("scale: 0 would make every token equally likely; expected another number")
    return {
        "scale": factor,
        "soft_cap": number("softcap", softcap),
        "vocab_size": 0 if vocab_size is None else integer("vocab_size", vocab_size, 1, INT64_MAX),
        "first_token": integer("first_token", first_token, 0, INT32_MAX),
    }


def _request(
    arrays: NumpyArrays,
    rows: int,
    batch: Optional[int],
    shared: dict[str, Any],
    vocab: int,
    shard: bool,
    rest: dict[str, Any],
) -> Request:
    end = shared.get("first_token", 0) + vocab
    whole = shared.get("vocab_size") or None
    if not shard:
        whole = min(whole or end, end)
    if batch is None:
        return read_common(arrays, rows, end, None, whole, **rest)
    return read_common(arrays, batch, end, rows, whole, **rest)


def from_head(
    hidden: Any,
    weight: Any,
    bias: Any,
    shared: dict[str, Any],
    common: Any,
    name: str = "weight",
    batch: Optional[int] = None,
    shard: bool = False,
) -> tuple[WayIn, Request]:
    """What a call takes from hidden states and an LM head.

    `shared` is of_logits(), `name` the argument that the weights came as, `batch` how many rows
    have parameters if not as many as there are hidden states, `shard` whether other calls have
    more of the vocabulary.
    """
    screen = weight if isinstance(weight, Screen) else None
    if screen is not None:
        screen.check_weight()
        weight = screen.weight
    hidden, weight, bias = taken("hidden", hidden), taken(name, weight), taken("bias", bias)
    arrays, rest = open_arrays({"hidden": hidden, name: weight, "bias": bias}, common)
    head = _abi.Head(hidden=matrix("hidden", hidden), weight=matrix(name, weight), **shared)
    if bias is not None:
        head.bias = vector("bias", bias)
    if screen is not None:
        head.screen = screen.memory()
    request = _request(arrays, len(hidden), batch, shared, len(weight), shard, rest)
    request.held += [screen]
    request.held += [hidden, weight, bias, rest.get("mask")]
    return (head, None), request


def from_logits(
    logits: Any,
    shared: dict[str, Any],
    common: Any,
    name: str = "logits",
    batch: Optional[int] = None,
    shard: bool = False,
) -> tuple[WayIn, Request]:
    """As from_head(), from logits; `name` is the argument that they came as."""
    logits = taken(name, logits)
    arrays, rest = open_arrays({name: logits}, common)
    head = _abi.Logits(logits=matrix(name, logits), **shared)
    rows, vocab = logits.shape
    request = _request(arrays, rows, batch, shared, vocab, shard, rest)
    request.held += [logits, rest.get("mask")]
    return (None, head), request


def scratch_of(
    way_in: WayIn,
    request: Request,
    output: Optional[_abi.Output],
    kept: bool = True,
    callee: Optional[Callee] = None,
) -> Workspace:
    """The workspace of a call, which others of this thread may have had, if `kept`."""
    size, error = ctypes.c_size_t(), _abi.Error()
    called = callee_of(request.arrays, callee)
    status = called.workspace_size(called.handle, *way_in, request.sampling, output, size, error)
    _abi.check(status, error)
    return workspace(request.arrays, size.value, kept)


def output_of(request: Request) -> tuple[SampleOutput, _abi.Output]:
    """The arrays of a request's results, and the struct that points to them."""
    arrays, batch = request.arrays, request.batch
    draws, tops = (batch, request.sampling.num_samples), (batch, request.top_logprobs)
    bests = (batch, request.num_best)

    output = _abi.Output(logprobs_of=DISTRIBUTIONS[request.logprobs])
    made: dict[str, Any] = dict(logprobs=None, lse=None)
    made["seed"] = None if request.sampling.given.data else request.seed

    def make(name: str, shape: tuple[int, ...], dtype: type) -> None:
        made[name] = arrays.empty(shape, dtype)
        setattr(output, name, address(made[name]))

    make("tokens", draws, np.int32)
    make("status", (batch,), np.int32)
    if request.logprobs:
        make("logprobs", draws, np.float32)
        make("lse", (batch,), np.float32)
    if request.ranks:
        make("ranks", draws, np.int32)
    if request.kept:
        make("kept", (batch,), np.int32)
    if request.top_logprobs:
        output.num_top = request.top_logprobs
        make("top_ids", tops, np.int32)
        make("top_logprobs", tops, np.float32)
    if request.num_best:
        output.num_best = request.num_best
        make("best_ids", bests, np.int32)
        make("best_scores", bests, np.float32)
    return SampleOutput(**made), output


def draw(
    call: Any, way_in: WayIn, request: Request, callee: Optional[Callee] = None
) -> SampleOutput:
    """Draw by one call of the library."""
    request.draw_seed()
    result, output = output_of(request)
    call_library(call, way_in, request, [output], output, callee)
    return result


def call_library(
    call: Any,
    way_in: WayIn,
    request: Request,
    results: Sequence[Any],
    output: Optional[_abi.Output] = None,
    callee: Optional[Callee] = None,
) -> None:
    """Call the library; `results` is where it shall write, `output` what its workspace goes by."""
    arrays = request.arrays
    scratch = scratch_of(way_in, request, output, callee=callee)
    head, error = way_in[0] or way_in[1], _abi.Error()
    where = (callee_of(arrays, callee).handle, arrays.stream, head, request.sampling)
    status = call(*where, *results, scratch.address, scratch.size, error)
    _abi.check(status, error)

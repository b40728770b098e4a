# SPDX-License-Identifier: Apache-2.0
"""Shared by the public functions: reading inputs, workspaces, outputs, and calling the library."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .. import _abi
from .._inputs.arguments import INT32_MAX, read_matrix, read_vector
from .._inputs.arrays import NumpyArrays, address_of, arrays_of, import_array
from .._inputs.common import DISTRIBUTIONS, read_common
from .._inputs.numbers import read_integer, read_number
from .._inputs.request import Request
from .._inputs.workspaces import Workspace, get_workspace
from .outputs import SampleOutput
from .screens import Screen

INT64_MAX = 2**63 - 1

# The source of the logits: a head or logits, and None for the other.
LogitsSource = Tuple[Optional[_abi.Head], Optional[_abi.Logits]]


class Callee(NamedTuple):
    """The handle of a device or of a group of ranks, and the functions that size its workspaces."""

    handle: Any
    workspace_size: Any
    verify_workspace_size: Any


def resolve_callee(arrays: NumpyArrays, callee: Optional[Callee]) -> Callee:
    """`callee`, or the device of these arrays if it is None."""
    if callee is not None:
        return callee
    lib = _abi.lib
    return Callee(arrays.device, lib.gumbel_workspace_size, lib.gumbel_verify_workspace_size)


def open_arrays(inputs: dict[str, Any], common: Any) -> tuple[NumpyArrays, dict[str, Any]]:
    """The arrays of a call on the inputs' device, and `common` without isa and threads."""
    rest = dict(common)
    if rest.get("mask") is not None:
        rest["mask"] = inputs["mask"] = import_array("mask", rest["mask"])
    isa, threads = rest.pop("isa", None), rest.pop("threads", None)
    return arrays_of(inputs, isa, threads), rest


def read_logit_options(
    scale: float, softcap: float, vocab_size: Optional[int], first_token: int = 0
) -> dict[str, Any]:
    """The fields that the structs of heads and logits share."""
    factor = read_number("scale", scale)
    if factor == 0:  # the library would read 0 as its default, 1
        raise ValueError("scale: 0 would make every token equally likely; expected another number")
    return {
        "scale": factor,
        "soft_cap": read_number("softcap", softcap),
        "vocab_size": 0
        if vocab_size is None
        else read_integer("vocab_size", vocab_size, 1, INT64_MAX),
        "first_token": read_integer("first_token", first_token, 0, INT32_MAX),
    }


def _read_request(
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


def read_head(
    hidden: Any,
    weight: Any,
    bias: Any,
    shared: dict[str, Any],
    common: Any,
    name: str = "weight",
    batch: Optional[int] = None,
    shard: bool = False,
) -> tuple[LogitsSource, Request]:
    """The source and the request of a call on hidden states and an LM head.

    shared       of read_logit_options().
    name         the name of the weight argument in errors.
    batch        number of rows of row parameters. None: the number of hidden states.
    shard        whether `weight` covers only a part of the vocabulary.
    """
    screen = weight if isinstance(weight, Screen) else None
    if screen is not None:
        screen.check_weight()
        weight = screen.weight
    hidden, weight, bias = (
        import_array("hidden", hidden),
        import_array(name, weight),
        import_array("bias", bias),
    )
    arrays, rest = open_arrays({"hidden": hidden, name: weight, "bias": bias}, common)
    head = _abi.Head(
        hidden=read_matrix("hidden", hidden), weight=read_matrix(name, weight), **shared
    )
    if bias is not None:
        head.bias = read_vector("bias", bias)
    if screen is not None:
        head.screen = screen.memory()
    request = _read_request(arrays, len(hidden), batch, shared, len(weight), shard, rest)
    request.held += [screen]
    request.held += [hidden, weight, bias, rest.get("mask")]
    return (head, None), request


def read_logits(
    logits: Any,
    shared: dict[str, Any],
    common: Any,
    name: str = "logits",
    batch: Optional[int] = None,
    shard: bool = False,
    out: Optional[Any] = None,
) -> tuple[LogitsSource, Request]:
    """read_head() for logits; `name` is the name of their argument in errors.

    out          an array that the call writes, which must be of the kind and device of the logits.
    """
    logits = import_array(name, logits)
    arrays, rest = open_arrays({name: logits, "out": out}, common)
    head = _abi.Logits(logits=read_matrix(name, logits), **shared)
    rows, vocab = logits.shape
    request = _read_request(arrays, rows, batch, shared, vocab, shard, rest)
    request.held += [logits, rest.get("mask")]
    return (None, head), request


def make_workspace(
    source: LogitsSource,
    request: Request,
    output: Optional[_abi.Output],
    own: bool = False,
    callee: Optional[Callee] = None,
) -> Workspace:
    """The workspace of a call; `own` as in get_workspace()."""
    size, error = ctypes.c_size_t(), _abi.Error()
    called = resolve_callee(request.arrays, callee)
    status = called.workspace_size(called.handle, *source, request.sampling, output, size, error)
    _abi.check_status(status, error)
    return get_workspace(request.arrays, size.value, own)


def make_output(request: Request) -> tuple[SampleOutput, _abi.Output]:
    """The arrays of a request's results, and the C struct that points to them."""
    arrays, batch = request.arrays, request.batch
    draws, tops = (batch, request.sampling.num_samples), (batch, request.top_logprobs)
    bests, listed = (batch, request.num_best), (batch, request.kept_ids)

    output = _abi.Output(logprobs_of=DISTRIBUTIONS[request.logprobs])
    results: dict[str, Any] = dict(logprobs=None, lse=None)
    results["seed"] = None if request.sampling.given.data else request.seed

    def add_array(name: str, shape: tuple[int, ...], dtype: type) -> None:
        results[name] = arrays.empty(shape, dtype)
        setattr(output, name, address_of(results[name]))

    add_array("tokens", draws, np.int32)
    add_array("status", (batch,), np.int32)
    if request.logprobs:
        add_array("logprobs", draws, np.float32)
        add_array("lse", (batch,), np.float32)
    if request.ranks:
        add_array("ranks", draws, np.int32)
    if request.kept or request.kept_ids:
        add_array("kept", (batch,), np.int32)
    if request.kept_ids:
        output.kept_capacity = request.kept_ids
        add_array("kept_ids", listed, np.int32)
        if request.logprobs:
            add_array("kept_logprobs", listed, np.float32)
    if request.entropy:
        add_array("entropy", (batch,), np.float32)
    if request.top_logprobs:
        output.num_top = request.top_logprobs
        add_array("top_ids", tops, np.int32)
        add_array("top_logprobs", tops, np.float32)
    if request.num_best:
        output.num_best = request.num_best
        add_array("best_ids", bests, np.int32)
        add_array("best_scores", bests, np.float32)
    return SampleOutput(**results), output


def draw_request(
    call: Any, source: LogitsSource, request: Request, callee: Optional[Callee] = None
) -> SampleOutput:
    """Draw a request's tokens by one call of the library."""
    request.draw_seed()
    result, output = make_output(request)
    call_library(call, source, request, [output], output, callee)
    return result


def call_library(
    call: Any,
    source: LogitsSource,
    request: Request,
    results: Sequence[Any],
    output: Optional[_abi.Output] = None,
    callee: Optional[Callee] = None,
) -> None:
    """Call the library with a workspace for `output`; `results` are the call's output arguments."""
    arrays = request.arrays
    scratch = make_workspace(source, request, output, callee=callee)
    head, error = source[0] or source[1], _abi.Error()
    where = (resolve_callee(arrays, callee).handle, arrays.stream, head, request.sampling)
    status = call(*where, *results, scratch.address, scratch.size, error)
    _abi.check_status(status, error)

# SPDX-License-Identifier: Apache-2.0
"""Rows without a token to draw: their requests end with an error.

A row has no token if one of its logits is NaN or +inf, or if all are -inf, as when a grammar, a
bias and banned words exclude all tokens. The draw reports a status for each row.
The worker copies the statuses to the host, beside the tokens, and names the failed requests in the
step's ModelRunnerOutput. The scheduler, which may be in another process, finishes these with
FINISHED_ERROR before it reads the step's tokens: `finish_reason` is "error", `stop_reason` names
the status, and a server's client gets an error. A line of the log has the counts.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Optional

import torch
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus

from .._statuses import StatusCount, describe_status
from .counts import logger

_FAILED = "_gumbel_failed"  # of a ModelRunnerOutput: the status of each failed request
_STATUSES = "_gumbel_statuses"  # of an AsyncModelRunnerOutput: the statuses of its step
_stock_update = Scheduler.update_from_output
_step = threading.local()  # .statuses: those of this thread's latest draw

counted = StatusCount(logger, "their requests end with finish_reason error")


class _PinnedBuffer:
    """Pinned memory for int32 [capacity], and the event after which a GPU has written it."""

    def __init__(self, device: torch.device, capacity: int) -> None:
        self.device = device
        self.memory = torch.empty(capacity, dtype=torch.int32, pin_memory=True)
        self.event = torch.cuda.Event()


_free_buffers: list[_PinnedBuffer] = []  # for later steps: a new one takes some 50 us of the host


def _acquire_buffer(rows: torch.Tensor) -> _PinnedBuffer:
    """A buffer for these rows that no other step uses."""
    while _free_buffers:
        found = _free_buffers.pop()
        if found.device == rows.device and len(found.memory) >= len(rows):
            return found
    return _PinnedBuffer(rows.device, 1 << (len(rows) - 1).bit_length())


class _Statuses:
    """Statuses of rows, being copied to the host."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._buffer: Optional[_PinnedBuffer] = None
        self._count = len(rows)
        if rows.is_cpu:
            self._found = rows.tolist()  # the next draw writes the same array
            return
        self._buffer = _acquire_buffer(rows)
        self._buffer.memory[: self._count].copy_(rows, non_blocking=True)
        self._buffer.event.record()

    def read(self) -> list[int]:
        """The statuses; waits for the copy."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            buffer.event.synchronize()
            self._found = buffer.memory[: self._count].tolist()
            _free_buffers.append(buffer)
        return self._found


def note(rows: torch.Tensor) -> None:
    """Store the statuses [B] of a draw for report()."""
    clean = rows.is_cpu and not rows.any()
    _step.statuses = None if clean else _Statuses(rows)


def report(result: Any) -> Any:
    """A step's output, or its future output, with the step's failed requests added."""
    statuses, _step.statuses = getattr(_step, "statuses", None), None
    if statuses is None:
        return result
    if isinstance(result, AsyncModelRunnerOutput):
        _mark_outputs_of(type(result))
        setattr(result, _STATUSES, statuses)
    elif isinstance(result, ModelRunnerOutput):
        _mark(result, statuses)
    return result


@functools.cache
def _mark_outputs_of(kind: Any) -> None:
    """Have get_output() of a class of future outputs add the failed requests."""
    stock = kind.get_output

    @functools.wraps(stock)
    def get_output(self: Any) -> Any:
        output, statuses = stock(self), getattr(self, _STATUSES, None)
        return output if statuses is None else _mark(output, statuses)

    kind.get_output = get_output


def _mark(output: ModelRunnerOutput, statuses: _Statuses) -> ModelRunnerOutput:
    """Add the failed requests to a step's output, except those whose tokens vLLM discards."""
    rows = statuses.read()
    if not any(rows) or not output.sampled_token_ids:
        return output
    if len(rows) != len(output.req_id_to_index):  # each rank draws a subset of the requests
        counted.add(rows)
        return output
    failed = {
        request: rows[row]
        for request, row in output.req_id_to_index.items()
        if rows[row] and output.sampled_token_ids[row]
    }
    counted.add(failed.values())
    if failed:
        setattr(output, _FAILED, failed)
    return output


@functools.wraps(_stock_update)
def _update_from_output(
    self: Any, scheduler_output: Any, model_runner_output: Any
) -> dict[int, EngineCoreOutputs]:
    """Finish failed requests, then run the scheduler's update."""
    failed = getattr(model_runner_output, _FAILED, None) or {}
    known = (self.requests.get(name) for name in failed)
    ended = [request for request in known if request is not None and not request.is_finished()]
    if ended:
        names = [request.request_id for request in ended]
        self.finish_requests(names, RequestStatus.FINISHED_ERROR)
    outputs: dict[int, EngineCoreOutputs]
    outputs = _stock_update(self, scheduler_output, model_runner_output)
    for request in ended:
        of_client = outputs.setdefault(request.client_index, EngineCoreOutputs())
        of_client.outputs.append(
            EngineCoreOutput(
                request_id=request.request_id,
                new_token_ids=[],
                finish_reason=request.get_finished_reason(),
                stop_reason=f"gumbel: {describe_status(failed[request.request_id])}",
                events=request.take_events(),
                trace_headers=request.trace_headers,
            )
        )
    return outputs


HOOKS = ((Scheduler, "update_from_output", _update_from_output),)

# SPDX-License-Identifier: Apache-2.0
"""Requests whose rows have no token to draw end with an error that names the reason, and do not
change the texts of other requests in the batch."""

import types
import weakref

import pytest
from vllm_jobs import PROMPTS, RUNNERS, need_vllm, request, run

need_vllm()

import torch  # noqa: E402

GOOD = [request(PROMPTS[0], 8), request(PROMPTS[1], 8, temperature=0.8, seed=3)]
NOTHING = {"allowed_token_ids": [5], "logit_bias": {5: float("-inf")}}
NAN = {"logit_bias": {5: float("nan")}}
INFINITE = {"logit_bias": {5: 1e39}}  # of float32
BAD = [
    (request(PROMPTS[2], 8, temperature=0.8, seed=3, **NOTHING), "no token has a finite logit"),
    (request(PROMPTS[2], 8, **NAN), "a logit is NaN"),
    (request(PROMPTS[1], 8, logprobs=2, temperature=1.0, **INFINITE), "a logit is +inf"),
]
# A penalty that is inf in float32: vLLM applies it, and the engine goes on.
ODD = [request(PROMPTS[1], 8, repetition_penalty=1e39)]
NGRAMS = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 2,
    "prompt_lookup_min": 1,
}
# Parameters of requests with drafts: a grammar, and a token that it does not allow.
APART = {"allowed_token_ids": [5], "structured_outputs": {"choice": ["the LORD said", "and he"]}}
WITH_DRAFTS = [
    (request([0, 7, 77, 7, 77], 8, temperature=0.8, seed=3, **APART), "no token has a finite logit")
]


def check(bad, **settings):
    job = run([[*(parameters for parameters, _ in bad), *GOOD], ODD, GOOD], **settings)
    found = job.rounds[0]["requests"]
    assert job.ids(0)[len(bad) :] == job.ids(2)
    for (_, reason), failed in zip(bad, found):
        assert failed["texts"][0]["ids"] == []
        assert failed["texts"][0]["ended"] == ["error", f"gumbel: {reason}"]
    for good in found[len(bad) :]:
        assert good["texts"][0]["ended"] == ["length", None]
    lines = [line for line in job.log.splitlines() if "so far without a token to draw" in line]
    for _, reason in bad:
        assert reason in lines[-1]
    assert "steps drawn without logits" in job.log  # each process that draws logs this when it ends


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"runner": "V2"},
        {"processes": True},
        {"processes": True, "distributed_executor_backend": "uni"},
    ],
    ids=str,
)
def test_a_request_without_a_token_ends_with_an_error(settings):
    check(BAD, **settings)


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_draft_request_without_a_token_ends_with_an_error(runner):
    check(WITH_DRAFTS, runner=runner, speculative_config=NGRAMS)


def test_discarded_rows_are_not_faults(monkeypatch):
    """Rows of a prompt that is processed in chunks; an output without a step is not changed."""
    from gumbel._vllm import faults
    from vllm.v1.outputs import ModelRunnerOutput

    def reported(status, tokens):
        faults.note(torch.tensor(status, dtype=torch.int32))
        names = ["a", "b", "c"]
        places = {name: at for at, name in enumerate(names)}
        output = ModelRunnerOutput(names, places, sampled_token_ids=tokens)
        return getattr(faults.report(output), faults._FAILED, None)

    assert reported([0, 1, 3], [[5], [0], []]) == {"b": 1}
    assert reported([0, 0, 3], [[5], [0], []]) is None
    assert reported([0, 0, 0], [[5], [0], [1]]) is None
    nothing = types.SimpleNamespace()
    faults.note(torch.tensor([1], dtype=torch.int32))
    assert faults.report(nothing) is nothing and not vars(nothing)
    assert faults.report(None) is None


def test_future_outputs_name_failed_requests_and_are_freed_when_read(monkeypatch):
    from gumbel._vllm import faults
    from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

    monkeypatch.setattr(faults.logger, "warning", lambda *_: None)

    class Future(AsyncModelRunnerOutput):
        def get_output(self):
            names = ["a", "b"]
            found = ModelRunnerOutput(names, {name: row for row, name in enumerate(names)})
            found.sampled_token_ids = [[5], [0]]
            return found

    for statuses, failed in (([0, 1], {"b": 1}), ([0, 0], None), ([2, 0], {"a": 2})):
        faults.note(torch.tensor(statuses, dtype=torch.int32))
        future = faults.report(Future())
        assert type(future) is Future
        lives = weakref.ref(future)
        assert getattr(future.get_output(), faults._FAILED, None) == failed
        del future
        assert lives() is None  # without the garbage collector: it holds tensors on the GPU
    assert getattr(Future().get_output(), faults._FAILED, None) is None


def test_steps_in_flight_have_pinned_memory_of_their_own(monkeypatch):
    from gumbel._vllm import faults

    class OnGpu(torch.Tensor):
        is_cpu = False

    class PinnedBuffer:
        def __init__(self, device, capacity):
            self.device, self.memory = device, torch.full((capacity,), 7, dtype=torch.int32)
            self.event = types.SimpleNamespace(record=lambda: None, synchronize=lambda: None)

    def note(*statuses):
        return faults._Statuses(torch.tensor(statuses, dtype=torch.int32).as_subclass(OnGpu))

    monkeypatch.setattr(faults, "_PinnedBuffer", PinnedBuffer)
    monkeypatch.setattr(faults, "_free_buffers", [])
    first, second = note(0, 1, 2), note(3)
    memory = first._buffer.memory
    assert second._buffer.memory is not memory
    assert first.read() == first.read() == [0, 1, 2] and len(faults._free_buffers) == 1
    third = note(4, 0, 0, 5)
    assert third._buffer.memory is memory
    assert second.read() == [3] and third.read() == [4, 0, 0, 5]
    assert note(*range(9)).read() == list(range(9))
    dropped = note(1)
    del dropped
    assert note(6).read() == [6]


def test_log_lines_are_counted_and_few(monkeypatch):
    from gumbel import _statuses

    lines, now = [], [0.0]
    monkeypatch.setattr(_statuses.time, "monotonic", lambda: now[0])
    logger = types.SimpleNamespace(warning=lambda form, *rest: lines.append(form % rest))
    count = _statuses.StatusCount(logger, "so it is")
    for second in range(130):
        now[0] = float(second)
        count.add([0, 1, 3, 6])
    count.add([0, 6])
    count.flush()
    count.flush()
    assert len(lines) == 4 and "260 rows so far" in lines[3]
    assert lines[0].startswith("gumbel: 2 rows so far without a token to draw (a logit is NaN: 1; ")
    assert "a logit is NaN: 121; no token has a finite logit: 121); so it is" in lines[2]

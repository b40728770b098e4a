# SPDX-License-Identifier: Apache-2.0
"""Histories of both runners while requests come, move, grow, shrink and go."""

import types

import numpy as np
import pytest
from vllm_jobs import need_vllm

need_vllm()

import torch  # noqa: E402
from gumbel._vllm import runner_v1, slot_history  # noqa: E402
from gumbel._vllm.batch_history import BatchHistory, history_of  # noqa: E402

VOCAB = 50
CPU = torch.device("cpu")


class Batch:
    """The fields of a V1 input batch that BatchHistory reads."""

    def __init__(self, *requests):
        """Each request is (name, prompt, whether it has penalties)."""
        self.req_ids = [name for name, _, _ in requests]
        self.num_prompt_tokens = np.array([len(prompt) for _, prompt, _ in requests])
        self.token_ids_cpu = np.zeros((len(requests), 20), np.int32)
        for row, (_, prompt, _) in enumerate(requests):
            self.token_ids_cpu[row, : len(prompt)] = prompt
        self.repetition_penalties_reqs = {name for name, _, penalised in requests if penalised}
        self.frequency_penalties_reqs = self.presence_penalties_reqs = set()


def read_row(history, row):
    """The prompt's tokens, the output's tokens and their counts, of one row."""
    found = []
    for mask in (history.prompt, history.output):
        words = np.asarray(mask[row]).view(np.uint32)
        found.append([t for t in range(VOCAB) if words[t >> 5] >> (t & 31) & 1])
    counts = np.asarray(history.counts[row])
    return *found, {int(t): int(counts[t]) for t in np.nonzero(counts)[0]}


def test_texts_are_counted_as_they_grow():
    batch, history = Batch(("a", [1, 2], True), ("b", [3], True)), BatchHistory(4, VOCAB, CPU)
    texts: list[list[int]] = [[], [40]]
    found = history.update(batch, texts)
    assert read_row(found, 0) == ([1, 2], [], {})
    assert read_row(found, 1) == ([3], [40], {40: 1})
    history.history.start = None  # only the new tokens are counted
    texts[0] += [7, 7, 8]
    texts[1] += [41]
    history.update(batch, texts)
    assert read_row(found, 0) == ([1, 2], [7, 8], {7: 2, 8: 1})
    assert read_row(found, 1) == ([3], [40, 41], {40: 1, 41: 1})


@pytest.mark.parametrize("placeholders", [[-1], [-1, -1]])
def test_placeholders_are_counted_once_they_are_filled(placeholders):
    batch, history = Batch(("a", [1], True)), BatchHistory(1, VOCAB, CPU)
    text = [5, *placeholders]
    found = history.update(batch, [text])
    assert read_row(found, 0) == ([1], [5], {5: 1})
    text[1:] = [6]
    history.update(batch, [text])
    assert read_row(found, 0) == ([1], [5, 6], {5: 1, 6: 1})


def test_rows_are_read_again_when_their_request_changes():
    history = BatchHistory(2, VOCAB, CPU)
    text = [20, 21]
    history.update(Batch(("a", [1], True), ("b", [2], True)), [[10], text])
    text.append(22)
    found = history.update(Batch(("b", [2], True)), [text])  # has moved to row 0
    assert read_row(found, 0) == ([2], [20, 21, 22], {20: 1, 21: 1, 22: 1})
    del text[1:]  # tokens were withdrawn
    history.update(Batch(("b", [2], True)), [text])
    assert read_row(found, 0) == ([2], [20], {20: 1})
    text[:] = [9]  # the text has become part of the prompt
    history.update(Batch(("b", [2, 20], True)), [text])
    assert read_row(found, 0) == ([2, 20], [9], {9: 1})
    history.update(Batch(("b", [3, 30], True)), [[8]])  # another request with the same id
    assert read_row(found, 0) == ([3, 30], [8], {8: 1})


def test_rows_without_penalties_are_left_alone():
    history = BatchHistory(2, VOCAB, CPU)
    found = history.update(Batch(("a", [1], False), ("b", [2], True)), [[10], [20]])
    assert read_row(found, 0) == ([], [], {})
    assert read_row(found, 1) == ([2], [20], {20: 1})


def test_rows_that_a_step_does_not_count_are_read_again():
    history, text = BatchHistory(2, VOCAB, CPU), [20, 21, 22]
    both = Batch(("a", [1], True), ("b", [2], True))
    found = history.update(both, [[10], text])
    history.update(Batch(("a", [1], True)), [[10]])  # "b" is preempted
    text[1:] = [30, 31, 32]  # its text was shortened, and has grown again
    history.update(both, [[10], text])
    assert read_row(found, 1) == ([2], [20, 30, 31, 32], {20: 1, 30: 1, 31: 1, 32: 1})


@pytest.fixture
def step(monkeypatch):
    """A step of a runner whose batch has one request; it counts the text if `counts` is true."""
    batch, text = Batch(("a", [1], True)), []
    batch.max_num_reqs, batch.vocab_size = 1, VOCAB
    runner = types.SimpleNamespace(
        _gumbel_serves=True, input_batch=batch, seq_lens=torch.zeros(1, dtype=torch.int64)
    )

    def step(counts, *tokens, withdrawn=0):
        del text[len(text) - withdrawn :]
        monkeypatch.setattr(
            runner_v1, "_stock_sample", lambda *_: history_of(runner, [text]) if counts else None
        )
        found = runner_v1._sample(runner, None, None)
        text.extend(tokens)
        return found

    return step


def test_texts_that_shrink_while_others_draw_are_read_again(step):
    step(True, 5)
    step(True, 6)
    step(True, 7)
    step(False, 8, withdrawn=2)  # as after a failed load of the KV cache
    step(False, 9)
    found = step(True)
    assert read_row(found, 0) == ([1], [5, 8, 9], {5: 1, 8: 1, 9: 1})
    found = step(True, 9)
    found.start = None  # steps that follow each other count only new tokens
    assert read_row(step(True), 0) == ([1], [5, 8, 9], {5: 1, 8: 1, 9: 2})


@pytest.fixture
def slots(monkeypatch):
    """vLLM's penalties of two slots, their history, and a step of the V2 runner."""

    def add_inputs(output, _, counts, __, vocab, places, ids, indices):
        for row, slot in enumerate(places.tolist()):
            token = int(ids[indices[row]])
            if counts[slot, token] > 0:
                output[slot, token // 32] |= 1 << token % 32

    class Kernel:  # in place of Triton's
        def __getitem__(self, grid):
            return add_inputs

    monkeypatch.setattr(slot_history, "_add_inputs", Kernel())
    penalties = types.SimpleNamespace(
        prompt_bin_mask=torch.zeros(2, 2, dtype=torch.int32),
        output_bin_counts=torch.zeros(2, VOCAB, dtype=torch.int32),
    )
    history = slot_history.SlotHistory(penalties)

    def step(*inputs):
        """A step of slots 1 and 0, whose inputs are the tokens that the step before drew."""
        batch = types.SimpleNamespace(
            num_reqs=len(inputs),
            idx_mapping=torch.tensor([1, 0][: len(inputs)]),
            idx_mapping_np=np.array([1, 0][: len(inputs)]),
            input_ids=torch.tensor(inputs),
            logits_indices=torch.arange(len(inputs)),
        )
        history.update(batch, batch.idx_mapping_np.copy())

    return penalties.output_bin_counts, history, step


def test_a_slot_is_read_again_when_its_request_is_resumed(slots):
    counts, history, step = slots
    step(1, 2)  # inputs are of prompts
    for token in (40, 41):
        counts[1, token] += 1  # vLLM counts a token that it has drawn
        step(token)
    assert read_row(history.history, 1) == ([], [40, 41], {40: 1, 41: 1})
    counts[1, 41] = 0  # preempted and resumed with a shorter text, which vLLM counts from the start
    history.invalidate(1)  # by add_request()
    step(40)
    counts[1, 49] += 1
    step(49)
    assert read_row(history.history, 1) == ([], [40, 49], {40: 1, 49: 1})


def test_a_slot_is_read_again_after_a_step_that_emitted_several_tokens(slots):
    counts, history, step = slots
    step(1, 2)
    counts[0, [5, 6, 7]] += 1  # two drafts were accepted
    history.invalidate(np.array([1, 0]))
    step(3, 7)
    assert read_row(history.history, 0) == ([], [5, 6, 7], {5: 1, 6: 1, 7: 1})
    assert read_row(history.history, 1) == ([], [], {})

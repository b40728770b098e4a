# SPDX-License-Identifier: Apache-2.0
"""Histories of the V1 runner while requests come, move, grow and go."""

import numpy as np
import pytest
from vllm_jobs import need_vllm

need_vllm()

import torch  # noqa: E402
from gumbel._vllm.batch_history import BatchHistory  # noqa: E402

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

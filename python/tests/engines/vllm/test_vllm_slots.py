# SPDX-License-Identifier: Apache-2.0
"""Parameters of the V2 runner's slots while batches stay, change, and slots get other requests."""

import types

import numpy as np
import pytest
from vllm_jobs import need_vllm

need_vllm()

import torch  # noqa: E402
from gumbel._vllm import slot_history  # noqa: E402
from gumbel._vllm.requests_v2 import Slots  # noqa: E402
from vllm import SamplingParams  # noqa: E402

COUNT, VOCAB = 4, 64


def shared(dtype, fill=0):
    values = torch.full((COUNT,), fill, dtype=dtype)
    return types.SimpleNamespace(np=values.numpy(), gpu=values)


class FakeSampler:
    """The fields of vLLM's sampler that Slots reads."""

    logprobs_mode = "raw_logprobs"

    def __init__(self):
        floats = {name: shared(torch.float32) for name in ("temperature", "top_p", "min_p")}
        self.num_logprobs = np.full(COUNT, -1)
        self.sampling_states = types.SimpleNamespace(
            max_num_reqs=COUNT,
            vocab_size=VOCAB,
            seeds=shared(torch.int64),
            top_k=shared(torch.int32, VOCAB),
            max_num_logprobs=lambda found: int(self.num_logprobs[found].max()),
            **floats,
        )
        self.logprob_token_ids_state = types.SimpleNamespace(max_num_token_ids=lambda found: 0)
        self.req_states = types.SimpleNamespace(device=torch.device("cpu"))
        self.penalties_state = types.SimpleNamespace(
            repetition_penalty=shared(torch.float32, 1),
            frequency_penalty=shared(torch.float32),
            presence_penalty=shared(torch.float32),
            prompt_bin_mask=torch.zeros(COUNT, VOCAB // 32, dtype=torch.int32),
            output_bin_counts=torch.zeros(COUNT, VOCAB, dtype=torch.int32),
        )

    def add_request(self, slot, parameters):
        states = self.sampling_states
        for name in ("temperature", "top_p", "min_p"):
            getattr(states, name).np[slot] = getattr(parameters, name)
        states.top_k.np[slot] = parameters.top_k or VOCAB
        states.seeds.np[slot] = parameters.seed
        self.num_logprobs[slot] = -1 if parameters.logprobs is None else parameters.logprobs
        self.penalties_state.frequency_penalty.np[slot] = parameters.frequency_penalty


class Requests:
    """Slots, and the steps of batches of their requests."""

    def __init__(self):
        self.sampler = FakeSampler()
        self.slots = Slots(self.sampler)

    def add(self, slot, **options):
        parameters = SamplingParams(seed=100 + slot, **options)
        self.sampler.add_request(slot, parameters)
        self.slots.add(slot, parameters)

    @staticmethod
    def batch(*slots, position=0):
        return types.SimpleNamespace(
            num_reqs=len(slots),
            num_tokens=len(slots),
            positions=position + torch.arange(len(slots)),
            idx_mapping=torch.tensor(slots, dtype=torch.int32),
            idx_mapping_np=np.array(slots, np.int32),
            input_ids=torch.zeros(len(slots), dtype=torch.int32),
            logits_indices=torch.arange(len(slots)),
        )

    def parameters(self, *slots, position=0):
        return self.slots.parameters(self.batch(*slots, position=position))


@pytest.fixture
def requests(monkeypatch):
    class Kernel:  # in place of Triton's
        def __getitem__(self, grid):
            return lambda *_: None

    monkeypatch.setattr(slot_history, "_add_inputs", Kernel())
    found = Requests()
    for slot in range(COUNT):
        found.add(slot, temperature=1.0)
    return found


def test_an_unchanged_batch_reads_positions_only(requests):
    first = requests.parameters(2, 0, position=5)
    assert first.slots.tolist() == [2, 0]
    assert list(first.rows) == ["position", "seed", "temperature"]
    assert first.rows["position"][[2, 0]].tolist() == [5, 6]
    second = requests.parameters(2, 0, position=8)
    assert second is first and second.rows["position"][[2, 0]].tolist() == [8, 9]


def test_a_changed_batch_is_read_again(requests):
    requests.parameters(2, 0)
    for slots in ((0, 2), (0, 2, 3), (3,), (2, 0)):
        found = requests.parameters(*slots, position=3)
        assert found.slots.tolist() == list(slots)
        positions = found.rows["position"][list(slots)].tolist()
        assert positions == [3, 4, 5][: len(slots)]


def test_a_batch_of_drafts_between_two_others_is_noticed(requests):
    requests.parameters(2, 0)
    assert requests.slots.serves_drafts(requests.batch(1, 3))
    assert requests.parameters(1, 3).slots.tolist() == [1, 3]
    assert requests.slots.serves_drafts(requests.batch(2, 0))
    assert requests.parameters(2, 0).slots.tolist() == [2, 0]


def test_a_slot_with_another_request_is_read_again(requests):
    plain = requests.parameters(1, 2)
    requests.add(1, temperature=0.5, top_k=3)
    found = requests.parameters(1, 2)
    assert "top_k" in found.rows and found.rows["temperature"][[1, 2]].tolist() == [0.5, 1.0]
    assert found.call_key != plain.call_key

    requests.add(2, temperature=1.0, frequency_penalty=1.0)
    found = requests.parameters(1, 2)
    assert found.history is not None and found.rows["frequency_penalty"][2] == 1
    assert not requests.slots.serves_drafts(requests.batch(1, 2))

    requests.add(1, temperature=1.0, logit_bias={7: 1.0}, logprobs=2)
    assert requests.parameters(1, 2).more == {"logit_bias": [{7: 1.0}, {}]}
    served, requested = requests.slots.logprobs_request(requests.batch(1, 2))
    assert served and requested.count == 2 and requested.raw

    requests.add(2, temperature=1.0, min_tokens=1, stop_token_ids=[3])
    assert not requests.slots.serves(requests.batch(1, 2))

    for slot in (1, 2):
        requests.add(slot, temperature=1.0)
    found = requests.parameters(1, 2)
    assert requests.slots.serves(requests.batch(1, 2)) and found.call_key == plain.call_key
    assert not found.more and found.history is None
    assert requests.slots.logprobs_request(requests.batch(1, 2)) == (True, None)


def test_graphs_read_the_truncation_of_later_requests(requests):
    rows = torch.tensor([3, 1])
    before = requests.slots.held_truncation(rows)
    assert [before[name].tolist() for name in ("top_k", "min_p")] == [[VOCAB, VOCAB], [0, 0]]
    addresses = {name: values.data_ptr() for name, values in requests.slots._values.items()}
    requests.add(1, temperature=1.0, top_k=5)
    requests.add(3, temperature=1.0, min_p=0.5, top_p=0.25)
    requests.slots.hold_values()
    found = requests.slots.held_truncation(rows)
    assert {name: values.tolist() for name, values in found.items()} == {
        "top_k": [VOCAB, 5],
        "top_p": [0.25, 1],
        "min_p": [0.5, 0],
    }
    for name, address in addresses.items():  # of which graphs have copies
        assert requests.slots._values[name].data_ptr() == address


def test_counts_are_read_again_after_a_step_by_vllm(requests):
    requests.add(1, temperature=1.0, frequency_penalty=1.0)
    counts = requests.sampler.penalties_state.output_bin_counts
    counts[1, 5] = 1

    def mask():
        requests.parameters(0, 1)
        return requests.slots._history._output[1].tolist()

    assert mask() == [1 << 5, 0]
    counts[1, 6] = 1
    assert mask() == [1 << 5, 0]  # the kernel, replaced here, adds a step's own input
    requests.slots.skip(requests.batch(0, 1))
    assert mask() == [3 << 5, 0]

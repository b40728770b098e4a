# SPDX-License-Identifier: Apache-2.0
"""Draw parameters of the requests in the slots of the V2 runner's sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import torch
from vllm.v1.worker.gpu.sample.bad_words import BadWordsState
from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState
from vllm.v1.worker.gpu.sample.penalties import PenaltiesState, use_penalty
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS

from .draw_parameters import PENALTIES, TRUNCATION, DrawParameters, LogprobsRequest
from .drawer import TOP_MAX
from .dry_lists import SlotRings, make_dry_lists
from .requests_v1 import FLOAT32_MAX, can_bias
from .request_rules import BatchRules, Rules, read
from .._inputs.row_lists import RowLists
from .slot_history import SlotHistory

_KNOWN = (LogitBiasState, PenaltiesState, BadWordsState)


def _last_positions(batch: Any) -> torch.Tensor:
    """int64 [B]: the positions of the tokens after which a batch without drafts draws."""
    if batch.num_tokens == batch.num_reqs:  # one token a request
        return batch.positions[: batch.num_reqs]  # type: ignore[no-any-return]
    return batch.positions[batch.logits_indices]  # type: ignore[no-any-return]


@dataclass
class _BatchSummary:
    """Facts about the requests of a batch. They hold until a slot gets another request."""

    mapping: bytes  # of batch.idx_mapping_np: the slot of each row
    served: bool  # the library supports all parameters
    used: list[str]  # as Slots._used()
    penalised: Any  # int [count]: the slots with penalties
    lists: dict[str, Any]  # as Slots._lists()
    logprobs: tuple[bool, Optional[LogprobsRequest]]  # as Slots.logprobs_request()
    rules: dict[int, Rules]  # of the slots that have rules
    text_lists: Optional[RowLists] = None  # of DRY, at the first call
    parameters: Optional[DrawParameters] = None  # as Slots.parameters(), at the first call
    index: Optional[torch.Tensor] = None  # int64 [B]: the slot of each row, with `parameters`


class Slots:
    """The parameters of requests in a sampler's slots, on the host and on the device.

    The tensors on the device have one entry for each slot. They are written in place, so that
    prepared calls read them at every step.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        states, device = sampler.sampling_states, sampler.req_states.device
        count, self.vocab_size = states.max_num_reqs, states.vocab_size
        processors = getattr(sampler, "logits_processors", ())
        self.has_unknown = any(type(it) not in _KNOWN for it in processors)
        self.by_vllm = np.zeros(count, bool)  # has parameters that the library lacks
        self.listed = np.zeros(count, bool)  # has biases or allowed tokens
        self.penalised = np.zeros(count, bool)
        self.biases: list[dict[int, float]] = [{} for _ in range(count)]
        self.allowed: list[list[int]] = [[] for _ in range(count)]
        self.rules: list[Optional[Rules]] = [None] * count
        self._history: Optional[SlotHistory] = None
        self._rings: Optional[SlotRings] = None
        self._is_stale = True  # requests were added after the tensors below were written
        self._values: dict[str, torch.Tensor] = {
            name: self._state(name).gpu.clone() for name in TRUNCATION
        }
        self._positions = torch.zeros(count, dtype=torch.int64, device=device)
        self._batch: Optional[_BatchSummary] = None  # of the latest batch
        # Slots of the rows of the latest batch, as int32, and as an index of torch.
        self._slot_of_row = torch.zeros(count, dtype=torch.int32, device=device)
        self._slot_index = torch.zeros(count, dtype=torch.int64, device=device)

    def add(self, slot: int, parameters: Any) -> None:
        """Store the parameters of the request that now has this slot."""
        self.by_vllm[slot] = self.has_unknown or bool(
            not 0 < parameters.repetition_penalty <= FLOAT32_MAX
            or parameters.bad_words_token_ids
            or (parameters.min_tokens and parameters.all_stop_token_ids)
            or getattr(parameters, "thinking_token_budget", None) is not None
            or not can_bias(parameters.logit_bias or {})
        )
        self.penalised[slot] = use_penalty(parameters)
        self.biases[slot] = dict(parameters.logit_bias or {})
        self.allowed[slot] = list(parameters.allowed_token_ids or ())
        self.rules[slot] = read(parameters)
        self.listed[slot] = bool(self.biases[slot] or self.allowed[slot])
        self._is_stale, self._batch = True, None
        if self._history is not None:
            self._history.invalidate(slot)

    def serves(self, batch: Any) -> bool:
        """Whether the library supports all parameters of a batch of one row a request."""
        return self._summary(batch).served

    def serves_drafts(self, batch: Any) -> bool:
        """Whether the library supports all parameters of a batch whose drafts are verified."""
        summary = self._summary(batch)
        return summary.served and not len(summary.penalised)

    def max_kept(self, batch: Any) -> int:
        """The largest number of tokens that a row of a batch keeps if ties are cut."""
        rules, states = self._summary(batch).rules, self.sampler.sampling_states
        by_rules = [rules[slot].values.get("top_k", states.vocab_size) for slot in rules]
        slots = [slot for slot in batch.idx_mapping_np.tolist() if slot not in rules]
        return min(states.vocab_size, int(max([*by_rules, *states.top_k.np[slots]])))

    def skip(self, batch: Any) -> None:
        """Note a step whose parameters were not read by parameters()."""
        if self._history is not None:
            self._history.invalidate(batch.idx_mapping_np)

    def rows(self, batch: Any, processed: bool = False) -> dict[str, torch.Tensor]:
        """Row parameters [B] of the requests, without penalties.

        `processed`: for logits to which temperature and min_p are applied already.
        """
        slots, first = batch.idx_mapping, batch.logits_indices
        if len(first) != batch.num_reqs:  # drafts are verified
            first = first[batch.cu_num_logits[:-1].long()]
        rows = {"position": batch.positions[first]}
        for name in self._summary(batch).used:
            rows[name] = self._state(name).gpu[slots]
        if processed:
            rows.pop("min_p", None)
            rows["temperature"] = (rows["temperature"] > 0).float()
        return rows

    def truncation(self, slots: torch.Tensor) -> dict[str, torch.Tensor]:
        """top_k, top_p and min_p of these slots, if the latest batch uses them."""
        used = () if self._batch is None else self._batch.used
        return {name: self._state(name).gpu[slots] for name in TRUNCATION if name in used}

    def held_truncation(self, slots: torch.Tensor) -> dict[str, torch.Tensor]:
        """top_k, top_p and min_p of these slots, read where CUDA graphs of all steps find them."""
        return {name: self._values[name][slots] for name in TRUNCATION}

    def hold_values(self) -> None:
        """Copy the parameters of all slots to the device, if requests were added."""
        if not self._is_stale:
            return
        for name in ("seed", "temperature", "top_k", "top_p", "min_p", *PENALTIES):
            self._hold(name, self._state(name).gpu)
        self._is_stale = False

    def parameters(self, batch: Any) -> DrawParameters:
        """The draw parameters of a batch of one row a request, by slot.

        The result is the same object at every step of an unchanged batch: do not change it.
        """
        summary = self._summary(batch)
        self.hold_values()
        lists = self._update_lists(batch, summary)
        if summary.parameters is None:
            summary.index, summary.parameters = self._read_parameters(batch, summary, lists)
        self._positions.index_copy_(0, summary.index, _last_positions(batch))
        if self._history is not None and len(summary.penalised):
            self._history.update(batch, summary.penalised)
        return summary.parameters

    def processed_parameters(self, batch: Any) -> DrawParameters:
        """The draw parameters of logits that vLLM has processed, one row a request."""
        parameters, known = DrawParameters(self.rows(batch, processed=True)), self._summary(batch)
        if not known.rules:
            return parameters
        slots = batch.idx_mapping_np.tolist()
        rules = {row: known.rules[slot] for row, slot in enumerate(slots) if slot in known.rules}
        found = BatchRules(range(len(slots)), rules)
        found.lists = self._update_lists(batch, known)
        return found.add_to(parameters)

    def listed_parameters(self, batch: Any) -> DrawParameters:
        """The draw parameters of a batch whose drafts are verified, by request."""
        return DrawParameters(self.rows(batch), self._summary(batch).lists)

    def logprobs_request(self, batch: Any) -> tuple[bool, Optional[LogprobsRequest]]:
        """Whether the library supports the requested log-probabilities, and the request if any."""
        return self._summary(batch).logprobs

    def _summary(self, batch: Any) -> _BatchSummary:
        """The facts about a batch; read again only if the batch has changed."""
        found = batch.idx_mapping_np
        mapping = found.tobytes()
        summary = self._batch
        if summary is None or summary.mapping != mapping:
            summary = self._batch = _BatchSummary(
                mapping,
                served=not self.by_vllm[found].any(),
                used=self._used(found),
                penalised=found[self.penalised[found]].astype(np.int64),
                lists=self._lists(found),
                logprobs=self._logprobs_request(found),
                rules={slot: it for slot in found.tolist() if (it := self.rules[slot])},
            )
        return summary

    def _logprobs_request(self, found: Any) -> tuple[bool, Optional[LogprobsRequest]]:
        count = self.sampler.sampling_states.max_num_logprobs(found)
        ids = self.sampler.logprob_token_ids_state.max_num_token_ids(found)
        if count == NO_LOGPROBS and not ids:
            return True, None
        mode = self.sampler.logprobs_mode
        served = count <= TOP_MAX and not ids and mode in ("raw_logprobs", "processed_logprobs")
        return served, LogprobsRequest(count, mode == "raw_logprobs") if served else None

    def _update_lists(self, batch: Any, summary: _BatchSummary) -> Optional[RowLists]:
        """The lists of a step's rows, made from their texts; None: no request has DRY."""
        dry = {slot: it.dry for slot, it in summary.rules.items() if it.dry is not None}
        if not dry:
            return None
        if self._rings is None:
            self._rings = SlotRings(self.sampler.req_states)
        slots = batch.idx_mapping.to(torch.int32, copy=True)
        self._rings.update(slots.long(), _last_positions(batch))
        if summary.text_lists is None:
            entries = batch.idx_mapping_np.tolist()
            summary.text_lists = make_dry_lists(self._rings.recent, dry, entries, slots)
        else:
            summary.text_lists.update()
        return summary.text_lists

    def _read_parameters(
        self, batch: Any, summary: _BatchSummary, lists: Optional[RowLists]
    ) -> tuple[torch.Tensor, DrawParameters]:
        """The slot of each row, as an index of torch, and the draw parameters by slot."""
        slots, index = self._slot_of_row[: batch.num_reqs], self._slot_index[: batch.num_reqs]
        slots.copy_(batch.idx_mapping)
        index.copy_(batch.idx_mapping)
        rows = {"position": self._positions}
        rows.update((name, self._values[name]) for name in summary.used)
        history = None
        if len(summary.penalised):
            rows.update((name, self._values[name]) for name in PENALTIES)
            if self._history is None:
                self._history = SlotHistory(self.sampler.penalties_state)
            history = self._history.history
        parameters = DrawParameters(rows, summary.lists, history=history, slots=slots)
        if summary.rules:
            rules = BatchRules(batch.idx_mapping_np.tolist(), summary.rules)
            rules.lists = lists
            parameters = rules.add_to(parameters, self._hold)
        return index, parameters

    def _hold(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Copy values of all slots to the tensor that prepared calls read by this name."""
        found = self._values.get(name)
        if found is None:
            found = self._values[name] = torch.empty_like(values)
        return found.copy_(values)

    def _state(self, name: str) -> Any:
        """vLLM's parameters of this name: on the host, and where the device reads them."""
        if name in PENALTIES:
            return getattr(self.sampler.penalties_state, name)
        return getattr(self.sampler.sampling_states, "seeds" if name == "seed" else name)

    def _used(self, found: Any) -> list[str]:
        """Names of the parameters, except penalties, that change the draws of these slots."""
        states = self.sampler.sampling_states
        offs = {"top_k": states.vocab_size, "top_p": 1, "min_p": 0}
        used = [name for name, off in offs.items() if (self._state(name).np[found] != off).any()]
        return ["seed", "temperature", *used]

    def _lists(self, found: Any) -> dict[str, Any]:
        """Biases and allowed tokens of the requests in these slots, if there are any."""
        if not self.listed[found].any():
            return {}
        lists = {
            "logit_bias": [self.biases[slot] for slot in found],
            "allowed": [self.allowed[slot] for slot in found],
        }
        return {name: given for name, given in lists.items() if any(given)}

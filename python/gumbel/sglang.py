# SPDX-License-Identifier: Apache-2.0
"""Tokens of SGLang, drawn by libgumbel: a sampling backend.

    python -m sglang.launch_server --sampling-backend gumbel ...

SGLang finds register() by itself where this package is installed, by the entry point group
"sglang.srt.plugins". The backend draws from logits in one call, without probabilities; temperature,
top_k, top_p and min_p are SGLang's own of each request, the last three jointly, each counted on the
whole distribution. Greedy requests, those with top_k 1, get the first of the likeliest tokens.

With --enable-deterministic-inference a request's `sampling_seed` is the library's seed, and the
position that of the input token whose logits are drawn from: its text depends on neither its batch
nor its place there, with top_k, top_p and min_p, too. Without it the seed comes from torch's
generator of the device, so that ranks of a tensor-parallel group draw alike.

SGLang's sampler cannot end a request. A row that has NaN or +inf even after SGLang's own repair, or
no token left, gets token 0; the log "gumbel.sglang" has a warning with the counts of such rows by
reason, at most once a minute.

Log-probabilities and the masks of kept tokens are made by SGLang, as its other backends' are. Knows
SGLang 0.5.22 and 0.5.23; others are refused by name.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any, Optional

SUPPORTED = ("0.5.22", "0.5.23")
_INSTALL = "pip install 'sglang==0.5.23'"

try:
    import torch
    from sglang.srt.layers import sampler as stock  # type: ignore[import-not-found, unused-ignore]
except ImportError as missing:
    raise ImportError(f"gumbel.sglang needs SGLang: {_INSTALL} ({missing})") from missing

from .flashinfer.calls import JOINT, Parameters, drawn, number, rows_of, transformed
from .flashinfer.limits import unchecked_limits
from .flashinfer.seeds import seeds_of
from .flashinfer.watch import Watch, settle

__all__ = ["GumbelSampler", "register"]

BACKEND = "gumbel"
WATCH = Watch("gumbel.sglang", "each was given token 0", every=True)


def _check_version() -> None:
    version = metadata.version("sglang")
    if ".".join(version.split(".")[:3]) not in SUPPORTED:
        known = " and ".join(SUPPORTED)
        raise ImportError(f"gumbel.sglang knows SGLang {known}, not {version}: {_INSTALL}")


_check_version()


def register() -> None:
    """Make "gumbel" a sampling backend of this process; again changes nothing."""
    if BACKEND not in stock._CUSTOM_SAMPLER_FACTORIES:
        stock.register_sampler_backend(BACKEND, GumbelSampler)


def _limits(info: Any, greedy: bool) -> dict[str, torch.Tensor]:
    """What the requests ask for, of SGLang's SamplingBatchInfo, by the library's names."""
    temperatures = info.temperatures.view(-1)
    if greedy and info.is_any_greedy:  # SGLang tells it by top_k alone
        temperatures = temperatures.where(info.top_ks != 1, 0.0)
    limits = {"temperature": temperatures}
    if info.need_top_k_sampling:
        limits["top_k"] = info.top_ks
    if info.need_top_p_sampling:
        limits["top_p"] = info.top_ps
    if info.need_min_p_sampling:
        limits["min_p"] = info.min_ps
    return limits


class GumbelSampler(stock.Sampler):  # type: ignore[misc, unused-ignore]
    """SGLang's sampler, whose tokens the library draws."""

    def forward(
        self,
        logits_output: Any,
        sampling_info: Any,
        return_logprob: bool,
        top_logprobs_nums: list[int],
        token_ids_logprobs: list[list[int]],
        positions: torch.Tensor,
        *,
        logprob_logits: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """Tokens [B] from logits_output.next_token_logits [B, V]; else as SGLang's sampler.

        What SGLang keeps of probabilities beside the token, a request's mask of kept tokens or
        log-probabilities in the dtype of a trainer, needs its own way through them: then
        _sample_from_probs() draws.
        """
        info = sampling_info
        masks = getattr(info, "sampling_mask_batch_indices", None)
        if masks is not None or logprob_logits is not None or self.rl_on_policy_target is not None:
            tokens: torch.Tensor = super().forward(
                logits_output,
                info,
                return_logprob,
                top_logprobs_nums,
                token_ids_logprobs,
                positions,
                logprob_logits=logprob_logits,
            )
            return tokens
        stock.maybe_detect_nan(logits_output.next_token_logits, "sampler: next_token_logits")
        logits = self._preprocess_logits(logits_output.next_token_logits, info)
        tokens = self._drawn(logits, info, positions)
        if return_logprob:
            self.output_logprob_processor.compute_logprobs(
                self._logprobs(logits, info), top_logprobs_nums, token_ids_logprobs, tokens
            ).write_output_to(logits_output)
        self._sync_token_ids_across_tp(tokens, info)
        return tokens

    @staticmethod
    def _drawn(logits: torch.Tensor, info: Any, positions: torch.Tensor) -> torch.Tensor:
        logits = rows_of("next_token_logits", logits)
        rows, place = len(logits), logits.device
        if info.is_all_greedy:
            greedy = {"temperature": number(0.0, torch.float32, place)}
            return settle(WATCH, drawn(logits, greedy))
        given = unchecked_limits(rows, place, None, **_limits(info, True))
        given.update(_noise(info, positions, place, rows))
        return settle(WATCH, drawn(logits, given, JOINT))

    @staticmethod
    def _logprobs(logits: torch.Tensor, info: Any) -> torch.Tensor:
        """Of the distribution before truncation, as SGLang's other backends have them."""
        if not (info.is_all_greedy or stock.SGLANG_RETURN_ORIGINAL_LOGPROB):
            logits = logits / info.temperatures
        return torch.log_softmax(logits, dim=-1)

    def _sample_from_probs(
        self,
        probs: torch.Tensor,
        sampling_info: Any,
        positions: torch.Tensor,
        simple_sampling_case: bool,
    ) -> tuple[torch.Tensor, Any]:
        """Tokens from probabilities at the requests' temperatures, and what the masks are of."""
        info, captured = sampling_info, sampling_info.sampling_mask_batch_indices
        logs = rows_of("probs", probs).float().log()
        limits = _limits(info, False)
        del limits["temperature"]
        if info.is_any_greedy:
            limits["temperature"] = (info.top_ks != 1).float()
        given = unchecked_limits(len(logs), logs.device, None, **limits)
        given.update(_noise(info, positions, logs.device, len(logs)))
        tokens = settle(WATCH, drawn(logs, given, JOINT))
        if captured is None:
            return tokens, None
        limits.pop("temperature", None)
        limits = {name: value.index_select(0, captured) for name, value in limits.items()}
        some = logs.index_select(0, captured)
        given = unchecked_limits(len(some), some.device, None, **limits)
        weights = transformed("softmax", some, given, JOINT)
        taken = tokens.index_select(0, captured).long().view(-1, 1)
        selected = weights.gather(1, taken).squeeze(1)
        return tokens, stock._SamplingMaskCapture(weights, None, selected, captured)

    def _sample_from_logprobs(
        self, logprobs: torch.Tensor, sampling_info: Any, positions: torch.Tensor
    ) -> torch.Tensor:
        """Tokens from log-probabilities in the dtype of a trainer."""
        logs = rows_of("logprobs", logprobs)
        noise = _noise(sampling_info, positions, logs.device, len(logs))
        return settle(WATCH, drawn(logs, noise))


def _noise(info: Any, positions: torch.Tensor, place: torch.device, rows: int) -> Parameters:
    """Seeds and positions: the requests' own, or one for all from torch's generator."""
    seeds = info.sampling_seed
    if seeds is not None:
        return seeds_of(seeds, positions.to(torch.int64), None, place, rows, 0)
    return seeds_of(None, None, None, place, rows, rows)

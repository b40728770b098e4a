# SPDX-License-Identifier: Apache-2.0
"""SGLang sampling backend: tokens are drawn by libgumbel.

    python -m sglang.launch_server --sampling-backend gumbel ...

SGLang finds register() through the entry point group "sglang.srt.plugins" if this package is
installed. The backend draws from logits in one call and forms no probabilities. Each request's
temperature, top_k, top_p and min_p apply; the last three truncate jointly, each by the whole
distribution. Greedy requests, those with top_k 1, get the likeliest token with the lowest id.

With --enable-deterministic-inference the seed is the request's `sampling_seed`, and the position is
the index of the input token whose logits are drawn from. A text then does not depend on its batch
or its row, even with top_k, top_p and min_p. Otherwise the seed comes from torch's generator of the
device, so that all ranks of a tensor-parallel group draw the same tokens.

SGLang's sampler cannot end a request. A row gets token 0 if it has NaN or +inf after SGLang's own
repair, or no token to draw; the log "gumbel.sglang" has a warning with the counts of such rows by
reason, at most once a minute.

SGLang computes log-probabilities and masks of kept tokens itself, as for its other backends.
Supports SGLang 0.5.22 and 0.5.23; the import of this module fails with other versions.
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
    raise ImportError(f"gumbel.sglang requires SGLang: {_INSTALL} ({missing})") from missing

from .flashinfer.calls import (
    JOINT,
    Parameters,
    draw_tokens,
    read_rows,
    scalar_parameter,
    transform_rows,
)
from .flashinfer.limits import read_unchecked_limits
from .flashinfer.seeds import make_seeds
from .flashinfer.watch import Watch, replace_missing

__all__ = ["GumbelSampler", "register"]

BACKEND = "gumbel"
WATCH = Watch("gumbel.sglang", "each was given token 0", every=True)


def _check_version() -> None:
    version = metadata.version("sglang")
    if ".".join(version.split(".")[:3]) not in SUPPORTED:
        known = " and ".join(SUPPORTED)
        raise ImportError(f"gumbel.sglang supports SGLang {known}, not {version}: {_INSTALL}")


_check_version()


def register() -> None:
    """Register the sampling backend "gumbel" in this process. Safe to call again."""
    if BACKEND not in stock._CUSTOM_SAMPLER_FACTORIES:
        stock.register_sampler_backend(BACKEND, GumbelSampler)


def _get_limits(info: Any, greedy: bool) -> dict[str, torch.Tensor]:
    """Parameters of the requests in SGLang's SamplingBatchInfo, by the library's names.

    `greedy`: temperature 0 for greedy requests.
    """
    temperatures = info.temperatures.view(-1)
    if greedy and info.is_any_greedy:  # SGLang marks greedy requests by top_k 1
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
    """SGLang's sampler with the library's draws."""

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
        """Tokens [B] from logits_output.next_token_logits [B, V]; otherwise as SGLang's sampler.

        If a request needs the mask of its kept tokens, or log-probabilities in a trainer's dtype,
        SGLang's own forward() computes probabilities and _sample_from_probs() draws.
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
        tokens = self._draw_tokens(logits, info, positions)
        if return_logprob:
            self.output_logprob_processor.compute_logprobs(
                self._compute_logprobs(logits, info), top_logprobs_nums, token_ids_logprobs, tokens
            ).write_output_to(logits_output)
        self._sync_token_ids_across_tp(tokens, info)
        return tokens

    @staticmethod
    def _draw_tokens(logits: torch.Tensor, info: Any, positions: torch.Tensor) -> torch.Tensor:
        logits = read_rows("next_token_logits", logits)
        rows, place = len(logits), logits.device
        if info.is_all_greedy:
            greedy = {"temperature": scalar_parameter(0.0, torch.float32, place)}
            return replace_missing(WATCH, draw_tokens(logits, greedy))
        given = read_unchecked_limits(rows, place, None, **_get_limits(info, True))
        given.update(_make_noise(info, positions, place, rows))
        return replace_missing(WATCH, draw_tokens(logits, given, JOINT))

    @staticmethod
    def _compute_logprobs(logits: torch.Tensor, info: Any) -> torch.Tensor:
        """Log-probabilities before truncation, as in SGLang's other backends."""
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
        """Tokens from probabilities at the requests' temperatures, and the masks of kept tokens."""
        info, captured = sampling_info, sampling_info.sampling_mask_batch_indices
        logs = read_rows("probs", probs).float().log()
        limits = _get_limits(info, False)
        del limits["temperature"]
        if info.is_any_greedy:
            limits["temperature"] = (info.top_ks != 1).float()
        given = read_unchecked_limits(len(logs), logs.device, None, **limits)
        given.update(_make_noise(info, positions, logs.device, len(logs)))
        tokens = replace_missing(WATCH, draw_tokens(logs, given, JOINT))
        if captured is None:
            return tokens, None
        limits.pop("temperature", None)
        limits = {name: value.index_select(0, captured) for name, value in limits.items()}
        some = logs.index_select(0, captured)
        given = read_unchecked_limits(len(some), some.device, None, **limits)
        weights = transform_rows("softmax", some, given, JOINT)
        chosen = tokens.index_select(0, captured).long().view(-1, 1)
        selected = weights.gather(1, chosen).squeeze(1)
        return tokens, stock._SamplingMaskCapture(weights, None, selected, captured)

    def _sample_from_logprobs(
        self, logprobs: torch.Tensor, sampling_info: Any, positions: torch.Tensor
    ) -> torch.Tensor:
        """Tokens from log-probabilities in a trainer's dtype."""
        logs = read_rows("logprobs", logprobs)
        noise = _make_noise(sampling_info, positions, logs.device, len(logs))
        return replace_missing(WATCH, draw_tokens(logs, noise))


def _make_noise(info: Any, positions: torch.Tensor, place: torch.device, rows: int) -> Parameters:
    """Seeds and positions of the requests; or one seed for all, from torch's generator."""
    seeds = info.sampling_seed
    if seeds is not None:
        return make_seeds(seeds, positions.to(torch.int64), None, place, rows, 0)
    return make_seeds(None, None, None, place, rows, rows)

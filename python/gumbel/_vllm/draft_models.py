# SPDX-License-Identifier: Apache-2.0
"""vLLM's drafters: which engines have drafts that the plug-in draws (drafting.py), and their base
classes."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from .vllm_versions import checks_needed

# Methods of speculative decoding whose drafters are of the base classes, except those below.
_METHODS = ("draft_model", "eagle", "eagle3", "mtp", "dflash")
_OTHER_V1_MODELS = ("step3p5_mtp", "gemma4_mtp")
_OTHER_V2_ARCHITECTURES = (
    "DFlash2DraftModel",
    "DFlash2BeamDraftModel",
    "LiLiCorrDraftModel",
    "Qwen3XPressModel",
    "DFlashQwen3XPressModel",
)

_V2_PARAMETERS = (  # of sample_draft() since 0.29
    "self",
    "hidden_states",
    "sample_src_positions",
    "idx_mapping",
    "temperature",
    "seeds",
    "draft_step",
    "draft_logits",
)
_V2_LATER = ("spec_step_idx", "num_steps")  # since 0.32, of heads; since 0.33, of watermarks


def draws_drafts(config: Any) -> bool:
    """Whether the drafts of an engine of this configuration are drawn with the target's noise."""
    drafts = config.speculative_config
    if getattr(drafts, "method", None) not in _METHODS:
        return False
    model = getattr(drafts, "draft_model_config", None)
    if getattr(config, "use_v2_model_runner", False):
        architectures = getattr(model, "architectures", None) or ()
        return find_speculator() is not None and not set(architectures) & set(
            _OTHER_V2_ARCHITECTURES
        )
    kind = getattr(getattr(model, "hf_config", None), "model_type", None)
    return find_proposer() is not None and kind not in _OTHER_V1_MODELS


def find_proposer() -> Any:
    """The base class of V1's drafters; None in versions whose drafters have another form."""
    if checks_needed():
        return None
    try:
        owner = importlib.import_module("vllm.v1.spec_decode.llm_base_proposer")
        found = owner.SpecDecodeBaseProposer
    except (ImportError, AttributeError):
        return None
    names = ("propose", "_sample_draft_tokens", "_greedy_sample")
    return found if all(hasattr(found, name) for name in names) else None


def find_speculator() -> Any:
    """The base class of V2's drafters; None in versions whose drafters have another form."""
    if checks_needed():
        return None
    try:
        module = importlib.import_module("vllm.v1.worker.gpu.spec_decode.speculator")
        found = module.DraftModelSpeculator
        names = tuple(inspect.signature(found.sample_draft).parameters)
    except (ImportError, AttributeError):
        return None
    forms = (_V2_PARAMETERS, (*_V2_PARAMETERS, *_V2_LATER[:1]), (*_V2_PARAMETERS, *_V2_LATER))
    return found if names in forms else None

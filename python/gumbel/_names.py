# SPDX-License-Identifier: Apache-2.0
"""Converts names of C struct fields in errors to names of Python arguments."""

from __future__ import annotations

import re

# {end of the field's path: Python argument}, for fields whose argument has another name.
_PARAMETERS = {
    "soft_cap": "softcap",
    "transforms.bias": "logit_bias",
    "transforms.repetition": "repetition_penalty",
    "transforms.frequency": "frequency_penalty",
    "transforms.presence": "presence_penalty",
    "truncation.programs": "order",
    "programs.rules": "order",
    "num_top": "top_logprobs",
    "kept_capacity": "kept_ids",
    "logprobs_of": "logprobs",
    "from": "other",
}
# Fields of a draft. The shape of `tokens` determines `requests`.
_DRAFT_PARAMETERS = {
    "head": "proposal",
    "logits": "proposal",
    "sampling": "proposal",
    "lse": "proposal.drawn_lse",
    "logprobs": "proposal.drawn_logprobs",
    "requests": "tokens",
}
# Prefixes of fields: the structs that contain them.
_STRUCTS = re.compile(
    r"(verified\.rows\.|(head|logits|sampling|output|options|step|verified|recent|rules|lists"
    r"|updates)\.)?"
    r"((transforms|truncation|programs)\.)?"
)
_FIELD = re.compile(
    r"\b(draft|head|logits|sampling|output|options|step|verified|recent|rules|lists|updates)"
    r"(\.[a-z_]+)+"
)
_ROW_SLOT = re.compile(r"\bof_row\[")
_OTHER_NAMES = re.compile(r"\b(soft_cap|num_top)\b")


def get_parameter_name(field: str) -> str:
    """The Python argument for a field of the C library, such as "sampling.seed[3]"."""
    path, bracket, index = field.partition("[")
    if path.startswith("draft."):
        draft_field = path[len("draft.") :]
        if draft_field in _DRAFT_PARAMETERS:
            return _DRAFT_PARAMETERS[draft_field] + bracket + index
        owner = "proposal." if draft_field.partition(".")[0] in _DRAFT_PARAMETERS else ""
        return owner + get_parameter_name(draft_field + bracket + index)
    for end, name in _PARAMETERS.items():
        if path.endswith(end):
            return name + bracket + index
    return _STRUCTS.sub("", field, count=1)


def use_python_names(message: str) -> str:
    """Replace names of C fields in an error message by names of Python arguments."""
    message = _FIELD.sub(lambda found: get_parameter_name(found[0]), message)
    message = _ROW_SLOT.sub("slots[", message)
    return _OTHER_NAMES.sub(lambda found: _PARAMETERS[found[0]], message)

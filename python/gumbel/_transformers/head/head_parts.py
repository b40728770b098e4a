# SPDX-License-Identifier: Apache-2.0
"""The modules and parameters that compute a model's logits, and whether they have changed.

Each call of generate() reads them, which takes some microseconds.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch.nn.modules import module as all_modules

from .factors import Values, read_factors

DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # dtypes of weights in the library
_LINEAR_FORWARD = torch.nn.Linear.forward


class HeadParts:
    """The modules, parameters and factors that compute the logits of a model."""

    def __init__(self, model: Any, linear: Any) -> None:
        self.linear, self.forward, self.decoders = (
            linear,
            type(model).forward,
            _list_decoders(model),
        )
        weight, bias = linear.weight, linear.bias
        self.weight = weight.detach()
        self.bias: Optional[torch.Tensor] = None if bias is None else bias.detach()
        self.values: Values = read_factors(model.config, model, *self.decoders)
        self.objects = (linear, self.forward, weight, bias, *self.decoders)
        self.layouts = (_describe_tensor(weight), None if bias is None else _describe_tensor(bias))

    def has_same_decoder(self, other: HeadParts) -> bool:
        """Whether forward and decoder are the same, and the head can still read their states."""
        return (
            self.forward is other.forward
            and _are_same(self.decoders, other.decoders)
            and self.weight.dtype == other.weight.dtype
            and self.weight.device == other.weight.device
        )

    def is_same(self, other: HeadParts) -> bool:
        """Whether modules, parameters and factors are the same objects. Ignores writes in place."""
        return (
            _are_same(self.objects, other.objects)
            and self.layouts == other.layouts
            and self.values == other.values
        )


@dataclass(frozen=True)
class UnsupportedHead:
    """The reason why the library cannot compute a model's logits."""

    reason: str


def find_parts(model: Any) -> Any:
    """The HeadParts of a model, or an UnsupportedHead with the reason."""
    linear = model.get_output_embeddings()
    reason = (
        _find_call_problem(model, linear)
        or ("" if _list_decoders(model) else "its decoder is not a module of its own")
        or _find_tensor_problem("weight", linear.weight, 2)
        or (_find_tensor_problem("bias", linear.bias, 1) if linear.bias is not None else "")
    )
    return UnsupportedHead(reason) if reason else HeadParts(model, linear)


def _list_decoders(model: Any) -> tuple[Any, ...]:
    """Modules whose last hidden state may be the input of the head, the outermost first."""
    found = [model.base_model]
    decoder = model.get_decoder()
    if decoder is not None and decoder is not found[0]:
        found.append(decoder)
    return tuple(module for module in found if module is not model)


def _are_same(objects: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return len(objects) == len(others) and all(map(operator.is_, objects, others))


def _find_call_problem(model: Any, linear: Any) -> str:
    """Why a call of the model or its head may do more than the product; "" if it does not."""
    if linear is None:
        return "it has no output embeddings"
    if type(linear) is not torch.nn.Linear:
        kind = type(linear)
        return f"its head is a {kind.__module__}.{kind.__name__}, not a torch.nn.Linear"
    if torch.nn.Linear.forward is not _LINEAR_FORWARD:
        return "torch.nn.Linear.forward was replaced"
    if all_modules._global_forward_hooks or all_modules._global_forward_pre_hooks:
        return "all modules have a global forward hook"
    for name, module in (("its head", linear), ("the model", model)):
        if module._forward_hooks or module._forward_pre_hooks:
            return f"{name} has a forward hook"
        if not _has_own_forward(module):
            return f"the forward of {name} was replaced"
    return ""


def _has_own_forward(module: Any) -> bool:
    """Whether a module's forward is that of its class, possibly compiled or moving its inputs."""
    forward = module.__dict__.get("forward")
    if forward is None:
        return True
    hook = module.__dict__.get("_hf_hook")
    if type(hook).__name__ == "AlignDevicesHook" and not hook.offload:  # accelerate's device_map
        return True
    own = getattr(forward, "_torchdynamo_orig_callable", None)
    return own is not None and getattr(own, "__func__", None) is type(module).forward


def _find_tensor_problem(name: str, tensor: torch.Tensor, axes: int) -> str:
    """Why the library cannot read a parameter of the head in place; "" if it can."""
    if type(tensor) not in (torch.nn.Parameter, torch.Tensor):
        return f"the {name} of its head is of the type {type(tensor).__name__}"
    if tensor.device.type not in ("cpu", "cuda"):
        return f"the {name} of its head is on {tensor.device}"
    if tensor.dtype not in DTYPES:
        return f"the {name} of its head is {tensor.dtype}"
    if tensor.dim() != axes or not tensor.numel() or not tensor.untyped_storage().nbytes():
        return f"the {name} of its head is not in memory"
    if tensor.stride(-1) != 1:
        return f"the last axis of the {name} of its head is not contiguous"
    return ""


def _describe_tensor(tensor: torch.Tensor) -> Any:
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)

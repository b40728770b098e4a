# SPDX-License-Identifier: Apache-2.0
"""flashinfer.logits_processor: pipes of processors, fused into few calls of the library.

>>> pipe = LogitsPipe([Temperature(), Softmax(), TopK(), TopP(), Sample()])
>>> tokens = pipe(logits, temperature=0.8, top_k=50, top_p=0.95, seed=1, offset=17)

The pipe above is one call, without probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Optional, Union

import torch

from .. import _abi
from .calls import JOINT, PLAIN, read_rows, transform_rows
from .limits import read_limits
from .sampling import ROUNDS, draw_rows, finish_tokens

LIMITS = ("min_p", "top_k", "top_p")
# The orders in which one call can truncate.
_ORDERS = {
    ("min_p", "top_k", "top_p"): PLAIN,
    ("top_k", "top_p", "min_p"): (_abi.ORDER_TOP_K_TOP_P_MIN_P, _abi.TIES_ALL),
}


class TensorType(Enum):
    """The kind of a tensor's content."""

    LOGITS = auto()
    PROBS = auto()
    INDICES = auto()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class TaggedTensor:
    """A tensor and the kind of its content."""

    data: torch.Tensor
    type: TensorType

    @staticmethod
    def logits(t: torch.Tensor) -> TaggedTensor:
        return TaggedTensor(t, TensorType.LOGITS)

    @staticmethod
    def probs(t: torch.Tensor) -> TaggedTensor:
        return TaggedTensor(t, TensorType.PROBS)

    @staticmethod
    def indices(t: torch.Tensor) -> TaggedTensor:
        return TaggedTensor(t, TensorType.INDICES)


class LogitsProcessor:
    """A step of a pipe. Parameters passed here are defaults of those of the pipe's call."""

    name = ""  #: name of the step's parameter
    maps: dict[TensorType, TensorType] = {}  #: {kind of input: kind of output}

    def __init__(self, **params: Any) -> None:
        self.params = params

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in self.params.items())})"


class Temperature(LogitsProcessor):
    """Logits divided by `temperature`: a float > 0, or a tensor [rows]."""

    name = "temperature"
    maps = {TensorType.LOGITS: TensorType.LOGITS}


class Softmax(LogitsProcessor):
    """Probabilities of logits. enable_pdl is ignored."""

    maps = {TensorType.LOGITS: TensorType.PROBS}

    def __init__(self, enable_pdl: Optional[bool] = None, **params: Any) -> None:
        super().__init__(enable_pdl=enable_pdl, **params)


class TopK(LogitsProcessor):
    """The `top_k` likeliest tokens: other logits are -inf, other probabilities 0.

    joint_topk_topp  True: a TopP between this and Sample sums the probabilities of the whole row,
                     not those of the top_k tokens.
    """

    name = "top_k"
    maps = {TensorType.LOGITS: TensorType.LOGITS, TensorType.PROBS: TensorType.PROBS}

    def __init__(self, joint_topk_topp: bool = False, **params: Any) -> None:
        super().__init__(joint_topk_topp=joint_topk_topp, **params)


class TopP(LogitsProcessor):
    """The smallest set of likeliest tokens with a total probability of at least `top_p`."""

    name = "top_p"
    maps = {TensorType.PROBS: TensorType.PROBS}


class MinP(LogitsProcessor):
    """Tokens with a probability of at least `min_p` times that of the likeliest one."""

    name = "min_p"
    maps = {TensorType.PROBS: TensorType.PROBS}


class Sample(LogitsProcessor):
    """Draws a token for each row. The call takes indices, generator, seed and offset, as in
    `sampling`; deterministic is ignored."""

    maps = {TensorType.LOGITS: TensorType.INDICES, TensorType.PROBS: TensorType.INDICES}

    def __init__(self, deterministic: bool = True, **params: Any) -> None:
        super().__init__(deterministic=deterministic, **params)


class LogitsPipe:
    """A sequence of processors.

    processors   LogitsProcessors of this module; TypeError for others.
    compile      True: fuse processors into few calls; False: one call for each processor.
    input_type   kind of the input, required if the first processor takes both kinds.
    custom_fusion_rules, custom_validity_checks
                 must be None: this implementation has no operators for them.

    Raises ValueError for an empty pipe, for processors that do not fit together, and for an unknown
    input type. pipe(x, **parameters) returns a tensor: tokens int32, probabilities float32, or
    logits in the dtype of `x`; ValueError if a parameter is missing or out of range.
    """

    def __init__(
        self,
        processors: Sequence[LogitsProcessor],
        compile: bool = True,
        input_type: Optional[TensorType] = None,
        custom_fusion_rules: Optional[Any] = None,
        custom_validity_checks: Optional[Any] = None,
    ) -> None:
        if not processors:
            raise ValueError("Pipeline cannot be empty")
        if custom_fusion_rules or custom_validity_checks:
            raise ValueError("custom_fusion_rules: custom rules and checks are not supported")
        self.processors = list(processors)
        for processor in self.processors:
            if not isinstance(processor, LogitsProcessor) or not processor.maps:
                raise TypeError(f"processors: {processor!r} is none of gumbel.flashinfer's")
        self._initial_type = input_type or _only_type(self.processors[0])
        self._check_types()
        self.steps: list[list[LogitsProcessor]] = [[p] for p in self.processors]
        if compile:
            self.compile()

    @property
    def initial_type(self) -> TensorType:
        """The kind of the pipe's input."""
        return self._initial_type

    def _check_types(self) -> None:
        kind = self._initial_type
        for index, processor in enumerate(self.processors):
            if kind not in processor.maps:
                raise ValueError(
                    f"Pipeline creation failed: processor {index}, "
                    f"{type(processor).__name__}, does not take {kind}"
                )
            kind = processor.maps[kind]

    def compile(self) -> None:
        """Fuse processors that one call of the library can apply."""
        steps: list[list[LogitsProcessor]] = []
        for index, processor in enumerate(self.processors):
            joint = _is_joint(self.processors[index : index + 3])
            if steps and not joint and _find_options([*steps[-1], processor]) is not None:
                steps[-1].append(processor)
            else:
                steps.append([processor])
        self.steps = steps

    def __repr__(self) -> str:
        names = (" + ".join(type(p).__name__ for p in step) for step in self.steps)
        return f"LogitsPipe([{' -> '.join(names)}])"

    def __call__(self, x: Union[torch.Tensor, TaggedTensor], **parameters: Any) -> torch.Tensor:
        found = x if isinstance(x, TaggedTensor) else TaggedTensor(x, self._initial_type)
        for step in self.steps:
            found = _run_step(step, found, parameters)
        return found.data


def _only_type(processor: LogitsProcessor) -> TensorType:
    if len(processor.maps) > 1:
        raise ValueError(
            f"Pipeline creation failed: {type(processor).__name__} takes LOGITS and PROBS; "
            "pass input_type"
        )
    return next(iter(processor.maps))


def _is_joint(three: Sequence[LogitsProcessor]) -> bool:
    """Whether these are a TopK with joint_topk_topp, a TopP and a Sample."""
    kinds = [type(processor) for processor in three]
    return kinds == [TopK, TopP, Sample] and bool(three[0].params["joint_topk_topp"])


def _find_options(step: Sequence[LogitsProcessor]) -> Optional[tuple[int, int]]:
    """Order and ties of the one call for a step; None: no single call can do it."""
    names = [processor.name for processor in step if processor.name]
    limits = tuple(name for name in names if name in LIMITS)
    if len(set(names)) < len(names):
        return None
    if _is_joint(step):
        return JOINT
    for order, options in _ORDERS.items():
        if limits == tuple(name for name in order if name in limits):
            return options
    return None


def _get_parameter(processor: LogitsProcessor, parameters: dict[str, Any]) -> Any:
    name = processor.name
    value = parameters.get(name, processor.params.get(name))
    if value is None:
        raise ValueError(f"{name}: {type(processor).__name__} requires it")
    if not isinstance(value, torch.Tensor):
        if name == "temperature" and not (isinstance(value, float) and value > 0):
            raise ValueError("temperature: must be a float above 0, or a tensor")
        if name == "min_p" and not 0 < value <= 1:
            raise ValueError(f"min_p: must be in (0, 1], is {value}")
    elif name == "temperature" and value.dim() == 2 and value.shape[1] == 1:
        value = value[:, 0]
    return value


def _run_step(
    step: Sequence[LogitsProcessor], found: TaggedTensor, parameters: dict[str, Any]
) -> TaggedTensor:
    kind = found.type
    for processor in step:
        if kind not in processor.maps:
            raise ValueError(f"{type(processor).__name__}: does not take {kind}")
        kind = processor.maps[kind]
    options = _find_options(step) or PLAIN
    limits = {p.name: _get_parameter(p, parameters) for p in step if p.name}
    rows = read_rows("x", found.data)
    if found.type is TensorType.PROBS:
        rows = rows.float().log()
    if kind is TensorType.INDICES:
        seed, offset, generator, indices = map(
            parameters.get, ("seed", "offset", "generator", "indices")
        )
        drawn = draw_rows(rows, indices, (seed, offset, generator), ROUNDS, options, **limits)
        result = finish_tokens(drawn, indices)
    else:
        given = read_limits(len(rows), rows.device, None, **limits)
        function = "softmax" if kind is TensorType.PROBS else "process_logits"
        result = transform_rows(function, rows, given, options)
        if kind is TensorType.LOGITS:
            result = result.to(found.data.dtype)
    return TaggedTensor(result, kind)

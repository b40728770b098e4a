# SPDX-License-Identifier: Apache-2.0
"""The inputs of a rank's call: its rows of a head, or its columns of the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Optional

import numpy as np

from .._calls.library_call import LogitsSource, read_head, read_logit_options, read_logits
from .._inputs.arrays import import_array, layout_of
from .._inputs.request import Request
from .._inputs.tensors import is_tensor
from .abi import lib


@dataclass
class Shard:
    """Inputs of a rank's call; `name` is the argument name of `inputs`."""

    inputs: Any
    scale: float
    softcap: float
    vocab_size: Optional[int]
    name: ClassVar[str]
    sample: ClassVar[Any]  #: the functions of the library
    verify: ClassVar[Any]

    def read_options(self, first: int) -> dict[str, Any]:
        """The fields shared by heads and logits, for a shard that begins with token `first`."""
        return read_logit_options(self.scale, self.softcap, self.vocab_size, first)

    def read(
        self, first: int, common: dict[str, Any], batch: Optional[int] = None
    ) -> tuple[LogitsSource, Request]:
        """The source and the request of a call; `batch` as in read_head()."""
        raise NotImplementedError


@dataclass
class HeadShard(Shard):
    weight: Any
    bias: Any
    name = "hidden"
    sample = lib.gumbel_group_sample
    verify = lib.gumbel_group_verify

    def read(
        self, first: int, common: dict[str, Any], batch: Optional[int] = None
    ) -> tuple[LogitsSource, Request]:
        shared = self.read_options(first)
        inputs = self.inputs, self.weight, self.bias
        return read_head(*inputs, shared, common, batch=batch, shard=True)


@dataclass
class LogitsShard(Shard):
    name = "logits"
    sample = lib.gumbel_group_sample_logits
    verify = lib.gumbel_group_verify_logits

    def read(
        self, first: int, common: dict[str, Any], batch: Optional[int] = None
    ) -> tuple[LogitsSource, Request]:
        shared, logits = self.read_options(first), import_array("logits", self.inputs)
        if layout_of("logits", logits).shape[1:] != (0,):
            return read_logits(logits, shared, common, batch=batch, shard=True)
        # A rank without tokens: read one column, then set the number of columns to 0.
        shape = (len(logits), 1)
        column = logits.new_zeros(shape) if is_tensor(logits) else np.zeros(shape, np.float32)
        common = {**common, "mask": None}
        source, request = read_logits(column, shared, common, batch=batch, shard=True)
        struct: Any = source[1]
        struct.logits.cols = 0
        return source, request

# SPDX-License-Identifier: Apache-2.0
"""Screens that are cached between texts, and rebuilt after their weights have changed."""

from __future__ import annotations

from typing import Optional

import torch

from ..._calls.screens import Screen

SIDE = 64  # the sample of the weights has SIDE * SIDE elements


def choose_format(device: torch.device) -> str:
    """The format of screens that draws on the device read fastest."""
    is_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
    return "nibbles" if is_hopper else "bytes"


class CachedScreen:
    """The screen of a head's weights, at a constant address.

    On a CPU it is one of bytes, as truncated draws by nibbles take longer there; on a Hopper GPU
    one of nibbles; on other GPUs, which do not draw with nibbles, one of bytes.

    Changes are detected by the version counter of the tensor, which writes through `.data` and by
    other libraries do not advance, and by 4096 weights spread over the tensor.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight
        rows, columns = (
            (torch.arange(SIDE, device=weight.device) * size) // SIDE for size in weight.shape
        )
        self.places = (rows[:, None], columns[None, :])
        self.version, self.sample = self._read_version(), self._read_sample()
        self.screen = Screen(weight, format=choose_format(weight.device))

    def refresh(self, compare: bool = True) -> Screen:
        """The screen of the present weights; without `compare` only the version is checked."""
        version = self._read_version()
        if version != self.version or (compare and not self._is_sample_same()):
            self.screen.update()
            self.version, self.sample = version, self._read_sample()
        return self.screen

    def _is_sample_same(self) -> bool:
        return torch.equal(self._read_sample(), self.sample)

    def _read_version(self) -> Optional[int]:
        return None if self.weight.is_inference() else self.weight._version

    def _read_sample(self) -> torch.Tensor:
        """The bits of the sampled weights, in which NaN equals itself."""
        bits = torch.int32 if self.weight.element_size() == 4 else torch.int16
        return self.weight[self.places].view(bits)

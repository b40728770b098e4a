# SPDX-License-Identifier: Apache-2.0
"""(seed, offset) of FlashInfer's calls as the library's (seed, position)."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch

from .calls import Parameter, Parameters, scalar_parameter, tensor_parameter

Seed = Optional[Union[int, torch.Tensor]]
_MASK = 2**64 - 1


def get_seed_and_offset(
    increment: int,
    generator: Optional[torch.Generator] = None,
    device: Optional[torch.device] = None,
) -> tuple[int, int]:
    """The seed and the offset for a call, from a generator, which is advanced.

    increment    number of random values of the call; rounded up to a multiple of 4.
    generator    a generator of `device`; None: that device's default one.

    A GPU's generator has a counter: it is advanced by `increment`, and the offset is its new value.
    A CPU's generator has none: the seed is its initial seed, and the offset is 63 bits that it
    draws. In both cases manual_seed() determines all following draws.
    """
    place = torch.device("cuda" if device is None else device)
    if generator is None:
        generator = _default_generator(place)
    if generator.device.type == "cpu":
        drawn = torch.empty((), dtype=torch.int64).random_(generator=generator)
        return generator.initial_seed() & _MASK, int(drawn)
    state = generator.get_state()
    seed, offset = state.view(torch.int64).tolist()
    offset += (increment + 3) // 4 * 4
    generator.set_state(torch.tensor([seed, offset], dtype=torch.int64).view(torch.uint8))
    return seed, offset


def _default_generator(place: torch.device) -> torch.Generator:
    if place.type == "cpu":
        return torch.default_generator
    torch.cuda.init()  # type: ignore[no-untyped-call, unused-ignore]
    index = torch.cuda.current_device() if place.index is None else place.index
    return torch.cuda.default_generators[index]


def make_seeds(
    seed: Seed,
    offset: Seed,
    generator: Optional[torch.Generator],
    place: torch.device,
    rows: int,
    increment: int,
) -> Parameters:
    """The library's seed and position of `rows` rows; from the generator if one of them is None."""
    drawn = seed is None or offset is None
    if drawn:
        seed, offset = get_seed_and_offset(increment, generator, place)
    if isinstance(seed, torch.Tensor) != isinstance(offset, torch.Tensor):
        raise ValueError("seed and offset must both be tensors or both be scalars")
    return {
        # A generator's seed does not change, so its constant is cached; a passed seed's is not.
        "seed": _read_uint64("seed", seed, rows, place, kept=drawn),
        "position": _read_uint64("offset", offset, rows, place, kept=False),
    }


def _read_uint64(name: str, value: Any, rows: int, place: torch.device, kept: bool) -> Parameter:
    """A parameter of unsigned 64-bit integers."""
    if not isinstance(value, torch.Tensor):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}: expected an int or a tensor, got {type(value).__name__}")
        return scalar_parameter(value & _MASK, torch.int64, place, kept)
    if value.device != place:
        raise ValueError(f"{name}: must be on {place}, is on {value.device}")
    if value.dtype not in (torch.int64, torch.uint64):
        raise ValueError(f"{name}: must be int64 or uint64, is {value.dtype}")
    if value.dim() != 1:
        raise ValueError(f"{name}: must be 1D, has the shape {tuple(value.shape)}")
    if value.shape[0] not in (1, rows):
        raise ValueError(f"{name}: its length must be 1 or {rows}, is {value.shape[0]}")
    return tensor_parameter(value.contiguous(), rows)

# SPDX-License-Identifier: Apache-2.0
"""Arrays of an object to whose memory the library writes."""

from __future__ import annotations

from typing import Any, ClassVar, Tuple


class FixedArrays:
    """A class whose arrays have values that may change, but cannot be replaced by other arrays."""

    _fixed: ClassVar[Tuple[str, ...]] = ()  # names of the arrays

    def __setattr__(self, name: str, value: Any) -> None:
        kept = self.__dict__.get(name) if name in self._fixed else None
        if kept is not None and value is not kept:  # `rows.position += 1` assigns the same array
            raise AttributeError(
                f"{name}: the array cannot be replaced; change its values, as in {name}[:] = values"
            )
        super().__setattr__(name, value)

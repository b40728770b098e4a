# SPDX-License-Identifier: Apache-2.0
"""Arrays of an object to whose memory the library writes."""

from __future__ import annotations

from typing import Any, ClassVar, Tuple

from .row_state import check_writable


class FixedArrays:
    """A class whose arrays have values that may change, but cannot be replaced by other arrays."""

    _fixed: ClassVar[Tuple[str, ...]] = ()  # names of the arrays, and of objects of such classes

    def __setattr__(self, name: str, value: Any) -> None:
        kept = self.__dict__.get(name) if name in self._fixed else None
        if kept is not None and value is not kept:  # `rows.position += 1` assigns the same array
            raise AttributeError(
                f"{name}: the array cannot be replaced; change its values, as in {name}[:] = values"
            )
        super().__setattr__(name, value)


def check_arrays(owner: FixedArrays) -> None:
    """Raise ValueError if an array of `owner`, or of an object that it keeps, is read-only."""
    for name in owner._fixed:
        value = getattr(owner, name)
        if isinstance(value, FixedArrays):
            check_arrays(value)
        else:
            check_writable(f"{type(owner).__name__.lower()}.{name}", value)

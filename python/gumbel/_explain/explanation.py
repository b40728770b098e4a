# SPDX-License-Identifier: Apache-2.0
"""The result of explain_draw()."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .page import format_page
from .results import DrawStep, to_plain
from .table import format_table


@dataclass(frozen=True)
class DrawExplanation:
    """Explanation of draws. `str()` is a table of 80 columns for a terminal."""

    vocab_size: int  #: V, number of columns of the logits
    steps: tuple[DrawStep, ...]  #: one for each row of the logits

    def __str__(self) -> str:
        return format_table(self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Dicts, lists, str, int, float, bool and None, for json; -inf, inf and NaN are None."""
        return {"vocab_size": self.vocab_size, "steps": [to_plain(step) for step in self.steps]}

    def to_html(self) -> str:
        """One page of HTML without external resources; it also works without JavaScript."""
        return format_page(self.vocab_size, self.steps)

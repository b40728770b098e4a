# SPDX-License-Identifier: Apache-2.0
"""Counts of steps, by how their tokens were drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from vllm.logger import init_logger

logger = init_logger("vllm.gumbel")


@dataclass
class Counts:
    """Steps of this process's workers, each counted once by how its tokens were drawn."""

    fused: int = 0  #: from hidden states; no logits were formed
    logits: int = 0  #: from logits, with all parameters applied by the library
    processed: int = 0  #: from logits that vLLM's own processors changed first
    stock: int = 0  #: by vLLM
    materialised: int = 0  #: deferred products that were computed after all

    @property
    def steps(self) -> int:
        """The number of all steps."""
        return self.fused + self.logits + self.processed + self.stock

    def add(self, name: Optional[str]) -> None:
        """Add one to the count `name`; None: to none."""
        if name is not None:
            setattr(self, name, getattr(self, name) + 1)

    def line(self) -> str:
        """The counts in words."""
        return (
            f"{self.fused} of {self.steps} steps drawn without logits, {self.logits} from logits, "
            f"{self.processed} from logits that vLLM processed, {self.stock} by vLLM"
        )


counts = Counts()
_logged = [0]  # steps at the last line


def log_counts() -> None:
    """Log the counts of this process if a step was drawn since the last line."""
    if counts.steps != _logged[0]:
        _logged[0] = counts.steps
        logger.info("gumbel: %s", counts.line())

# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's samplers under their own names and signatures, drawn by libgumbel.

>>> import gumbel.flashinfer as flashinfer
>>> tokens = flashinfer.sampling.top_k_top_p_sampling_from_logits(logits, 50, 0.95)

The names are those of flashinfer 0.7: `sampling`, `topk` and `logits_processor`, most of them here,
too. Tensors are torch's, on CUDA on the current stream, or on the CPU. What differs from FlashInfer
is what is drawn: exact samples, of noise that resolves to 2^-64, and a row's token does not depend
on its place in the batch where seeds are one a row; see gumbel.flashinfer.sampling.

FlashInfer itself is not needed. Needs torch 2.9 or later. Under torch.compile() the calls break
graphs, as FlashInfer's do; torch.ops.gumbel.* of gumbel.torch do not.
"""

try:
    import torch  # noqa: F401
except ImportError as missing:
    raise ImportError("gumbel.flashinfer needs PyTorch: pip install 'torch>=2.9'") from missing

from . import logits_processor, sampling, topk
from .cake import cake_top_k_top_p_sampling_from_probs
from .sampling import *  # noqa: F403
from .sampling import __all__ as _drawing
from .topk import TopKTieBreak, top_k

__all__ = [
    "TopKTieBreak",
    "cake_top_k_top_p_sampling_from_probs",
    "logits_processor",
    "sampling",
    "top_k",
    "topk",
    *_drawing,
]

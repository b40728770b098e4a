# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's samplers, with their names and signatures, implemented by libgumbel.

>>> import gumbel.flashinfer as flashinfer
>>> tokens = flashinfer.sampling.top_k_top_p_sampling_from_logits(logits, 50, 0.95)

The names are those of flashinfer 0.7: the modules `sampling`, `topk` and `logits_processor`, most
of whose functions are also here. Tensors are torch's, on CUDA (on the current stream) or on the
CPU. Unlike FlashInfer's, samples are exact, with noise that resolves to 2^-64; and with one seed
for each row, a token does not depend on the position of its row in the batch. See
gumbel.flashinfer.sampling.

FlashInfer itself is not required; torch 2.9 or later is. Under torch.compile() the calls break
graphs, as FlashInfer's do; torch.ops.gumbel.* of gumbel.torch do not.
"""

try:
    import torch  # noqa: F401
except ImportError as missing:
    raise ImportError("gumbel.flashinfer requires PyTorch: pip install 'torch>=2.9'") from missing

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

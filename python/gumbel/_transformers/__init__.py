# SPDX-License-Identifier: Apache-2.0
"""The parts of gumbel.transformers. This file checks the version of transformers first."""

try:
    import torch  # noqa: F401
    import transformers
except ImportError as missing:
    raise ImportError(
        "gumbel.transformers requires PyTorch and transformers: "
        "pip install torch 'transformers==5.17.*'"
    ) from missing

SUPPORTED = ("5.16", "5.17")

if ".".join(transformers.__version__.split(".")[:2]) not in SUPPORTED:
    raise ImportError(
        f"gumbel.transformers supports transformers {' and '.join(SUPPORTED)}, "
        f"not {transformers.__version__}"
    )

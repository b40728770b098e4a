# SPDX-License-Identifier: Apache-2.0
"""What gumbel.transformers is made of; which versions it knows is checked here, before all else."""

try:
    import torch  # noqa: F401
    import transformers
except ImportError as missing:
    raise ImportError(
        "gumbel.transformers needs PyTorch and transformers: "
        "pip install torch 'transformers==5.17.*'"
    ) from missing

SUPPORTED = ("5.16", "5.17")

if ".".join(transformers.__version__.split(".")[:2]) not in SUPPORTED:
    raise ImportError(
        f"gumbel.transformers knows transformers {' and '.join(SUPPORTED)}, "
        f"not {transformers.__version__}"
    )

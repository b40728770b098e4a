# SPDX-License-Identifier: Apache-2.0
"""The import name `gumbel` and the distributions that claim it.

The distribution of this package is `libgumbel`. The distribution `gumbel` on PyPI is another
project with the same import name; releases of this package before 0.3 had that name, too. pip
installs both into one folder, where each overwrites files of the other.
"""

import warnings
from importlib import metadata


def warn_of_other_package() -> None:
    """Warn if a distribution named `gumbel` is installed: it claims the same import name."""
    try:
        other = metadata.version("gumbel")
    except metadata.PackageNotFoundError:
        return
    warnings.warn(
        f"the distribution `gumbel` {other} is installed beside libgumbel: both own the import "
        "name `gumbel`, and each may overwrite files of the other. Run `pip uninstall gumbel`, "
        "then `pip install .` at the root of libgumbel's source tree",
        stacklevel=3,
    )

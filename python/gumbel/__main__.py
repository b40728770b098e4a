# SPDX-License-Identifier: Apache-2.0
"""What a C compiler needs to use the package's header and library:

cc program.c $(python -m gumbel --cflags --libs)
"""

import argparse
import shlex

from ._abi import find


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gumbel", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--cflags", action="store_true", help="print the flags to compile with")
    parser.add_argument("--libs", action="store_true", help="print the flags to link with")
    asked = parser.parse_args()
    flags = []
    if asked.cflags:
        flags.append(f"-I{find('include/gumbel/gumbel.h').parents[1]}")
    if asked.libs:
        folder = find("libgumbel.so").parent
        flags += [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lgumbel"]
    if not flags:
        parser.error("--cflags, --libs or both")
    print(shlex.join(flags))


if __name__ == "__main__":
    main()

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: compare_digests.sh COMMAND COMMAND
#
# Run two commands and compare what they print, as in
#   compare_digests.sh "cat tests/agreement/agreement_digests.txt" \
#       "build/dev/tests/agreement_digest avx2"
#   compare_digests.sh "build/dev/tests/agreement_digest reference" \
#       "qemu-aarch64-static -L /usr/aarch64-linux-gnu build/aarch64/tests/agreement_digest neon"
# Exits 0 where both succeed and agree in every line.
set -eu

if [ $# -ne 2 ]; then
    echo "usage: compare_digests.sh COMMAND COMMAND" >&2
    exit 2
fi
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

sh -c "$1" > "$folder/one"
sh -c "$2" > "$folder/other"
lines=$(wc -l < "$folder/one")
if [ "$lines" -eq 0 ]; then
    echo "nothing was printed by: $1" >&2
    exit 1
fi
if ! diff "$folder/one" "$folder/other"; then
    echo "differ: $1 (<) and $2 (>)" >&2
    exit 1
fi
echo "$lines lines agree: $1 and $2"

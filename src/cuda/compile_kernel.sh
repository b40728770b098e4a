#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: compile_kernel.sh STORE IMAGE SOURCE ROOT "TARGET..." NVCC FLAG...
#
# Make IMAGE of the kernels in SOURCE for targets as sm_80 or compute_90 (PTX), and IMAGE.d of the
# files that it is made from. STORE keeps images by a digest of all that they depend on: compiler,
# flags, and what the preprocessor leaves of SOURCE for each architecture, but for comments, layout
# and the library's prototypes, which no kernel can call. What STORE has is not compiled again, and
# an IMAGE that is right stays as it is, so that nothing is linked anew. ROOT is where the sources
# lie; the digest does not depend on it.
set -euo pipefail
store=$1 image=$2 source=$3 root=$4
read -ra targets <<<"$5"
shift 5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

generate=()
for target in "${targets[@]}"; do
    generate+=(-gencode "arch=compute_${target#*_},code=$target")
done
for architecture in $(printf '%s\n' "${targets[@]#*_}" | sort -u); do
    "$@" -E -DGUMBEL_SHARED "-gencode=arch=compute_$architecture,code=compute_$architecture" \
        "$source"
done >"$work/text"

# Line markers tell the files; a prototype begins with its attribute, as GUMBEL_SHARED has it.
awk -F '"' -v image="$image" '
    /^# [0-9]/ && $2 !~ /^<|\/$/ && !seen[$2]++ { gsub(/ /, "\\ ", $2); files = files " " $2 }
    END { print image ":" files }' "$work/text" >"$image.d"
digest=$(
    {
        "$1" --version
        echo "${targets[*]} ${*//"$root"/}"
        awk '/^# [0-9]/ { next }
            /^__attribute__\(\(visibility\("default"\)\)\)/ { prototype = 1 }
            { gsub(/^[ \t]+|[ \t]+$/, "") }
            $0 != "" && !prototype
            /;$/ { prototype = 0 }' "$work/text"
    } | sha256sum | cut -c 1-32
)

# A file appears under its name when it is whole.
name=$(basename "$source" .cu)
kept=$store/$name-$digest.fatbin
mkdir -p "$store"
if [ -f "$kept" ]; then
    touch "$kept"
else
    "$@" "${generate[@]}" --threads ${#targets[@]} -fatbin -o "$kept.$$" "$source"
    mv "$kept.$$" "$kept"
fi
if ! cmp -s "$kept" "$image"; then
    cp "$kept" "$image.$$"
    mv "$image.$$" "$image"
fi
find "$store" -name "$name-*" -mtime +30 -delete

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: compile_kernel.sh STORE IMAGE SOURCE ROOT "TARGET..." NVCC FLAG...
#
# Compile the kernels of SOURCE to IMAGE, for targets such as sm_80 or compute_90 (PTX), and list
# the files that it depends on in IMAGE.d. STORE caches images by a digest of compiler, flags, and
# the preprocessed SOURCE for each architecture, without comments, white space, and the library's
# prototypes, which no kernel can call. A cached image is not compiled again, and an unchanged
# IMAGE is not written, so that nothing is relinked. ROOT holds the sources. The digest depends
# neither on its place nor on the text of headers outside of it, so that other machines can use the
# STORE: CUDA's headers are those of the compiler, and kernels use only types and constants of the
# C library.
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

# Line markers name the files; GUMBEL_SHARED starts each prototype with an attribute.
awk -F '"' -v image="$image" '
    /^# [0-9]/ && $2 !~ /^<|\/$/ && !seen[$2]++ { gsub(/ /, "\\ ", $2); files = files " " $2 }
    END { print image ":" files }' "$work/text" >"$image.d"
flags=${*:2}
digest=$(
    {
        "$1" --version
        echo "${targets[*]} ${flags//"$root"/}"
        awk -F '"' -v root="$root/" '/^# [0-9]/ { own = index($2, root) == 1; next }
            !own { next }
            /^__attribute__\(\(visibility\("default"\)\)\)/ { prototype = 1 }
            { gsub(/[ \t]/, "") }
            !prototype { printf "%s", $0 }
            /;$/ { prototype = 0 }' "$work/text"
    } | sha256sum | head -c 32
)

# Rename complete files only, so that no reader sees a partial one.
name=$(basename "$source" .cu)
cached=$store/$name-$digest.fatbin
mkdir -p "$store"
if [ -f "$cached" ]; then
    touch "$cached"
else
    "$@" "${generate[@]}" --threads ${#targets[@]} -fatbin -o "$cached.$$" "$source"
    mv "$cached.$$" "$cached"
fi
if ! cmp -s "$cached" "$image"; then
    cp "$cached" "$image.$$"
    mv "$image.$$" "$image"
fi
find "$store" -name "$name-*" -mtime +30 -delete

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: command_libraries.sh SOURCES
#
# The command configures with the libraries of GUMBEL_DEPS alone, without pkg-config; a folder that
# lacks one is refused by name.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/deps/include" "$folder/deps/lib"
touch "$folder/deps/lib/libjansson.a" "$folder/deps/lib/libpcre2-8.a"

configure() {
    cmake -S "$1" -B "$folder/build" -G Ninja -DGUMBEL_CUDA=OFF -DGUMBEL_BUILD_TESTS=OFF \
        -DGUMBEL_DEPS="$folder/deps" -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON >"$folder/log" 2>&1
}

if configure "$1"; then
    echo "a folder without utf8proc was accepted"
    exit 1
fi
missing=$folder/deps/lib/libutf8proc.a
tr -s '\n ' ' ' <"$folder/log" | grep -q "there is no $missing; .script/fetch-deps"
touch "$folder/deps/lib/libutf8proc.a"
configure "$1" || { cat "$folder/log"; exit 1; }
grep -q "$folder/deps/lib/libutf8proc.a" "$folder/build/build.ninja"

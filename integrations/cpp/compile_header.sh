#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: compile_header.sh COMPILER
#
# Compile gumbel.hpp and the example as C++17 and C++20, with and without exceptions; warnings are
# errors. Compile the tests as C++17 without exceptions, or with GUMBEL_NIGHTLY=1 in all four ways:
# the build compiles them as C++17 with exceptions and as C++20 without. Exits 77 if COMPILER is not
# installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v "$1" >/dev/null; then
    echo "$1 is not installed"
    exit 77
fi
all='#include <gumbel/gumbel.hpp>
template class gumbel::basic_device<gumbel::as_values>;'
for standard in 17 20; do
    flags=(-std=c++$standard -fsyntax-only -Iinclude -Wall -Wextra -Wshadow -Werror)
    flags+=(-pedantic-errors)
    "$1" "${flags[@]}" docs/examples/engine.cpp
    flags+=(-DGUMBEL_UNSTABLE)
    "$1" "${flags[@]}" -x c++ - <<<"$all
template class gumbel::basic_device<gumbel::as_exceptions>;"
    "$1" "${flags[@]}" -fno-exceptions -x c++ - <<<"$all"
    for exceptions in -fexceptions -fno-exceptions; do
        [ $standard$exceptions = 17-fno-exceptions ] || [ "${GUMBEL_NIGHTLY-}" ] || continue
        for test in draws steps recent refusals; do
            "$1" "${flags[@]}" $exceptions integrations/cpp/test_cpp_$test.cpp
        done
    done
    "$1" "${flags[@]}" integrations/cpp/test_cpp_exceptions.cpp
done

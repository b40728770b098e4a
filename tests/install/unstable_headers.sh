#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: unstable_headers.sh COMPILER INCLUDE
#
# Unstable declarations need GUMBEL_UNSTABLE; an include without it fails with a message that names
# the macro.
set -eu

compiles() { # definition, program
    printf '%s\n#include <gumbel/drafts.h>\n%s\n' "$1" "$2" |
        "$compiler" -x c -std=c17 -fsyntax-only -I "$include" - 2>&1
}

compiler=$1 include=$2
rule='int rule = GUMBEL_RULE_REJECTION + GUMBEL_RULE_BLOCK;'
for program in '#include <gumbel/screen.h>' '#include <gumbel/dist.h>' "$rule"; do
    compiles '#define GUMBEL_UNSTABLE' "$program"
    if message=$(compiles '' "$program"); then
        echo "this compiles without GUMBEL_UNSTABLE: $program"
        exit 1
    fi
    case $program,$message in
    '#'*,*'define GUMBEL_UNSTABLE to use it'* | int*) ;;
    *)
        echo "the compiler's message does not name the macro: $message"
        exit 1
        ;;
    esac
done

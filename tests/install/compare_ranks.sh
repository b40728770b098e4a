#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: compare_ranks.sh PROGRAM
#
# The example prints the same with one rank and with four, except for the traffic.
set -eu
command -v mpirun >/dev/null || exit 77
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
options=
if mpirun --version 2>&1 | grep -q "Open MPI"; then options=--oversubscribe; fi
one=$(mpirun $options -n 1 "$1" | grep "^step")
four=$(mpirun $options -n 4 "$1" | grep "^step")
[ "$(printf '%s\n' "$one" | wc -l)" -eq 12 ]
[ "$one" = "$four" ]

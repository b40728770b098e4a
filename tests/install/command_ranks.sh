#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: command_ranks.sh COMMAND MODEL
#
# The installed command finds the installed libgumbel_mpi from where it lies: two ranks write the
# text of one. Exits 77 without an MPI.
set -eu
command -v mpirun >/dev/null || exit 77
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
options=
if mpirun --version 2>&1 | grep -q "Open MPI"; then options=--oversubscribe; fi
set -- "$1" generate --model "$2" --prompt "In the beginning" --temperature 0.8 --seed 1 \
    --max-tokens 24
unset LD_LIBRARY_PATH
cd / # nothing is found by the folder that it runs in
one=$("$@")
two=$(mpirun $options -n 2 "$@" --group mpi)
if [ "$one" != "$two" ]; then
    printf 'one rank:  %s\ntwo ranks: %s\n' "$one" "$two"
    exit 1
fi

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: run_mpi.sh PROGRAM RANKS WAY [TRIES]
#
# Run mpi_ranks under mpirun: WAY is "agree ROUNDS", "differ", "hang" or "kill". Of the last two the
# lines of the ranks that are left are counted, as mpirun has its own view of a rank that ends so.
# With GUMBEL_NIGHTLY several tries are 100. Exit 77 where there is no mpirun, 1 where a rank saw
# something else.
set -u
program=$1 ranks=$2 way=$3 tries=${4-1}
if [ "${GUMBEL_NIGHTLY-}" ] && [ "$tries" -gt 1 ]; then tries=100; fi
command -v mpirun >/dev/null || { echo "skipped: no mpirun here"; exit 77; }
# Containers' builds run as root.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if mpirun --version 2>&1 | grep -q "Open MPI"; then
    options="--oversubscribe --enable-recovery"
else
    options="-disable-auto-cleanup"
    case $way in
    kill) echo "skipped: MPICH's launcher ends the other ranks, too"; exit 77 ;;
    esac
fi
try=0
while [ "$try" -lt "$tries" ]; do
    try=$((try + 1))
    # shellcheck disable=SC2086
    lines=$(timeout 120 mpirun $options -n "$ranks" "$program" $way 2>/dev/null)
    ended=$?
    well=$(printf '%s\n' "$lines" | grep -c ": well ")
    case $way in
    agree*) [ "$ended" -eq 0 ] ;;
    differ) [ "$ended" -eq 0 ] && [ "$well" -eq "$ranks" ] ;;
    *) [ "$well" -eq $((ranks - 1)) ] ;;
    esac
    wrong=$?
    if [ "$wrong" -ne 0 ] || printf '%s\n' "$lines" | grep -q WRONG; then
        printf 'try %s of %s: mpirun ended with %s\n%s\n' "$try" "$tries" "$ended" "$lines"
        exit 1
    fi
done
echo "$tries of $tries tries of $way with $ranks ranks"

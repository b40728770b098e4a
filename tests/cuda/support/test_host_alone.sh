#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: test_host_alone.sh DRIVERS PROGRAM [TEST]
#
# Run tests of the GPU on the driver that does nothing (null_driver.c), of which DRIVERS is the
# folder. What they find wrong is no matter, since no kernel runs; that they end by themselves is: a
# signal means that the host read or wrote what lies on the device.
drivers=$1
shift
said=$(LD_LIBRARY_PATH=$drivers "$@" 2>&1)
code=$?
tail -n 3 <<<"$said"
if [ $code -gt 1 ]; then
    echo "it ended with $code"
    exit 1
fi

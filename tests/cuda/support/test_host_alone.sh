#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: test_host_alone.sh DRIVERS PROGRAM [TEST]
#
# Run GPU tests on the driver without a GPU (null_driver.c) in the folder DRIVERS. Failed
# comparisons are ignored, as no kernel runs. A signal fails the test, as the host accessed device
# memory, and so does die(), as a test cannot go on.
drivers=$1
shift
output=$(LD_LIBRARY_PATH=$drivers "$@" 2>&1)
code=$?
tail -n 3 <<<"$output"
if [ $code -gt 1 ]; then
    echo "it ended with $code"
    exit 1
fi

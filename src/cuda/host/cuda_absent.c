/* SPDX-License-Identifier: Apache-2.0
 *
 * Stands in for the CUDA backend in builds without nvcc.
 */
#include "core/fail.h"
#include "cuda/host/cuda_open.h"

gumbel_status cuda_open(const gumbel_device_options *options, gumbel_device **device,
                        gumbel_error *error)
{
    *device = NULL;
    return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.device",
                       "device '%.64s' is not to be had: this build has no CUDA kernels",
                       options->device);
}

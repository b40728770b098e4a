/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_open() of builds without nvcc.
 */
#include "core/fail.h"
#include "cuda/open/cuda_open.h"

gumbel_status cuda_open(const gumbel_device_options *options, gumbel_device **device,
                        gumbel_error *error)
{
    *device = NULL;
    return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.device",
                       "device '%.64s' is not supported: this build has no CUDA kernels; build it "
                       "where nvcc 12.3 or later is found, without GUMBEL_CUDA=OFF",
                       options->device);
}

const char *cuda_architectures(void) { return ""; }

const char *cuda_find_architecture(const char *kernels, int32_t capability)
{
    (void)kernels, (void)capability;
    return "";
}

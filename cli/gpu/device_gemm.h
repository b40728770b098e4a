/* SPDX-License-Identifier: Apache-2.0
 *
 * cuBLAS, loaded at run time where it is installed: the product that writes logits, for comparison
 * alone. device_driver_use() comes first; what cuBLAS refuses ends the program (options.h).
 */
#ifndef GUMBEL_CLI_DEVICE_GEMM_H
#define GUMBEL_CLI_DEVICE_GEMM_H

#include "gumbel/gumbel.h"

struct device_gemm;

/* NULL where there is no cuBLAS. */
struct device_gemm *device_gemm_open(void);
void device_gemm_close(struct device_gemm *gemm);

/* The file that was loaded, as "libcublas.so.13". */
const char *device_gemm_library(const struct device_gemm *gemm);

/* Queue out[b, i] = dot(weight[i], hidden[b]), summed in float32; all three of one dtype, rows
 * without gaps, in device memory; out is [hidden.rows, weight.rows]. */
void device_gemm_queue(struct device_gemm *gemm, gumbel_tensor hidden, gumbel_tensor weight,
                       void *out, void *stream);

#endif

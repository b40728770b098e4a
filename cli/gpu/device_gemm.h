/* SPDX-License-Identifier: Apache-2.0
 *
 * cuBLAS, loaded at run time if installed: the product that writes logits, for comparison. Call
 * device_driver_use() first; an error of cuBLAS ends the program (options.h).
 */
#ifndef GUMBEL_CLI_DEVICE_GEMM_H
#define GUMBEL_CLI_DEVICE_GEMM_H

#include "gumbel/gumbel.h"

struct device_gemm;

/* NULL without cuBLAS. */
struct device_gemm *device_gemm_open(void);
void device_gemm_close(struct device_gemm *gemm);

/* The name of the loaded file, such as "libcublas.so.13". */
const char *device_gemm_library(const struct device_gemm *gemm);

/* Queues out[b, i] = dot(weight[i], hidden[b]), summed in float32; all three have one dtype,
 * contiguous rows and device memory; out is [hidden.rows, weight.rows]. */
void device_gemm_queue(struct device_gemm *gemm, gumbel_tensor hidden, gumbel_tensor weight,
                       void *out, void *stream);

#endif

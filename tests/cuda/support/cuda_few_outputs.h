/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that request few outputs, which other kernels serve; and heads whose products are exact, so
 * that logits have the CPU's bits.
 */
#ifndef TESTS_CUDA_FEW_OUTPUTS_H
#define TESTS_CUDA_FEW_OUTPUTS_H

#include "cuda_requests.h"

/* Draws on both devices with tokens, statuses and scores, and log-probabilities if `parts` has
 * them; compares. Frees the request. */
void compare_some(request *req, int fused, outcome_parts parts);
/* compare_some() without log-probabilities. */
void compare_tokens(request *req, int fused);

/* Small multiples of a power of two: products are exact in any order of sums, and often equal. The
 * request owns the data. */
gumbel_tensor make_exact(request *req, gumbel_dtype dtype, int64_t rows, int64_t cols,
                         uint64_t seed);
/* Gives a request a head whose product is exact. */
void make_exact_head(request *req, gumbel_dtype dtype, int64_t size);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of fused_sm90.cu for float16.
 */
#define SM90_HALF
#include "cuda/fused/hopper/fused_sm90.cu"
#undef SM90_HALF

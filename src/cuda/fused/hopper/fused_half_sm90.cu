/* SPDX-License-Identifier: Apache-2.0
 *
 * The float16 kernels of fused_sm90.cu, in a compilation of their own: the two are the slowest to
 * compile, and run side by side.
 */
#define SM90_HALF
#include "cuda/fused/hopper/fused_sm90.cu"
#undef SM90_HALF

/* SPDX-License-Identifier: Apache-2.0
 *
 * The float16 kernels of fused_sm90.cu, compiled separately: the two files take longest to compile,
 * and are compiled in parallel.
 */
#define SM90_HALF
#include "cuda/fused/hopper/fused_sm90.cu"
#undef SM90_HALF

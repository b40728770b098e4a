// SPDX-License-Identifier: Apache-2.0
//
// The kernels are included after the stand-ins for the hardware's intrinsics.
#include "ptx_emulated.h"
#include "wgmma_emulated.h"

#include "screen_ptx_emulated.h"

extern "C" {
#include "maths/screen_bound.h"
}

#include "cuda/fused/allowed/allowed_product.cu"

#include "ctas.h"
#include "launch_allowed.h"

namespace
{

void product_body(const void *argument)
{
    const cuda_allowed_params &s = *(const cuda_allowed_params *)argument;
    if (s.call.problem.weight.dtype == GUMBEL_FLOAT16)
        gumbel_store_allowed_f16(s);
    else
        gumbel_store_allowed_bf16(s);
}

} // namespace

void emulate_allowed_product(const cuda_allowed_params &s, int64_t ctas, uint64_t *random,
                             const char *what)
{
    run_ctas(product_body, &s,
             {ctas, 1, CUDA_SCREEN_SCORE_THREADS, CUDA_ALLOWED_PRODUCT_BYTES, memories}, random,
             what);
}

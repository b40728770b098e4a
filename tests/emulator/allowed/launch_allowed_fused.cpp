// SPDX-License-Identifier: Apache-2.0
//
// The kernels are included after the stand-ins for the hardware's intrinsics.
#include "ptx_emulated.h"
#include "wgmma_emulated.h"

#include "screen_ptx_emulated.h"

#include "cuda/fused/allowed/allowed_fused.cu"

#include "ctas.h"
#include "launch_allowed.h"

namespace
{

void fused_body(const void *argument)
{
    const cuda_allowed_draw_params &s = *(const cuda_allowed_draw_params *)argument;
    if (s.call.problem.weight.dtype == GUMBEL_FLOAT16)
        gumbel_draw_allowed_fused_f16(s);
    else
        gumbel_draw_allowed_fused_bf16(s);
}

} // namespace

void emulate_allowed_fused(const cuda_allowed_draw_params &s, uint64_t *random, const char *what)
{
    const int64_t groups = (s.call.problem.batch + CUDA_SCREEN_GROUP - 1) / CUDA_SCREEN_GROUP;
    run_ctas(fused_body, &s,
             {groups * s.call.splits, 1, CUDA_ALLOWED_THREADS, CUDA_ALLOWED_FUSED_BYTES, memories},
             random, what);
}

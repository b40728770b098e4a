// SPDX-License-Identifier: Apache-2.0
//
// The kernel is included after the stand-ins for the hardware's intrinsics.
#include "ptx_emulated.h"

#include "cuda/truncated/few/draw_allowed.cu"

#include "ctas.h"
#include "launch_allowed.h"

namespace
{

void draw_body(const void *argument) { gumbel_draw_allowed(*(const cuda_params *)argument); }

} // namespace

void emulate_draw_allowed(const cuda_params &p, uint64_t *random, const char *what)
{
    const gumbel_problem &q = p.problem;
    const int64_t samples = q.sampling.num_samples;
    const int64_t groups = (samples + CUDA_LOGITS_SAMPLES - 1) / CUDA_LOGITS_SAMPLES;
    run_ctas(
        draw_body, &p,
        {p.splits * q.batch * groups, 1, CUDA_TRUNCATED_THREADS, CUDA_ALLOWED_DRAW_BYTES, memories},
        random, what);
}

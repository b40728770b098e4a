// SPDX-License-Identifier: Apache-2.0
//
// The kernels are included after the stand-ins for the hardware's intrinsics.
#include "ptx_emulated.h"

#include "cuda/logits/logits.cu"

#include "ctas.h"
#include "launch_logits.h"

namespace
{

using kernel = void (*)(cuda_params);

#define KERNELS_OF(dtype)                                                                          \
    {                                                                                              \
        {gumbel_draw_logits_##dtype, gumbel_draw_logits_##dtype##_noise},                          \
        {                                                                                          \
            gumbel_draw_logits_##dtype##_mass, gumbel_draw_logits_##dtype##_noise_mass             \
        }                                                                                          \
    }

/* [dtype, from GUMBEL_FLOAT32 on][with mass][noise given] */
const kernel kernels[][2][2] = {KERNELS_OF(f32), KERNELS_OF(f16), KERNELS_OF(bf16)};
const kernel kernels_edited[] = {gumbel_draw_logits_f32_edited, gumbel_draw_logits_f16_edited,
                                 gumbel_draw_logits_bf16_edited};
static_assert(GUMBEL_FLOAT16 == GUMBEL_FLOAT32 + 1 && GUMBEL_BFLOAT16 == GUMBEL_FLOAT32 + 2,
              "the tables' order");

void logits_body(const void *argument)
{
    const cuda_params &p = *(const cuda_params *)argument;
    const gumbel_problem &q = p.problem;
    const int dtype = q.logits.dtype - GUMBEL_FLOAT32;
    if (q.features)
        kernels_edited[dtype](p);
    else
        kernels[dtype][q.with_mass != 0][q.sampling.noise != nullptr](p);
}

} // namespace

void emulate_logits(const cuda_params &p, uint64_t *random, const char *what)
{
    const gumbel_problem &q = p.problem;
    const int64_t samples = q.sampling.num_samples;
    const int64_t groups = (samples + CUDA_LOGITS_SAMPLES - 1) / CUDA_LOGITS_SAMPLES;
    const size_t bytes =
        (size_t)cuda_logits_shared_bytes(q.with_mass, p.split_size, q.sampling.num_samples);
    run_ctas(logits_body, &p,
             {p.splits * q.batch * groups, 1, CUDA_LOGITS_THREADS, bytes, memories}, random, what);
}

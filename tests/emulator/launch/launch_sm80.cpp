// SPDX-License-Identifier: Apache-2.0
//
// The kernels are included after the stand-ins for the hardware's intrinsics.
#include "ptx_emulated.h"
#include "mma_sm80_emulated.h"

#include "cuda/fused/portable/fused_fallback_sm80.cu"
#undef KERNEL
#undef KERNELS
#include "cuda/fused/portable/fused_sm80.cu"
#undef KERNEL
#undef KERNELS
#include "cuda/fused/portable/fused_wide_sm80.cu"

#include "ctas.h"
#include "launch_sm80.h"

namespace
{

using kernel = void (*)(cuda_params);

#define KERNELS_OF(dtype)                                                                          \
    {                                                                                              \
        gumbel_fused_sm80_##dtype##_8, gumbel_fused_sm80_##dtype##_16,                             \
            gumbel_fused_sm80_##dtype##_32, gumbel_fused_wide_sm80_##dtype##_128_64,               \
            gumbel_fused_wide_sm80_##dtype##_64_128, gumbel_fused_wide_sm80_##dtype##_64_64        \
    }
const kernel kernels[2][kSm80Kernels] = {KERNELS_OF(bf16), KERNELS_OF(f16)};

struct sm80_launch {
    const cuda_params &params;
    int kernel;
};

void sm80_body(const void *argument)
{
    const sm80_launch &own = *(const sm80_launch *)argument;
    kernels[own.params.problem.weight.dtype == GUMBEL_FLOAT16][own.kernel](own.params);
}

/* A launch of the full pass after a draw with a screen. */
struct fallback_launch {
    const cuda_params &params;
    cuda_screen_state *state;
    uint32_t last;
};

#define FALLBACK_KERNELS(dtype)                                                                    \
    {                                                                                              \
        gumbel_fallback_sm80_##dtype##_8, gumbel_fallback_sm80_##dtype##_16,                       \
            gumbel_fallback_sm80_##dtype##_32                                                      \
    }

void fallback_body(const void *argument)
{
    static void (*const fallbacks[2][CUDA_SCREEN_SM80_FALLBACK_WIDTHS])(
        cuda_params, cuda_screen_state *, uint32_t) = {FALLBACK_KERNELS(bf16),
                                                       FALLBACK_KERNELS(f16)};
    const fallback_launch &own = *(const fallback_launch *)argument;
    const gumbel_problem &q = own.params.problem;
    fallbacks[q.weight.dtype == GUMBEL_FLOAT16][cuda_sm80_width_for(q.batch)](own.params, own.state,
                                                                              own.last);
}

int count_groups(const gumbel_problem &q, int kernel)
{
    const int n = emulated_sm80_columns(kernel);
    return kernel < kNarrowKernels ? 1 : ((int)q.batch + n - 1) / n;
}

} // namespace

int emulated_sm80_columns(int kernel)
{
    return kernel < kNarrowKernels ? cuda_sm80_widths[kernel]
                                   : cuda_wide_kernels[kernel - kNarrowKernels].columns;
}

bool emulated_sm80_serves(int kernel, const gumbel_problem &q)
{
    const int n = emulated_sm80_columns(kernel);
    return n * q.sampling.num_samples <= CUDA_SM80_STATES &&
           q.batch <= n * (kernel < kNarrowKernels ? 1 : CUDA_WIDE_GROUPS_MAX);
}

void prepare_sm80(cuda_params *p, int kernel, int ctas, uint64_t *random)
{
    const gumbel_problem &q = p->problem;
    const int64_t unit = kernel < kNarrowKernels ? CUDA_SM80_WARP_TILE : CUDA_WIDE_WARP_TILE;
    const int64_t units = (q.end_token - q.first_token / unit * unit + unit - 1) / unit;
    p->splits = (int32_t)min(units, (int64_t)ctas);
    if (kernel < kNarrowKernels)
        return;
    const int most = cuda_wide_stages(cuda_wide_kernels[kernel - kNarrowKernels],
                                      q.sampling.num_samples, q.with_mass, kSm80SharedBytes);
    p->stages = CUDA_WIDE_STAGES_MIN +
                (int)random_below(random, (uint32_t)(most - CUDA_WIDE_STAGES_MIN + 1));
}

void emulate_sm80(const cuda_params &p, int kernel, uint64_t *random, const char *what)
{
    const gumbel_problem &q = p.problem;
    const int n = emulated_sm80_columns(kernel), samples = q.sampling.num_samples;
    const bool narrow = kernel < kNarrowKernels;
    const size_t bytes =
        (size_t)(narrow ? cuda_sm80_shared_bytes(n, samples, q.with_mass, 0)
                        : cuda_wide_bytes(cuda_wide_kernels[kernel - kNarrowKernels], samples,
                                          q.with_mass, p.stages));
    const sm80_launch own = {p, kernel};
    run_ctas(sm80_body, &own,
             {p.splits * count_groups(q, kernel), 1, narrow ? CUDA_SM80_THREADS : CUDA_WIDE_THREADS,
              bytes, memories},
             random, what);
}

void emulate_fallback_sm80(const cuda_params &p, cuda_screen_state *state, uint32_t last,
                           uint64_t *random, const char *what)
{
    const int n = cuda_sm80_widths[cuda_sm80_width_for(p.problem.batch)];
    const fallback_launch own = {p, state, last};
    run_ctas(fallback_body, &own,
             {p.splits, 1, CUDA_SM80_THREADS,
              (size_t)cuda_sm80_shared_bytes(n, p.problem.sampling.num_samples, 0, 0), memories},
             random, what);
}

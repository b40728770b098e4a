// SPDX-License-Identifier: Apache-2.0
//
// The kernels are included after the stand-ins for the hardware's intrinsics.
#include "ptx_emulated.h"
#include "wgmma_emulated.h"

#include "cuda/fused/hopper/fused_half_sm90.cu"
#include "cuda/fused/hopper/fused_sm90.cu"
#include "cuda/fused/portable/finish.cu"

#include "ctas.h"
#include "launch_sm90.h"

extern "C" {
#include "validate/validate.h"
#include "outcome.h"
}

#include <stdlib.h>

#include <algorithm>

namespace
{

CUtensorMap map_of(const gumbel_tensor &t, int box)
{
    return {(const uint16_t *)t.data, t.rows, t.cols, t.stride, box};
}

template <class call> using kernel_of_call = void (*)(call, CUtensorMap, CUtensorMap);
template <cuda_sm90_case kind> using kernel = kernel_of_call<sm90_call<kind>>;

#define KERNELS_OF(dtype, kind)                                                                    \
    {                                                                                              \
        gumbel_fused_sm90_##dtype##_8_##kind, gumbel_fused_sm90_##dtype##_16_##kind,               \
            gumbel_fused_sm90_##dtype##_32_##kind, gumbel_fused_sm90_##dtype##_64_##kind,          \
            gumbel_fused_sm90_##dtype##_128_##kind                                                 \
    }
#define TABLE(KIND, kind)                                                                          \
    const kernel<KIND> kernels_##kind[2][CUDA_SM90_WIDTHS] = {KERNELS_OF(bf16, kind),              \
                                                              KERNELS_OF(f16, kind)}
TABLE(CUDA_SM90_PLAIN, plain);
TABLE(CUDA_SM90_PLAIN_MASS, plain_mass);
TABLE(CUDA_SM90_STORED, stored);
TABLE(CUDA_SM90_ANY, any);
const kernel_of_call<sm90_statistics_call> kernels_statistics[2][CUDA_SM90_WIDTHS] = {
    KERNELS_OF(bf16, statistics), KERNELS_OF(f16, statistics)};
#define NARROW_OF(dtype)                                                                           \
    {                                                                                              \
        gumbel_fused_sm90_##dtype##_8_both, gumbel_fused_sm90_##dtype##_16_both,                   \
            gumbel_fused_sm90_##dtype##_32_both, gumbel_fused_sm90_##dtype##_64_both               \
    }
const kernel<CUDA_SM90_BOTH> kernels_both[2][CUDA_SM90_WIDTHS] = {NARROW_OF(bf16), NARROW_OF(f16)};

template <cuda_sm90_case kind>
sm90_call<kind> call_of(const emulated_launch &own, sm90_call<kind> *)
{
    return {own.params};
}

sm90_statistics_call call_of(const emulated_launch &own, sm90_statistics_call *)
{
    return {{own.params}, own.statistics};
}

template <class call>
void run_kernel(const emulated_launch &own,
                const kernel_of_call<call> (&kernels)[2][CUDA_SM90_WIDTHS])
{
    const gumbel_problem &q = own.params.problem;
    const int width = cuda_sm90_widths[own.width];
    kernels[q.weight.dtype == GUMBEL_FLOAT16][own.width](
        call_of(own, (call *)nullptr),
        map_of(q.weight, CUDA_SM90_TILE / (own.params.paired ? 2 : 1)),
        map_of(q.hidden, width / CUDA_SM90_CLUSTER(width)));
}

void fused_body(const void *argument)
{
    const emulated_launch &own = *(const emulated_launch *)argument;
    const cuda_params &p = own.params;
    cuda_sm90_case kind =
        cuda_sm90_case_of(&p.problem, p.logits_out != nullptr, p.also_draw, p.multiply_only);
    if (kind == CUDA_SM90_STORED)
        run_kernel(own, kernels_stored);
    else if (kind == CUDA_SM90_BOTH)
        run_kernel(own, kernels_both);
    else if (own.any || kind == CUDA_SM90_ANY)
        run_kernel(own, kernels_any);
    else if (kind == CUDA_SM90_STATISTICS)
        run_kernel(own, kernels_statistics);
    else if (kind == CUDA_SM90_PLAIN)
        run_kernel(own, kernels_plain);
    else
        run_kernel(own, kernels_plain_mass);
}

void finish_body(const void *argument)
{
    const emulated_launch &own = *(const emulated_launch *)argument;
    if (own.statistics)
        gumbel_finish_statistics({own.params, own.statistics});
    else
        gumbel_finish_rows(own.params);
}

void run(const emulated_launch &own, void (*body)(const void *), int64_t ctas, int cluster,
         int threads)
{
    run_ctas(body, &own, {ctas, cluster, threads, CUDA_SM90_SHARED_BYTES, memories}, own.random,
             own.what);
}

} // namespace

int emulated_width_for(int64_t batch)
{
    return batch > CUDA_SM90_WIDEST ? kPairedWidth : cuda_sm90_width_for(batch);
}

int emulated_rows(int width)
{
    return width == kPairedWidth ? CUDA_SM90_PAIR_ROWS : cuda_sm90_widths[width];
}

int emulated_width(int64_t batch, int samples, uint64_t *random)
{
    int width = emulated_width_for(batch), widest = width;
    while (widest < kPairedWidth && emulated_rows(widest + 1) <= cuda_sm90_max_rows(samples))
        widest++;
    return width + (int)random_below(random, (uint32_t)(widest - width + 1));
}

emulated_launch emulated_launch_of(const gumbel_head &head, const gumbel_sampling &sampling,
                                   bool with_mass, int width, int ctas, uint64_t *random,
                                   const char *what)
{
    emulated_launch own = {};
    gumbel_problem *q = &own.params.problem;
    gumbel_error error = {"", ""};
    if (report_call("gumbel_read_head",
                    gumbel_read_head(q, GUMBEL_SCREEN_LAYOUT_NONE, &head, &sampling, &error),
                    &error))
        exit(1);
    own.params.paired = width == kPairedWidth;
    own.width = width - own.params.paired;
    const int columns = cuda_sm90_widths[own.width];
    int64_t tokens = q->end_token - q->first_token;
    q->with_mass = with_mass;
    own.params.inverse_cap = q->soft_cap > 0.0f ? 1.0f / q->soft_cap : 0.0f;
    own.params.tiles = (int)((tokens + CUDA_SM90_TILE - 1) / CUDA_SM90_TILE);
    own.params.splits = cuda_sm90_ctas(columns, own.params.tiles, ctas, own.params.paired);
    /* Whether logits are stored is not known yet. */
    const int stages =
        std::min({cuda_sm90_stages(columns, q->sampling.num_samples, with_mass, CUDA_SM90_ANY),
                  cuda_sm90_stages(columns, 1, 1, CUDA_SM90_STATISTICS),
                  cuda_sm90_stages(columns, 1, 0, CUDA_SM90_STORED)});
    own.params.stages = 2 + (int)random_below(random, (uint32_t)(stages - 1));
    own.random = random;
    own.what = what;
    return own;
}

void emulate_fused(const emulated_launch &launch)
{
    const int cluster = CUDA_SM90_CLUSTER(cuda_sm90_widths[launch.width]);
    run(launch, fused_body, launch.params.splits, cluster, CUDA_SM90_THREADS);
}

void emulate_finish(const emulated_launch &launch)
{
    const cuda_params &p = launch.params;
    const gumbel_problem &q = p.problem;
    const cuda_sm90_case kind = cuda_sm90_case_of(&q, p.logits_out != nullptr, p.also_draw, 0);
    if (!launch.any && CUDA_SM90_WRITES_OUTPUT(kind, p.partials))
        return;
    run(launch, finish_body, q.batch * q.sampling.num_samples, 1, CUDA_FINISH_THREADS);
}

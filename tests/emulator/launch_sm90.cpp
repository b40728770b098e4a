// SPDX-License-Identifier: Apache-2.0
//
// The kernels are included, so that what stands in for the hardware's words comes before them.
#include "ptx_words.h"
#include "wgmma_words.h"

#include "cuda/fused_sm90.cu"
#include "cuda/finish.cu"

#include "launch_sm90.h"

extern "C" {
#include "core/validate.h"
#include "outcome.h"
}

#include <stdlib.h>

fibers_index blockIdx, gridDim;

namespace
{

using kernel = void (*)(cuda_params, CUtensorMap, CUtensorMap);

kernel kernel_of(gumbel_dtype dtype, int width)
{
    static const kernel table[2][CUDA_SM90_WIDTHS] = {
        {gumbel_fused_sm90_bf16_8, gumbel_fused_sm90_bf16_16, gumbel_fused_sm90_bf16_32,
         gumbel_fused_sm90_bf16_64, gumbel_fused_sm90_bf16_128, gumbel_fused_sm90_bf16_256},
        {gumbel_fused_sm90_f16_8, gumbel_fused_sm90_f16_16, gumbel_fused_sm90_f16_32,
         gumbel_fused_sm90_f16_64, gumbel_fused_sm90_f16_128, gumbel_fused_sm90_f16_256},
    };
    return table[dtype == GUMBEL_FLOAT16][width];
}

CUtensorMap map_of(const gumbel_tensor &t, int box)
{
    return {(const uint16_t *)t.data, t.rows, t.cols, t.stride, box};
}

void fused_body(const void *argument)
{
    const emulated_launch &own = *(const emulated_launch *)argument;
    const gumbel_problem &q = own.params.problem;
    kernel_of(q.weight.dtype, own.width)(own.params, map_of(q.weight, CUDA_SM90_TILE),
                                         map_of(q.hidden, cuda_sm90_widths[own.width]));
}

void finish_body(const void *argument)
{
    gumbel_finish_rows(((const emulated_launch *)argument)->params);
}

void run_ctas(const emulated_launch &own, void (*body)(const void *), int64_t ctas, int threads)
{
    gridDim.x = (unsigned)ctas;
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
        memset(memory, 0x5a, sizeof memory);
        int left = fibers_run(threads, random_bits(own.random), body, &own);
        if (left > 0)
            die("%s: CTA %u: %d threads wait for ever", own.what, blockIdx.x, left);
    }
}

} // namespace

int emulated_width(int64_t batch, int samples, uint64_t *random)
{
    int width = cuda_sm90_width_for(batch), widest = width;
    while (widest < CUDA_SM90_WIDTHS - 1 &&
           cuda_sm90_widths[widest + 1] * samples <= CUDA_SM90_STATES)
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
    if (report_call("gumbel_read_head", gumbel_read_head(q, &head, &sampling, &error), &error))
        exit(1);
    int64_t tokens = q->end_token - q->first_token;
    q->with_mass = with_mass;
    own.params.inverse_cap = q->soft_cap > 0.0f ? 1.0f / q->soft_cap : 0.0f;
    own.params.tiles = (int)((tokens + CUDA_SM90_TILE - 1) / CUDA_SM90_TILE);
    own.params.parts = min(ctas, own.params.tiles);
    own.params.stages =
        cuda_sm90_stages(cuda_sm90_widths[width], q->sampling.num_samples, with_mass);
    own.width = width;
    own.random = random;
    own.what = what;
    return own;
}

void emulate_fused(const emulated_launch &launch)
{
    run_ctas(launch, fused_body, launch.params.parts, CUDA_SM90_THREADS);
}

void emulate_finish(const emulated_launch &launch)
{
    const gumbel_problem &q = launch.params.problem;
    run_ctas(launch, finish_body, q.batch * q.sampling.num_samples, CUDA_FINISH_THREADS);
}

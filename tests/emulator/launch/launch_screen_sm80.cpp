// SPDX-License-Identifier: Apache-2.0
//
// The kernels are included after the stand-ins for the hardware's intrinsics.
extern "C" {
#include "core/output.h"
#include "core/problem.h"
#include "maths/screen_bound.h"
}

#include "ptx_emulated.h"
#include "wgmma_emulated.h"

#include "mma_sm80_emulated.h"
#include "screen_ptx_emulated.h"

#include "cuda/fused/screen/screen_draw_sm80.cu"
#undef KERNEL
#undef KERNELS
#include "cuda/fused/screen/screen_score_sm80.cu"

#include "ctas.h"
#include "launch_screen.h"
#include "launch_sm80.h"
#include "screen_arrays.h"

#include <algorithm>

namespace
{

bool is_plain(const emulated_screen &launch)
{
    return cuda_screen_case_of(&launch.params.call.problem) == CUDA_SCREEN_PLAIN;
}

bool is_half(const emulated_screen &launch)
{
    return launch.params.call.problem.weight.dtype == GUMBEL_FLOAT16;
}

void split_body(const void *argument)
{
    const emulated_screen &launch = *(const emulated_screen *)argument;
    is_plain(launch) ? gumbel_split_tensor({launch.params})
                     : gumbel_split_tensor_any({launch.params});
}

void draw_body(const void *argument)
{
    static void (*const plain[])(screen_call<CUDA_SCREEN_PLAIN, false>) = {
        gumbel_screen_tensor_8, gumbel_screen_tensor_16, gumbel_screen_tensor_32,
        gumbel_screen_tensor_64, gumbel_screen_tensor_128};
    static void (*const any[])(screen_call<CUDA_SCREEN_ANY, false>) = {
        gumbel_screen_tensor_8_any, gumbel_screen_tensor_16_any, gumbel_screen_tensor_32_any,
        gumbel_screen_tensor_64_any, gumbel_screen_tensor_128_any};
    const emulated_screen &launch = *(const emulated_screen *)argument;
    is_plain(launch) ? plain[launch.width_index]({launch.params})
                     : any[launch.width_index]({launch.params});
}

void score_body(const void *argument)
{
    const emulated_screen &launch = *(const emulated_screen *)argument;
    is_half(launch) ? gumbel_score_tensor_f16({launch.params})
                    : gumbel_score_tensor_bf16({launch.params});
}

/* The rows [first, first + count) of a call (cuda_select_rows()). */
cuda_params select_rows(const cuda_params &call, int64_t first, int64_t count)
{
    const int samples = call.problem.sampling.num_samples;
    cuda_params p = call;
    p.problem = gumbel_problem_slice(&call.problem, first, count);
    p.output = gumbel_output_slice(&call.output, first, samples);
    p.row_thresholds += first * samples * CUDA_THRESHOLD_WORDS;
    return p;
}

/* Runs the full pass as launch_full_pass() of cuda_run_screen_sm80.c does. */
void draw_again(const emulated_screen &launch, const cuda_params &call, int ctas, uint64_t *random,
                const char *what)
{
    const gumbel_problem &q = call.problem;
    const int64_t most = cuda_sm80_widths[CUDA_SCREEN_SM80_FALLBACK_WIDTHS - 1];
    const int64_t units =
        (q.end_token - q.first_token + CUDA_SM80_WARP_TILE - 1) / CUDA_SM80_WARP_TILE;
    uint32_t last = 0;
    for (int64_t first = 0; first < q.batch; first += most) {
        cuda_params p = select_rows(call, first, std::min(q.batch - first, most));
        p.splits = (int32_t)std::min<int64_t>(units, ctas);
        p.tag = call.tag + 1 + (uint64_t)first;
        last += (uint32_t)p.splits;
        emulate_fallback_sm80(p, launch.params.state, last, random, what);
    }
}

} // namespace

bool emulate_screen_sm80(const cuda_params &call, int ctas, int shared_bytes, uint64_t *random,
                         const char *what, int64_t *listed)
{
    emulated_screen launch = {};
    fenced_arrays arrays;
    cuda_screen_params &s = launch.params;
    prepare_emulated_screen(launch, arrays, call);
    s.gamma = CUDA_SCREEN_SM80_GAMMA(call.problem.hidden_size);
    s.spread_hidden = NULL;
    s.call.stages =
        2 + (int)random_below(random, (uint32_t)cuda_screen_sm80_stages(s.width, shared_bytes) - 1);
    run_ctas(split_body, &launch,
             {s.width / 2, 1, CUDA_SCREEN_SPLIT_THREADS, CUDA_SCREEN_SPLIT_BYTES, memories}, random,
             what);
    run_ctas(draw_body, &launch,
             {std::min(s.call.tiles, ctas), 1, CUDA_SM90_THREADS,
              (size_t)cuda_screen_sm80_bytes(s.width, s.call.stages), memories},
             random, what);
    run_ctas(score_body, &launch,
             {CUDA_SCREEN_GROUPS + ctas, 1, CUDA_SCREEN_SCORE_THREADS, CUDA_SCREEN_SM80_SCORE_BYTES,
              memories},
             random, what);
    draw_again(launch, call, ctas, random, what);
    for (int i = 0; i < CUDA_SCREEN_GROUPS; i++)
        *listed += s.state->listed[i];
    return s.state->again != 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches a draw with a screen of bytes by mma.sync, on every GPU: hidden states are split into
 * planes, the screen finds candidates, their scores are computed exactly, and the full pass of the
 * portable kernels follows for calls that the screen does not determine.
 */
#include "core/fail.h"
#include "cuda/run/cuda_run_screen.h"

/* CTAs of the kernel of `n` columns in the full pass of a call's rows. */
static int64_t count_full_pass_ctas(const cuda_device *cuda, const gumbel_problem *q, int n,
                                    int bytes)
{
    const int64_t units =
        (q->end_token - q->first_token + CUDA_SM80_WARP_TILE - 1) / CUDA_SM80_WARP_TILE;
    const int64_t ctas = cuda->multiprocessors * cuda_sm80_ctas(n, cuda->shared_bytes, bytes, 0);
    GUMBEL_ASSERT(q->first_token % CUDA_SM80_WARP_TILE == 0);
    return units < ctas ? units : ctas;
}

/* Queue the full pass, one launch for each group of rows that a kernel holds. Each launch reads
 * whether it must draw. */
static gumbel_status launch_full_pass(const cuda_job *job, cuda_screen_state *state)
{
    cuda_device *cuda = job->cuda;
    const gumbel_problem *whole = &job->params.problem;
    const int samples = whole->sampling.num_samples;
    const int64_t most = cuda_sm80_widths[CUDA_SCREEN_SM80_FALLBACK_WIDTHS - 1];
    uint32_t last = 0; /* CTAs of the launches so far */
    for (int64_t first = 0; first < whole->batch; first += most) {
        const int64_t rows = whole->batch - first < most ? whole->batch - first : most;
        const int width = cuda_sm80_width_for(rows), n = cuda_sm80_widths[width];
        const int bytes = cuda_sm80_shared_bytes(n, samples, 0, 0);
        cuda_params p = cuda_select_rows(&job->params, first, rows);
        const cuda_shape shape = {count_full_pass_ctas(cuda, whole, n, bytes), CUDA_SM80_THREADS,
                                  bytes, 1};
        GUMBEL_ASSERT(n * samples <= CUDA_SM80_STATES && !p.problem.with_mass && !p.logits_out);
        p.splits = (int32_t)shape.ctas;
        p.tag = cuda_new_tag(cuda);
        last += (uint32_t)shape.ctas;
        void *arguments[] = {&p, &state, &last};
        GUMBEL_FORWARD(cuda_launch(
            job, cuda->fallback_sm80[cuda_dtype_of(whole->weight.dtype)][width], shape, arguments));
    }
    return GUMBEL_OK;
}

gumbel_status cuda_run_screen_sm80(const cuda_job *job)
{
    cuda_device *cuda = job->cuda;
    const gumbel_problem *q = &job->params.problem;
    const cuda_screen_case kind = cuda_screen_case_of(q);
    const int width = cuda_screen_width_for(cuda_screen_draws(q));
    cuda_screen_params s = cuda_get_screen_params(job, width);
    s.gamma = CUDA_SCREEN_SM80_GAMMA(q->hidden_size);
    s.call.stages = cuda_screen_sm80_stages(s.width, cuda->shared_bytes);
    s.call.tag = cuda_new_tag(cuda);
    GUMBEL_ASSERT(kind <= CUDA_SCREEN_ANY && s.call.stages >= 2 && !s.spread_hidden);
    const int processors = cuda->multiprocessors;
    const cuda_shape split = {s.width / 2, CUDA_SCREEN_SPLIT_THREADS, CUDA_SCREEN_SPLIT_BYTES, 1};
    const cuda_shape draw = {s.call.tiles < processors ? s.call.tiles : processors,
                             CUDA_SM90_THREADS, cuda_screen_sm80_bytes(s.width, s.call.stages), 1};
    const cuda_shape score = {processors > CUDA_SCREEN_GROUPS ? processors : CUDA_SCREEN_GROUPS,
                              CUDA_SCREEN_SCORE_THREADS, CUDA_SCREEN_SM80_SCORE_BYTES, 1};
    void *arguments[] = {&s};
    GUMBEL_FORWARD(cuda_launch(job, cuda->screen_tensor_split[kind], split, arguments));
    GUMBEL_FORWARD(cuda_launch(job, cuda->screen_tensor_draw[width][kind], draw, arguments));
    GUMBEL_FORWARD(cuda_launch(job, cuda->screen_tensor_score[cuda_dtype_of(q->weight.dtype)],
                               score, arguments));
    return launch_full_pass(job, s.state);
}

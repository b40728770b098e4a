/* SPDX-License-Identifier: Apache-2.0
 *
 * A screened draw: hidden states are split into planes, what can win is found by the screen, scored
 * by the full product, and behind that stands the full pass, for calls that a screen does not tell.
 */
#include "core/fail.h"
#include "cuda/run/cuda_run.h"

/* The narrowest product that holds two planes of so many rows, by its place in the table. */
static int width_for(int64_t rows)
{
    int i = 0;
    while (i < CUDA_SCREEN_WIDTHS - 1 && cuda_screen_widths[i] < 2 * rows)
        i++;
    return i;
}

static int64_t depths_of(const gumbel_problem *p)
{
    return (p->hidden_size + CUDA_SCREEN_TILE - 1) / CUDA_SCREEN_TILE;
}

void cuda_carve_screen(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                       cuda_workspace *workspace)
{
    size_t width = (size_t)cuda_screen_widths[width_for(p->batch)];
    size_t groups = ((size_t)p->batch + CUDA_SCREEN_GROUP - 1) / CUDA_SCREEN_GROUP;
    cuda_screen_pieces *pieces = &workspace->screen;
    (void)cuda;
    pieces->planes = gumbel_carve(cursor, (size_t)depths_of(p), width, CUDA_SCREEN_TILE);
    pieces->reaches = gumbel_carve(cursor, width, 1, sizeof *pieces->reaches);
    pieces->state = gumbel_carve(cursor, 1, 1, sizeof *pieces->state);
    pieces->entries =
        gumbel_carve(cursor, groups, CUDA_SCREEN_LISTED_MOST, sizeof *pieces->entries);
}

gumbel_status cuda_run_screen(const cuda_job *job)
{
    cuda_device *cuda = job->cuda;
    const gumbel_problem *q = &job->params.problem;
    const cuda_screen_pieces *pieces = &job->workspace.screen;
    const char *screen = q->screen;
    const int64_t tokens = q->end_token - q->first_token;
    const int place = width_for(q->batch);
    gumbel_screen_parts parts;
    int known =
        gumbel_screen_lay_out_as(GUMBEL_SCREEN_LAYOUT_TILES, q->vocab, q->hidden_size, &parts);
    GUMBEL_ASSERT(known && tokens > 0 && q->batch <= CUDA_SCREEN_ROWS_MOST);
    GUMBEL_ASSERT(pieces->planes && pieces->reaches && pieces->state && pieces->entries);
    (void)known;
    cuda_screen_params s = {.call = cuda_slice(&job->params, 0, q->batch),
                            .header = (const void *)screen,
                            .bounds = (const void *)(screen + parts.bounds),
                            .steps = (const void *)(screen + parts.steps),
                            .copy = (const void *)(screen + parts.copy),
                            .depths = (int32_t)depths_of(q),
                            .width = cuda_screen_widths[place],
                            .gamma = CUDA_SCREEN_GAMMA(q->hidden_size),
                            .planes = pieces->planes,
                            .reaches = pieces->reaches,
                            .state = pieces->state,
                            .entries = pieces->entries};
    const int processors = cuda_sm90_processors(cuda->multiprocessors);
    s.call.tiles = (int32_t)((tokens + CUDA_SCREEN_TILE - 1) / CUDA_SCREEN_TILE);
    s.call.stages = cuda_screen_stages(s.width);
    s.call.tag = cuda_tag(cuda);
    GUMBEL_ASSERT(s.call.tiles <= parts.blocks * GUMBEL_BLOCK / CUDA_SCREEN_TILE);
    void *arguments[] = {&s};
    cuda_shape split = {s.width / 2, CUDA_SCREEN_SPLIT_THREADS, CUDA_SCREEN_SPLIT_BYTES, 1};
    cuda_shape draw = {s.call.tiles < processors ? s.call.tiles : processors, CUDA_SM90_THREADS,
                       CUDA_SM90_SHARED_BYTES, 1};
    cuda_shape score = {cuda->multiprocessors > CUDA_SCREEN_GROUPS ? cuda->multiprocessors
                                                                   : CUDA_SCREEN_GROUPS,
                        CUDA_SCREEN_SCORE_THREADS, CUDA_SCREEN_SCORE_BYTES, 1};
    const cuda_dtype dtype = cuda_dtype_of(q->weight.dtype);
    GUMBEL_FORWARD(cuda_launch(job, cuda->screen_split, split, arguments));
    GUMBEL_FORWARD(cuda_launch(job, cuda->screen_draw[place], draw, arguments));
    GUMBEL_FORWARD(cuda_launch(job, cuda->screen_score[dtype], score, arguments));
    return cuda_run_sm90_again(job, &pieces->state->again);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Workspace and parameters of draws with a screen, on Hopper and on other GPUs.
 */
#include "cuda/run/cuda_run_screen.h"

#include "core/fail.h"

static int64_t count_depth_tiles(const gumbel_problem *p)
{
    return (p->hidden_size + CUDA_SCREEN_TILE - 1) / CUDA_SCREEN_TILE;
}

/* Columns of the product of a call's planes. */
static size_t count_product_columns(const gumbel_problem *p)
{
    return (size_t)cuda_screen_widths[cuda_screen_width_for(cuda_screen_draws(p))];
}

/* Groups of draws whose candidates are scored together. */
static size_t count_draw_groups(const gumbel_problem *p)
{
    return (size_t)(cuda_screen_draws(p) + CUDA_SCREEN_GROUP - 1) / CUDA_SCREEN_GROUP;
}

void cuda_carve_screen_sm80(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                            cuda_workspace *workspace)
{
    const size_t width = count_product_columns(p), groups = count_draw_groups(p);
    cuda_screen_workspace *w = &workspace->screen;
    (void)cuda;
    w->planes = gumbel_carve_array(cursor, (size_t)count_depth_tiles(p), width, CUDA_SCREEN_TILE);
    w->hidden_errors = gumbel_carve_array(cursor, width, 1, sizeof *w->hidden_errors);
    w->state = gumbel_carve_array(cursor, 1, 1, sizeof *w->state);
    w->entries =
        gumbel_carve_array(cursor, groups, CUDA_SCREEN_GROUP_CANDIDATES_MAX, sizeof *w->entries);
}

void cuda_carve_screen(gumbel_cursor *cursor, const cuda_device *cuda, const gumbel_problem *p,
                       cuda_workspace *workspace)
{
    const size_t draws = (size_t)cuda_screen_draws(p);
    const size_t width = count_product_columns(p), groups = count_draw_groups(p);
    cuda_screen_workspace *w = &workspace->screen;
    cuda_carve_screen_sm80(cursor, cuda, p, workspace);
    w->coarse_errors = gumbel_carve_array(cursor, width, 1, sizeof *w->coarse_errors);
    w->fallback_rows = gumbel_carve_array(cursor, width / 2, 1, sizeof *w->fallback_rows);
    w->coarse_entries =
        gumbel_carve_array(cursor, groups, CUDA_SCREEN_GROUP_COARSE, sizeof *w->coarse_entries);
    if (draws > (size_t)p->batch)
        w->spread = gumbel_carve_array(cursor, draws, (size_t)p->hidden_size, sizeof *w->spread);
}

void cuda_carve_screen_truncated(gumbel_cursor *cursor, const cuda_device *cuda,
                                 const gumbel_problem *p, cuda_workspace *workspace)
{
    cuda_carve_screen(cursor, cuda, p, workspace);
    cuda_carve_blocks(cursor, cuda, p, workspace);
    workspace->screen.block_maxima = workspace->block_maxima;
    workspace->screen.exact = gumbel_carve_array(cursor, (size_t)p->batch, CUDA_SCREEN_EXACT_MAX,
                                                 sizeof *workspace->screen.exact);
    workspace->logits = gumbel_carve_array(cursor, (size_t)p->batch, (size_t)cuda_row_stride(p),
                                           sizeof *workspace->logits);
}

cuda_screen_params cuda_get_screen_params(const cuda_job *job, int width)
{
    const gumbel_problem *q = &job->params.problem;
    const cuda_screen_workspace *w = &job->workspace.screen;
    const char *screen = q->screen;
    const int64_t tokens = q->end_token - q->first_token;
    const int64_t draws = cuda_screen_draws(q);
    gumbel_screen_offsets offsets;
    const gumbel_screen_layout layout = cuda_screen_layout_of(q->screen_format);
    int known = gumbel_screen_find_offsets_as(layout, q->vocab, q->hidden_size, &offsets);
    GUMBEL_ASSERT(known && tokens > 0 && draws <= CUDA_SCREEN_ROWS_MAX);
    GUMBEL_ASSERT(w->planes && w->hidden_errors && w->state && w->entries);
    GUMBEL_ASSERT(q->soft_cap == 0.0f && q->scale >= 0.0f && !q->bias.data);
    (void)known;
    cuda_screen_params s = {.call = cuda_select_rows(&job->params, 0, q->batch),
                            .header = (const void *)screen,
                            .bounds = (const void *)(screen + offsets.bounds),
                            .steps = (const void *)(screen + offsets.steps),
                            .dither = (const void *)(screen + offsets.dither),
                            .copy = (const void *)(screen + offsets.copy),
                            .depths = (int32_t)count_depth_tiles(q),
                            .width = cuda_screen_widths[width],
                            .draws = (int32_t)draws,
                            .planes = w->planes,
                            .hidden_errors = w->hidden_errors,
                            .coarse_errors = w->coarse_errors,
                            .state = w->state,
                            .entries = w->entries,
                            .coarse_entries = w->coarse_entries,
                            .spread_hidden = w->spread,
                            .maxima = w->block_maxima,
                            .exact = w->exact};
    if (gumbel_screen_is_nested(layout)) {
        s.low_nibbles = s.copy + CUDA_SCREEN_HIGH_BYTES(offsets.blocks, s.depths);
        s.low_nibbles_norm = gumbel_screen_bound_low_nibbles(q->hidden_size);
    }
    s.call.tiles = (int32_t)((tokens + CUDA_SCREEN_TILE - 1) / CUDA_SCREEN_TILE);
    GUMBEL_ASSERT(s.call.tiles <= offsets.blocks * GUMBEL_BLOCK / CUDA_SCREEN_TILE);
    return s;
}

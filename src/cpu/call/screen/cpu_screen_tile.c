/* SPDX-License-Identifier: Apache-2.0
 *
 * A tile by the screen: bounds of its logits in place of the logits. Also the finer bound of a
 * single token, in place of a coarse one.
 */
#include "cpu/call/screen/cpu_screen.h"

#include "core/fail.h"
#include "cpu/cpu_policy.h"
#include "cpu/lanes/cpu_widen.h"

cpu_candidates *cpu_get_candidates(const cpu_job *job, int64_t thread, int64_t b)
{
    const gumbel_problem *p = job->problem;
    GUMBEL_ASSERT(b >= 0 && b < p->batch && thread < job->device->threads);
    return job->screen->candidates + (thread * p->batch + b) * p->sampling.num_samples;
}

int cpu_is_fallback_row(const cpu_job *job, int64_t thread, int64_t b)
{
    const cpu_candidates *candidates = cpu_get_candidates(job, thread, b);
    int fallback = cpu_is_marked_fallback_row(job->screen, b);
    for (int32_t s = 0; s < job->problem->sampling.num_samples && !fallback; s++)
        if (cpu_has_given_up(&candidates[s])) {
            fallback = 1;
            cpu_mark_fallback_row(job->screen, b);
        }
    return fallback;
}

/* Begins a thread's tile of `tokens` tokens; returns whether it gets coarse bounds. Once too many
 * bounds have been refined, one by one, it is faster to read both halves of all tokens. */
static int begin_tile(const cpu_job *job, int64_t thread, int64_t token, int64_t tokens)
{
    const cpu_screen *screen = job->screen;
    const int64_t draws = job->problem->batch * job->problem->sampling.num_samples;
    cpu_candidates *candidates = cpu_get_candidates(job, thread, 0);
    int64_t refined = 0;
    if (!candidates->is_coarse)
        return 0;
    for (int64_t draw = 0; draw < draws; draw++) {
        refined += candidates[draw].refined;
        candidates[draw].tile_token = token;
    }
    screen->coarse_tokens[thread] += tokens;
    if (refined <= draws * CPU_SCREEN_REFINED_MIN +
                       screen->coarse_tokens[thread] / CPU_SCREEN_REFINED_FRACTION)
        return 1;
    for (int64_t draw = 0; draw < draws; draw++) {
        candidates[draw].is_coarse = 0;
        candidates[draw].excess = 0.0f;
    }
    return 0;
}

/* `count` tokens of one block of the copy, from token `at` of the block on. */
typedef struct block_range {
    int64_t block;
    int at, count;
} block_range;

/* The operands of the upper bounds of a block's logits, without sums, for the terms of a row; with
 * side -1 of the lower bounds. */
static cpu_logit_bounds make_bounds(const cpu_screen *screen, int64_t block, int is_coarse,
                                    const gumbel_screen_hidden_error *error, float side)
{
    const gumbel_screen_block *block_bounds = &screen->block_bounds[block];
    float sign = screen->exact_job.problem->scale > 0.0f ? side : -side;
    float width = is_coarse ? gumbel_screen_coarse_width(error, block_bounds, screen->low_nibbles)
                            : gumbel_screen_error_width(error, block_bounds);
    return (cpu_logit_bounds){.steps = screen->steps + block * GUMBEL_BLOCK,
                              .unit = error->unit,
                              .plane = (float)screen->kernel->plane,
                              .width = sign * width - error->shift,
                              .tiny = sign * GUMBEL_SCREEN_TINY};
}

/* Writes the bounds of a block's tokens. */
static void write_bounds(const cpu_screen *screen, const cpu_logit_bounds *bounds,
                         block_range range, float *out)
{
    float block_bounds[GUMBEL_BLOCK];
    int whole = range.count == GUMBEL_BLOCK;
    screen->exact_job.device->kernels->bound_logits(bounds, whole ? out : block_bounds);
    if (!whole)
        memcpy(out, block_bounds + range.at, (size_t)range.count * sizeof *out);
}

/* Writes the coarse bounds of row b, whose sums are line `line` of the product, and the sums. */
static void write_coarse_bounds(const cpu_screen *screen, const cpu_screen_product *product,
                                block_range range, int64_t b, int line, float *out, int32_t *sums)
{
    cpu_logit_bounds bounds =
        make_bounds(screen, range.block, 1, &screen->rows[b].coarse_error, 1.0f);
    bounds.high = bounds.low = product->sums + line * 16;
    bounds.stride = product->lines * 16;
    bounds.plane = 0.0f;
    write_bounds(screen, &bounds, range, out);
    for (int i = range.at; i < range.at + range.count; i++)
        *sums++ = bounds.low[i / 16 * bounds.stride + i % 16];
}

/* The stored lower bound of token first_token + `row` of row b. */
static float *find_lower_bound(const cpu_screen *screen, int64_t b, int64_t row)
{
    return screen->lower_stage.values + b * screen->lower_stage.stride + row;
}

/* Writes the upper bounds of row b, and if it is truncated the lower ones, whose sums begin with
 * line `line` of the product. */
static void write_fine_bounds(const cpu_screen *screen, const cpu_screen_product *product,
                              block_range range, int64_t b, int line, float *out)
{
    for (int side = 1; side >= (screen->rows[b].is_truncated ? -1 : 1); side -= 2) {
        cpu_logit_bounds bounds =
            make_bounds(screen, range.block, 0, &screen->rows[b].hidden_error, (float)side);
        bounds.high = product->sums + line * 16;
        bounds.low = product->sums + (product->rows + line) * 16;
        bounds.stride = 2 * product->rows * 16;
        write_bounds(screen, &bounds, range,
                     side > 0 ? out
                              : find_lower_bound(screen, b, range.block * GUMBEL_BLOCK + range.at));
    }
}

/* Bounds tokens of one block of the copy, for all rows; `out` is the place of the first one in the
 * thread's tile. */
static void bound_block(const cpu_job *job, const cpu_scratch *scratch, block_range range,
                        int64_t out)
{
    const cpu_screen *screen = job->screen;
    int64_t columns = screen->offsets.columns, batch = job->problem->batch;
    int64_t stride = job->tile_size + CPU_LANES, panel = screen->kernel->panel;
    int64_t block_bytes = GUMBEL_BLOCK * columns / (screen->low_copy ? 2 : 1);
    cpu_screen_product product = {
        .copy = screen->copy + range.block * block_bytes,
        .low = screen->low_copy ? screen->low_copy + range.block * block_bytes : NULL,
        .columns = columns,
        .sums = screen->sums + scratch->thread * CPU_SCREEN_SUMS};
    GUMBEL_ASSERT(range.block >= 0 && range.block < screen->offsets.blocks);
    GUMBEL_ASSERT(range.at >= 0 && range.count >= 1 && range.at + range.count <= GUMBEL_BLOCK);
    for (int64_t first = 0; first < batch; first += panel) {
        product.rows = batch - first < panel ? (int)(batch - first) : (int)panel;
        product.lines = 2 * product.rows;
        product.planes = screen->planes + first * 2 * columns;
        product.start = screen->start + first * 2;
        screen->kernel->sum_products(&product);
        for (int64_t b = first; b < first + product.rows; b++)
            if (!cpu_is_marked_fallback_row(screen, b))
                write_fine_bounds(screen, &product, range, b, (int)(b - first),
                                  scratch->z + b * stride + out);
    }
}

/* Coarse bounds in place of bound_block(). */
static void bound_block_coarsely(const cpu_job *job, const cpu_scratch *scratch, block_range range,
                                 int64_t out)
{
    const cpu_screen *screen = job->screen;
    int64_t columns = screen->offsets.columns, batch = job->problem->batch;
    int64_t stride = job->tile_size + CPU_LANES, panel = 2 * screen->kernel->panel;
    int32_t *sums = screen->coarse_sums + scratch->thread * batch * job->tile_size + out;
    cpu_screen_product product = {.copy = screen->copy + range.block * 32 * columns,
                                  .columns = columns,
                                  .sums = screen->sums + scratch->thread * CPU_SCREEN_SUMS};
    for (int64_t first = 0; first < batch; first += panel) {
        int64_t end = batch - first < panel ? batch : first + panel;
        product.lines = (int)(end - first);
        product.planes = screen->coarse_planes + first * columns;
        product.start = screen->coarse_start + first;
        screen->kernel->sum_products(&product);
        for (int64_t b = first; b < end; b++)
            if (!cpu_is_marked_fallback_row(screen, b))
                write_coarse_bounds(screen, &product, range, b, (int)(b - first),
                                    scratch->z + b * stride + out, sums + b * job->tile_size);
    }
}

/* Applies bias, scale and soft-cap to bounds, and adds `soft_cap_error` for the soft-cap's rounding
 * error. */
static void cap_bounds(const cpu_screen *screen, const float *bias, int count, float soft_cap_error,
                       float *bounds)
{
    cpu_transform t = cpu_make_transform(screen->exact_job.problem, 1.0f, bias);
    screen->exact_job.device->kernels->transform_logits(bounds, GUMBEL_FLOAT32, count, &t, bounds);
    for (int i = 0; i < count; i++)
        bounds[i] += soft_cap_error;
}

void cpu_bound_tile(const cpu_job *job, const cpu_scratch *scratch, int64_t token, int low,
                    int high)
{
    const cpu_screen *screen = job->screen;
    const gumbel_problem *p = screen->exact_job.problem;
    int64_t stride = job->tile_size + CPU_LANES, row = token + low - p->first_token;
    int64_t end = row + high - low;
    int is_coarse = begin_tile(job, scratch->thread, token, high - low);
    int64_t out = low;
    for (int count; row < end; row += count, out += count) {
        int at = (int)(row % GUMBEL_BLOCK), remaining = GUMBEL_BLOCK - at;
        count = end - row < remaining ? (int)(end - row) : remaining;
        block_range range = {row / GUMBEL_BLOCK, at, count};
        if (is_coarse)
            bound_block_coarsely(job, scratch, range, out);
        else
            bound_block(job, scratch, range, out);
    }
    if (p->soft_cap == 0.0f)
        return;
    const float *bias = cpu_load_tile_bias(p, scratch, job->device->kernels, token, low, high);
    row = token + low - p->first_token;
    for (int64_t b = 0; b < p->batch; b++) {
        cap_bounds(screen, bias, high - low, screen->soft_cap_error, scratch->z + b * stride + low);
        if (screen->rows[b].is_truncated)
            cap_bounds(screen, bias, high - low, -screen->soft_cap_error,
                       find_lower_bound(screen, b, row));
    }
}

float cpu_refine_bound(const cpu_screen *screen, int64_t b, int64_t token, int32_t coarse_sum)
{
    const gumbel_problem *p = screen->exact_job.problem;
    const cpu_coarse_plane plane = cpu_find_coarse_plane(screen, b);
    int64_t row = token - p->first_token, block = row / GUMBEL_BLOCK;
    cpu_token_product product = {.low = cpu_find_token(screen, row),
                                 .columns = screen->offsets.columns,
                                 .plane = plane.at,
                                 .stride = plane.stride};
    int32_t sum = 16 * coarse_sum + screen->kernel->sum_token(&product);
    cpu_logit_bounds bounds = make_bounds(screen, block, 0, &screen->rows[b].refined_error, 1.0f);
    float bound = gumbel_screen_bound_logit(bounds.steps[row % GUMBEL_BLOCK], bounds.unit, 0.0f,
                                            bounds.width, bounds.tiny, sum, sum);
    if (p->soft_cap > 0.0f) {
        float bias = p->bias.data ? cpu_widen_element(p->bias.data, p->bias.dtype, row) : 0.0f;
        cap_bounds(screen, p->bias.data ? &bias : NULL, 1, screen->soft_cap_error, &bound);
    }
    return bound;
}

void cpu_stage_bounds(const cpu_job *job, const cpu_scratch *scratch, const cpu_row_tile *tile,
                      float *z)
{
    const cpu_screen *screen = job->screen;
    cpu_row_tile lower = *tile;
    if (!screen->rows[tile->b].is_truncated)
        return;
    lower.from =
        find_lower_bound(screen, tile->b, tile->token + tile->low - job->problem->first_token);
    cpu_stage_row_tile(&screen->upper_job, scratch, tile, z);
    cpu_stage_row_tile(&screen->lower_job, scratch, &lower, z);
}

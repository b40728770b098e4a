/* SPDX-License-Identifier: Apache-2.0
 *
 * A tile by the screen: bounds of its logits in place of the logits.
 */
#include "cpu/call/screen/cpu_screen.h"

#include "core/fail.h"

cpu_candidates *cpu_get_candidates(const cpu_job *job, int64_t thread, int64_t b)
{
    const gumbel_problem *p = job->problem;
    GUMBEL_ASSERT(b >= 0 && b < p->batch && thread < job->device->threads);
    return job->screen->candidates + (thread * p->batch + b) * p->sampling.num_samples;
}

int cpu_is_fallback_row(const cpu_job *job, int64_t thread, int64_t b)
{
    const cpu_candidates *candidates = cpu_get_candidates(job, thread, b);
    int fallback = atomic_load_explicit(&job->screen->rows[b].is_fallback, memory_order_relaxed);
    for (int32_t s = 0; s < job->problem->sampling.num_samples && !fallback; s++)
        if (cpu_has_given_up(&candidates[s])) {
            fallback = 1;
            cpu_mark_fallback_row(job->screen, b);
        }
    return fallback;
}

/* `count` tokens of one block of the copy, from token `at` of the block on. */
typedef struct block_range {
    int64_t block;
    int at, count;
} block_range;

/* Writes the upper bounds of row b's logits, or with side -1 the lower bounds. */
static void write_bounds(const cpu_screen *screen, const cpu_screen_product *product,
                         block_range range, int64_t b, float side, float *out)
{
    const gumbel_screen_hidden_error *hidden_error = &screen->rows[b].hidden_error;
    float block_bounds[GUMBEL_BLOCK];
    float sign = screen->exact_job.problem->scale > 0.0f ? side : -side;
    int row = (int)(b % screen->kernel->panel);
    cpu_logit_bounds bounds = {
        .high = product->sums + row * 16,
        .low = product->sums + (product->rows + row) * 16,
        .stride = 2 * product->rows * 16,
        .steps = screen->steps + range.block * GUMBEL_BLOCK,
        .unit = hidden_error->unit,
        .plane = (float)screen->kernel->plane,
        .width =
            sign * gumbel_screen_error_width(hidden_error, &screen->block_bounds[range.block]) -
            hidden_error->shift,
        .tiny = sign * GUMBEL_SCREEN_TINY};
    int whole = range.count == GUMBEL_BLOCK;
    screen->exact_job.device->kernels->bound_logits(&bounds, whole ? out : block_bounds);
    if (!whole)
        memcpy(out, block_bounds + range.at, (size_t)range.count * sizeof *out);
}

/* The stored lower bound of token first_token + `row` of row b. */
static float *find_lower_bound(const cpu_screen *screen, int64_t b, int64_t row)
{
    return screen->lower_stage.values + b * screen->lower_stage.stride + row;
}

/* Bounds tokens of one block of the copy, for all rows. */
static void bound_block(const cpu_job *job, const cpu_scratch *scratch, block_range range,
                        float *out, int64_t out_stride)
{
    const cpu_screen *screen = job->screen;
    int64_t columns = screen->offsets.columns, batch = job->problem->batch;
    int panel = screen->kernel->panel;
    cpu_screen_product product = {.copy = screen->copy + range.block * GUMBEL_BLOCK * columns,
                                  .columns = columns,
                                  .sums = screen->sums + scratch->thread * CPU_SCREEN_SUMS};
    GUMBEL_ASSERT(range.block >= 0 && range.block < screen->offsets.blocks);
    GUMBEL_ASSERT(range.at >= 0 && range.count >= 1 && range.at + range.count <= GUMBEL_BLOCK);
    for (int64_t first = 0; first < batch; first += panel) {
        product.rows = batch - first < panel ? (int)(batch - first) : panel;
        product.planes = screen->planes + first * 2 * columns;
        product.start = screen->start + first * 2;
        screen->kernel->sum_products(&product);
        for (int64_t b = first; b < first + product.rows; b++)
            if (!atomic_load_explicit(&screen->rows[b].is_fallback, memory_order_relaxed)) {
                write_bounds(screen, &product, range, b, 1.0f, out + b * out_stride);
                if (screen->rows[b].is_truncated)
                    write_bounds(
                        screen, &product, range, b, -1.0f,
                        find_lower_bound(screen, b, range.block * GUMBEL_BLOCK + range.at));
            }
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
    float *out = scratch->z + low;
    for (int count; row < end; row += count, out += count) {
        int at = (int)(row % GUMBEL_BLOCK), remaining = GUMBEL_BLOCK - at;
        count = end - row < remaining ? (int)(end - row) : remaining;
        bound_block(job, scratch, (block_range){row / GUMBEL_BLOCK, at, count}, out, stride);
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * A tile by the screen: the ends of its logits, in place of its logits.
 */
#include "cpu/call/screen/cpu_screen.h"

#include "core/fail.h"

cpu_candidates *cpu_screen_lists(const cpu_job *job, int64_t thread, int64_t b)
{
    const gumbel_problem *p = job->problem;
    GUMBEL_ASSERT(b >= 0 && b < p->batch && thread < job->device->threads);
    return job->screen->lists + (thread * p->batch + b) * p->sampling.num_samples;
}

int cpu_screen_left(const cpu_job *job, int64_t thread, int64_t b)
{
    const cpu_candidates *lists = cpu_screen_lists(job, thread, b);
    int left = atomic_load_explicit(&job->screen->rows[b].full, memory_order_relaxed);
    for (int32_t s = 0; s < job->problem->sampling.num_samples && !left; s++)
        if (cpu_candidates_given_up(&lists[s])) {
            left = 1;
            atomic_store_explicit(&job->screen->rows[b].full, 1, memory_order_relaxed);
        }
    return left;
}

/* The ends of `count` tokens of row b, from token `at` of a block on: the upper ones, or with
 * side -1 the lower ones. */
static void write_ends(const cpu_screen *screen, const cpu_screen_product *product, int64_t block,
                       int64_t b, int at, int count, float side, float *out)
{
    const gumbel_screen_hidden_error *reach = &screen->rows[b].reach;
    float ends[GUMBEL_BLOCK], sign = screen->exact.problem->scale > 0.0f ? side : -side;
    int row = (int)(b % screen->product->panel);
    cpu_screen_ends e = {.high = product->sums + row * 16,
                         .low = product->sums + (product->rows + row) * 16,
                         .apart = 2 * product->rows * 16,
                         .steps = screen->steps + block * GUMBEL_BLOCK,
                         .unit = reach->unit,
                         .plane = (float)screen->product->plane,
                         .width = sign * gumbel_screen_error_width(reach, &screen->bounds[block]),
                         .tiny = sign * GUMBEL_SCREEN_TINY};
    int whole = count == GUMBEL_BLOCK;
    screen->exact.device->kernels->screen_ends(&e, whole ? out : ends);
    if (!whole)
        memcpy(out, ends + at, (size_t)count * sizeof *out);
}

/* Where the lower end of token first_token + `row` of row b is kept. */
static float *lower_at(const cpu_screen *screen, int64_t b, int64_t row)
{
    return screen->lowers.values + b * screen->lowers.stride + row;
}

/* Tokens of one block of the copy, for all rows. */
static void run_block(const cpu_job *job, const cpu_slot *slot, int64_t block, int at, int count,
                      float *out, int64_t out_stride)
{
    const cpu_screen *screen = job->screen;
    int64_t columns = screen->parts.columns, batch = job->problem->batch;
    int panel = screen->product->panel;
    cpu_screen_product product = {.copy = screen->copy + block * GUMBEL_BLOCK * columns,
                                  .columns = columns,
                                  .sums = screen->sums + slot->index * CPU_SCREEN_SUMS};
    GUMBEL_ASSERT(block >= 0 && block < screen->parts.blocks);
    GUMBEL_ASSERT(at >= 0 && count >= 1 && at + count <= GUMBEL_BLOCK);
    for (int64_t first = 0; first < batch; first += panel) {
        product.rows = batch - first < panel ? (int)(batch - first) : panel;
        product.planes = screen->planes + first * 2 * columns;
        product.start = screen->start + first * 2;
        screen->product->sums(&product);
        for (int64_t b = first; b < first + product.rows; b++)
            if (!atomic_load_explicit(&screen->rows[b].full, memory_order_relaxed)) {
                write_ends(screen, &product, block, b, at, count, 1.0f, out + b * out_stride);
                if (screen->rows[b].cut)
                    write_ends(screen, &product, block, b, at, count, -1.0f,
                               lower_at(screen, b, block * GUMBEL_BLOCK + at));
            }
    }
}

/* Bias, scale and soft-cap of ends, lifted by what the last may round, or lowered. */
static void cap_ends(const cpu_screen *screen, const float *bias, int count, float lift,
                     float *ends)
{
    cpu_transform t = cpu_transform_of(screen->exact.problem, 1.0f, bias);
    screen->exact.device->kernels->transform(ends, GUMBEL_FLOAT32, count, &t, ends);
    for (int i = 0; i < count; i++)
        ends[i] += lift;
}

void cpu_screen_tile(const cpu_job *job, const cpu_slot *slot, int64_t token, int low, int high)
{
    const cpu_screen *screen = job->screen;
    const gumbel_problem *p = screen->exact.problem;
    int64_t stride = job->tile + CPU_LANES, row = token + low - p->first_token;
    int64_t end = row + high - low;
    float *out = slot->z + low;
    for (int count; row < end; row += count, out += count) {
        int at = (int)(row % GUMBEL_BLOCK), left = GUMBEL_BLOCK - at;
        count = end - row < left ? (int)(end - row) : left;
        run_block(job, slot, row / GUMBEL_BLOCK, at, count, out, stride);
    }
    if (p->soft_cap == 0.0f)
        return;
    const float *bias = cpu_tile_bias(p, slot, job->device->kernels, token, low, high);
    row = token + low - p->first_token;
    for (int64_t b = 0; b < p->batch; b++) {
        cap_ends(screen, bias, high - low, screen->lift, slot->z + b * stride + low);
        if (screen->rows[b].cut)
            cap_ends(screen, bias, high - low, -screen->lift, lower_at(screen, b, row));
    }
}

void cpu_screen_keep(const cpu_job *job, const cpu_slot *slot, const cpu_piece *piece, float *z)
{
    const cpu_screen *screen = job->screen;
    cpu_piece lower = *piece;
    if (!screen->rows[piece->b].cut)
        return;
    lower.from = lower_at(screen, piece->b, piece->token + piece->low - job->problem->first_token);
    cpu_stage_piece(&screen->upper, slot, piece, z);
    cpu_stage_piece(&screen->lower, slot, &lower, z);
}

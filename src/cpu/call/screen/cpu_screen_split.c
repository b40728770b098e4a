/* SPDX-License-Identifier: Apache-2.0
 *
 * Splits hidden states into planes, before the tiles of a draw by a screen.
 */
#include "cpu/call/screen/cpu_screen.h"

#include "core/fail.h"

/* Rounding error of the product relative to |w| |h| (docs/maths.md, section 4): a lane's fused
 * multiply-adds, four additions, and the terms beyond the first order. */
static double find_product_error(int64_t hidden_size)
{
    int64_t roundings = cpu_get_packed_size(hidden_size) / CPU_LANES + 4;
    return (double)roundings * 0x1p-24 * 1.001;
}

static int32_t sum_plane(const int8_t *plane, int64_t stride, int64_t columns)
{
    int32_t sum = 0;
    for (int64_t k = 0; k < columns; k++)
        sum += plane[k / 64 * stride + k % 64];
    return sum;
}

static void clear_plane(int8_t *plane, int64_t stride, int64_t columns)
{
    for (int64_t k = 0; k < columns; k += 64)
        memset(plane + k / 64 * stride, 0, 64);
}

/* Rounds a row to its plane of coarse bounds, which is 0 for a fallback row. */
static void round_hidden_row(cpu_screen *screen, int64_t b, const float *wide)
{
    const int64_t columns = screen->offsets.columns;
    const cpu_coarse_plane plane = cpu_find_coarse_plane(screen, b);
    cpu_screen_row *row = &screen->rows[b];
    if (row->is_fallback)
        clear_plane(plane.at, plane.stride, columns);
    else
        gumbel_screen_round_hidden(wide, screen->exact_job.problem->hidden_size, &screen->header,
                                   screen->dither, &row->hidden_error, plane.at, plane.stride,
                                   &row->coarse_error, &row->refined_error);
    /* High nibbles are n, and n - 8 is meant. */
    screen->coarse_start[b] = -8 * sum_plane(plane.at, plane.stride, columns);
}

static void split_hidden_row(cpu_screen *screen, int64_t b)
{
    const gumbel_problem *p = screen->exact_job.problem;
    int64_t columns = screen->offsets.columns, panel = screen->kernel->panel;
    int64_t first = b / panel * panel, n = p->batch - first < panel ? p->batch - first : panel;
    int8_t *lines = screen->planes + first * 2 * columns + (b - first) * 64;
    gumbel_screen_planes planes = {screen->kernel->plane, lines, lines + n * 64, 2 * n * 64};
    const char *from =
        (const char *)p->hidden.data + b * p->hidden.stride * cpu_get_element_size(p->hidden.dtype);
    float *wide = screen->wide + b * columns;
    GUMBEL_ASSERT(b >= 0 && b < p->batch && p->hidden_size <= GUMBEL_SCREEN_COLUMNS_MAX);
    cpu_unpack_hidden_row(&screen->exact_job, b,
                          screen->hidden + b * cpu_get_packed_size(p->hidden_size));
    screen->exact_job.device->kernels->transform_logits(from, p->hidden.dtype, (int)p->hidden_size,
                                                        &cpu_identity, wide);
    if (screen->low_copy)
        gumbel_screen_scale_hidden((const gumbel_screen_column *)screen->dither, p->hidden_size,
                                   wide);
    if (!gumbel_screen_split_hidden(wide, p->hidden_size, &screen->header, screen->dither,
                                    find_product_error(p->hidden_size), &planes,
                                    &screen->rows[b].hidden_error)) {
        clear_plane(planes.high, planes.stride, columns);
        clear_plane(planes.low, planes.stride, columns);
        cpu_mark_fallback_row(screen, b);
    }
    /* Screen bytes are q + 128: 128 times the sum of each plane is subtracted. */
    int32_t *start = &screen->start[first * 2 + b - first];
    start[0] = -128 * sum_plane(planes.high, planes.stride, columns);
    start[n] = -128 * sum_plane(planes.low, planes.stride, columns);
    if (screen->is_coarse)
        round_hidden_row(screen, b, wide);
}

static void split_claimed_rows(void *argument, int32_t thread)
{
    cpu_screen *screen = argument;
    (void)thread;
    for (int64_t b; cpu_claim_item(&screen->next, screen->exact_job.problem->batch, &b);)
        split_hidden_row(screen, b);
}

void cpu_split_hidden_rows(cpu_screen *screen)
{
    const gumbel_problem *p = screen->exact_job.problem;
    atomic_store(&screen->next, 0);
    cpu_run_task(screen->exact_job.device, p->batch > 1 && cpu_is_worth_threads(p),
                 split_claimed_rows, screen);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Hidden states in planes, before the screen's tiles.
 */
#include "cpu/call/screen/cpu_screen.h"

#include "core/fail.h"

/* The roundings of the product by |w| |h| (docs/maths.md, section 4): a lane's fused multiply-adds,
 * four additions, and the terms beyond the first order. */
static double product_gamma(int64_t hidden_size)
{
    int64_t roundings = cpu_rounded_up(hidden_size, CPU_CHUNK) / CPU_LANES + 4;
    return (double)roundings * 0x1p-24 * 1.001;
}

/* What sums of row b's planes start at, as bytes are q + 128. */
static void start_sums(const gumbel_screen_planes *planes, int64_t columns, int32_t *high,
                       int32_t *low)
{
    int32_t sum_high = 0, sum_low = 0;
    for (int64_t k = 0; k < columns; k++) {
        int64_t at = k / 64 * planes->apart + k % 64;
        sum_high += planes->high[at];
        sum_low += planes->low[at];
    }
    *high = -128 * sum_high;
    *low = -128 * sum_low;
}

static void split_row(cpu_screen *screen, int64_t b)
{
    const gumbel_problem *p = screen->exact.problem;
    int64_t columns = screen->parts.columns, panel = screen->product->panel;
    int64_t first = b / panel * panel, n = p->batch - first < panel ? p->batch - first : panel;
    int64_t row = cpu_rounded_up(p->hidden_size, CPU_CHUNK);
    int8_t *lines = screen->planes + first * 2 * columns + (b - first) * 64;
    gumbel_screen_planes planes = {screen->product->plane, lines, lines + n * 64, 2 * n * 64};
    const char *from =
        (const char *)p->hidden.data + b * p->hidden.stride * cpu_element_size(p->hidden.dtype);
    float *wide = screen->wide + b * columns;
    GUMBEL_ASSERT(b >= 0 && b < p->batch && p->hidden_size <= GUMBEL_SCREEN_COLUMNS_MOST);
    cpu_job_unpack(&screen->exact, b, screen->hidden + b * row);
    screen->exact.device->kernels->transform(from, p->hidden.dtype, (int)p->hidden_size,
                                             &cpu_identity, wide);
    if (!gumbel_screen_split_hidden(wide, p->hidden_size, &screen->header,
                                    product_gamma(p->hidden_size), &planes,
                                    &screen->rows[b].reach)) {
        for (int64_t k = 0; k < columns; k += 64) {
            memset(planes.high + k / 64 * planes.apart, 0, 64);
            memset(planes.low + k / 64 * planes.apart, 0, 64);
        }
        atomic_store_explicit(&screen->rows[b].full, 1, memory_order_relaxed);
    }
    start_sums(&planes, columns, &screen->start[first * 2 + b - first],
               &screen->start[first * 2 + n + b - first]);
}

static void split_share(void *argument, int32_t index)
{
    cpu_screen *screen = argument;
    (void)index;
    for (int64_t b; (b = atomic_fetch_add_explicit(&screen->next, 1, memory_order_relaxed)) <
                    screen->exact.problem->batch;)
        split_row(screen, b);
}

void cpu_screen_split_rows(cpu_screen *screen)
{
    const gumbel_problem *p = screen->exact.problem;
    atomic_store(&screen->next, 0);
    cpu_run_task(screen->exact.device, p->batch > 1 && cpu_worth_threads(p), split_share, screen);
}

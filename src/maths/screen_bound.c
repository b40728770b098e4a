/* SPDX-License-Identifier: Apache-2.0 */
#include "maths/screen_bound.h"

#include <math.h>

/* Margin for the rounding of sums and square roots in float64. */
#define UP (1.0 + 1e-9)
/* Margin for the conversion of a float64 to float32. */
#define FLOAT_UP (1.0 + 0x1p-20)

/* Adds rows * width bytes, rounded up to a multiple of `unit`; returns 0 on overflow. */
static int add_part(size_t *at, size_t rows, size_t width, size_t unit)
{
    size_t bytes;
    return !__builtin_mul_overflow(rows, width, &bytes) &&
           !__builtin_add_overflow(bytes, unit - 1, &bytes) &&
           !__builtin_add_overflow(*at, bytes / unit * unit, at) && *at <= INT64_MAX;
}

int gumbel_screen_find_parts_as(gumbel_screen_layout layout, int64_t rows, int64_t columns,
                                gumbel_screen_parts *parts)
{
    const int64_t side = layout == GUMBEL_SCREEN_LAYOUT_TILES ? 128 : 64;
    const size_t unit = layout == GUMBEL_SCREEN_LAYOUT_TILES ? 1024 : 64;
    size_t at = 0;
    parts->blocks = (rows / side + (rows % side != 0)) * (side / GUMBEL_BLOCK);
    parts->columns = (columns + side - 1) / side * side;
    size_t blocks = (size_t)parts->blocks, columns_of_copy = (size_t)parts->columns;
    if (!add_part(&at, 1, sizeof(gumbel_screen_header), unit))
        return 0;
    parts->bounds = at;
    if (!add_part(&at, blocks, sizeof(gumbel_screen_block), unit))
        return 0;
    parts->steps = at;
    if (!add_part(&at, blocks * GUMBEL_BLOCK, sizeof(float), unit))
        return 0;
    parts->copy = at;
    if (!add_part(&at, blocks * GUMBEL_BLOCK, columns_of_copy, unit))
        return 0;
    parts->bytes = at;
    return 1;
}

int gumbel_screen_find_parts(int64_t rows, int64_t columns, gumbel_screen_parts *parts)
{
    return gumbel_screen_find_parts_as(GUMBEL_SCREEN_LAYOUT_CPU, rows, columns, parts);
}

uint64_t gumbel_screen_checksum(const gumbel_screen_header *header)
{
    unsigned char bytes[offsetof(gumbel_screen_header, check)];
    uint64_t check = UINT64_C(0xcbf29ce484222325);
    memcpy(bytes, header, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        check = (check ^ bytes[i]) * UINT64_C(0x100000001b3);
    return check;
}

/* The largest absolute values of a hidden state, descending. */
typedef struct largest {
    float size[GUMBEL_SCREEN_OUTLIERS_MAX];
    int count;
} largest;

static void keep_largest(largest *l, float size)
{
    int at = l->count < GUMBEL_SCREEN_OUTLIERS_MAX ? l->count++ : l->count - 1;
    for (; at > 0 && l->size[at - 1] < size; at--)
        l->size[at] = l->size[at - 1];
    l->size[at] = size;
}

/* The largest absolute values of h. A run of 16 is searched only if its maximum is among them. */
static void find_largest(const float *h, int64_t columns, largest *l)
{
    l->count = 0;
    for (int64_t i = 0; i < columns; i += 16) {
        int64_t end = columns - i < 16 ? columns : i + 16;
        float most = 0.0f, least = l->count < GUMBEL_SCREEN_OUTLIERS_MAX
                                       ? -1.0f
                                       : l->size[GUMBEL_SCREEN_OUTLIERS_MAX - 1];
        for (int64_t j = i; j < end; j++)
            most = fabsf(h[j]) > most ? fabsf(h[j]) : most;
        if (!(most > least))
            continue;
        for (int64_t j = i; j < end; j++)
            if (l->count < GUMBEL_SCREEN_OUTLIERS_MAX ||
                fabsf(h[j]) > l->size[GUMBEL_SCREEN_OUTLIERS_MAX - 1])
                keep_largest(l, fabsf(h[j]));
    }
}

/* Chooses the set O of the n largest entries that minimizes 1/2 |h_O|_1 + error |h without O|_2. */
static void bound_outliers(const largest *l, double square, float error,
                           gumbel_screen_hidden_error *reach)
{
    double outliers = 0.0, remaining = square, best = INFINITY, entry = GUMBEL_SCREEN_ENTRY;
    if (error < GUMBEL_SCREEN_ENTRY)
        entry = error;
    for (int n = 0; n <= l->count; n++) {
        /* The rounding error of each subtraction is below 2^-52 of `square`. */
        double rest = sqrt(fmax(remaining, 0.0) + 1e-12 * square);
        double bound = entry * outliers + (double)error * rest;
        if (bound < best) {
            best = bound;
            reach->outliers = (float)(outliers * FLOAT_UP);
            reach->rest = (float)(rest * UP * FLOAT_UP);
        }
        if (n < l->count) {
            outliers += (double)l->size[n];
            remaining -= (double)l->size[n] * (double)l->size[n];
        }
    }
}

/* The square of the norm of h and its largest absolute value; returns 0 if h is not finite. */
static int measure_hidden(const float *h, int64_t columns, double *square, float *most)
{
    double sum = 0.0;
    float size = 0.0f;
    int finite = 1;
    for (int64_t i = 0; i < columns; i++) {
        finite &= fabsf(h[i]) < INFINITY;
        size = fabsf(h[i]) > size ? fabsf(h[i]) : size;
        sum += (double)h[i] * (double)h[i];
    }
    *square = sum;
    *most = size;
    return finite;
}

/* Sums of squares over the columns: the residual of h, and both planes. */
typedef struct plane_sums {
    double residual;
    int64_t high, low;
} plane_sums;

static void split_columns(const float *h, int count, double unit, int size, int8_t *high,
                          int8_t *low, plane_sums *sums)
{
    double inverse = 1.0 / unit, residual = 0.0;
    int32_t of_high = 0, of_low = 0, half = size / 2, shift = size == 256 ? 8 : 7;
    for (int i = 0; i < count; i++) {
        int32_t k = (int32_t)rint((double)h[i] * inverse), upper = (k + half) >> shift;
        int32_t lower = k - upper * size;
        double r = (double)h[i] - unit * (double)k;
        high[i] = (int8_t)upper;
        low[i] = (int8_t)lower;
        residual += r * r;
        of_high += upper * upper;
        of_low += lower * lower;
    }
    for (int i = count; i < 64; i++)
        high[i] = low[i] = 0;
    sums->residual += residual;
    sums->high += of_high;
    sums->low += of_low;
}

int gumbel_screen_split_hidden(const float *h, int64_t columns, const gumbel_screen_header *header,
                               double gamma, const gumbel_screen_planes *planes,
                               gumbel_screen_hidden_error *reach)
{
    largest l;
    double square;
    float most;
    plane_sums sums = {0};
    int finite = measure_hidden(h, columns, &square, &most);
    double norm = sqrt(square) * UP;
    if (!finite || !(norm < GUMBEL_SCREEN_HIDDEN_MAX) ||
        !(norm * (double)header->weight < GUMBEL_SCREEN_LOGIT_MAX))
        return 0;
    /* This unit keeps |high| below half a plane's range, and |low| at most half of it. */
    reach->unit = (float)((double)most / (planes->size * (planes->size / 2 - 1)) * FLOAT_UP);
    reach->unit = reach->unit < 0x1p-100f ? 0x1p-100f : reach->unit;
    for (int64_t i = 0; i < columns; i += 64) {
        int64_t at = i / 64 * planes->apart;
        split_columns(h + i, columns - i < 64 ? (int)(columns - i) : 64, (double)reach->unit,
                      planes->size, planes->high + at, planes->low + at, &sums);
    }
    find_largest(h, columns, &l);
    bound_outliers(&l, square, header->error, reach);
    double steps = planes->size * sqrt((double)sums.high) + sqrt((double)sums.low);
    double grain = sqrt(sums.residual) + 0x1p-21 * (double)reach->unit * steps;
    reach->grain = (float)(grain * UP * FLOAT_UP);
    reach->path = (float)(gamma * norm * FLOAT_UP);
    return 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "maths/screen_bound.h"

#include <math.h>

/* Margin for the rounding of sums and square roots in float64. */
#define UP (1.0 + 1e-9)
/* Margin for the conversion of a float64 to float32. */
#define FLOAT_UP (1.0 + 0x1p-20)

/* Adds rows * width bytes, rounded up to a multiple of `unit`; returns 0 on overflow. */
static int add_array(size_t *at, size_t rows, size_t width, size_t unit)
{
    size_t bytes;
    return !__builtin_mul_overflow(rows, width, &bytes) &&
           !__builtin_add_overflow(bytes, unit - 1, &bytes) &&
           !__builtin_add_overflow(*at, bytes / unit * unit, at) && *at <= INT64_MAX;
}

int gumbel_screen_find_offsets_as(gumbel_screen_layout layout, int64_t rows, int64_t columns,
                                  gumbel_screen_offsets *offsets)
{
    const int64_t side = layout == GUMBEL_SCREEN_LAYOUT_TILES ? 128 : 64;
    const size_t unit = layout == GUMBEL_SCREEN_LAYOUT_TILES ? 1024 : 64;
    size_t at = 0;
    offsets->blocks = (rows / side + (rows % side != 0)) * (side / GUMBEL_BLOCK);
    offsets->columns = (columns + side - 1) / side * side;
    size_t blocks = (size_t)offsets->blocks, columns_of_copy = (size_t)offsets->columns;
    if (!add_array(&at, 1, sizeof(gumbel_screen_header), unit))
        return 0;
    offsets->bounds = at;
    if (!add_array(&at, blocks, sizeof(gumbel_screen_block), unit))
        return 0;
    offsets->steps = at;
    if (!add_array(&at, blocks * GUMBEL_BLOCK, sizeof(float), unit))
        return 0;
    offsets->copy = at;
    if (!add_array(&at, blocks * GUMBEL_BLOCK, columns_of_copy, unit))
        return 0;
    offsets->bytes = at;
    return 1;
}

int gumbel_screen_find_offsets(int64_t rows, int64_t columns, gumbel_screen_offsets *offsets)
{
    return gumbel_screen_find_offsets_as(GUMBEL_SCREEN_LAYOUT_CPU, rows, columns, offsets);
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

/* Finds the largest absolute values of h. A run of 16 is searched only if its maximum is one of
 * them. */
static void find_largest(const float *h, int64_t columns, largest *l)
{
    l->count = 0;
    for (int64_t i = 0; i < columns; i += 16) {
        int64_t end = columns - i < 16 ? columns : i + 16;
        float max_size = 0.0f, listed_min = l->count < GUMBEL_SCREEN_OUTLIERS_MAX
                                                ? -1.0f
                                                : l->size[GUMBEL_SCREEN_OUTLIERS_MAX - 1];
        for (int64_t j = i; j < end; j++)
            max_size = fabsf(h[j]) > max_size ? fabsf(h[j]) : max_size;
        if (!(max_size > listed_min))
            continue;
        for (int64_t j = i; j < end; j++)
            if (l->count < GUMBEL_SCREEN_OUTLIERS_MAX ||
                fabsf(h[j]) > l->size[GUMBEL_SCREEN_OUTLIERS_MAX - 1])
                keep_largest(l, fabsf(h[j]));
    }
}

/* Chooses the set O of the n largest |h_j| that minimizes entry A + error R. */
static void bound_outliers(const largest *l, double square, float error,
                           gumbel_screen_hidden_error *hidden_error)
{
    double outliers = 0.0, remaining = square, best = INFINITY, entry = GUMBEL_SCREEN_ENTRY;
    if (error < GUMBEL_SCREEN_ENTRY)
        entry = error;
    for (int n = 0; n <= l->count; n++) {
        /* The rounding error of each subtraction is below 2^-52 of `square`. */
        double inlier_norm = sqrt(fmax(remaining, 0.0) + 1e-12 * square);
        double bound = entry * outliers + (double)error * inlier_norm;
        if (bound < best) {
            best = bound;
            hidden_error->outlier_sum = (float)(outliers * FLOAT_UP);
            hidden_error->inlier_norm = (float)(inlier_norm * UP * FLOAT_UP);
        }
        if (n < l->count) {
            outliers += (double)l->size[n];
            remaining -= (double)l->size[n] * (double)l->size[n];
        }
    }
}

/* The square of the norm of h and its largest absolute value; returns 0 if h is not finite. */
static int measure_hidden(const float *h, int64_t columns, double *square, float *max_size)
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
    *max_size = size;
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
                               gumbel_screen_hidden_error *hidden_error)
{
    largest l;
    double square;
    float max_size;
    plane_sums sums = {0};
    int finite = measure_hidden(h, columns, &square, &max_size);
    double norm = sqrt(square) * UP;
    if (!finite || !(norm < GUMBEL_SCREEN_HIDDEN_MAX) ||
        !(norm * (double)header->weight < GUMBEL_SCREEN_LOGIT_MAX))
        return 0;
    /* This unit keeps |high| below half a plane's range, and |low| at most half of it. */
    hidden_error->unit =
        (float)((double)max_size / (planes->size * (planes->size / 2 - 1)) * FLOAT_UP);
    hidden_error->unit = hidden_error->unit < 0x1p-100f ? 0x1p-100f : hidden_error->unit;
    for (int64_t i = 0; i < columns; i += 64) {
        int64_t at = i / 64 * planes->stride;
        split_columns(h + i, columns - i < 64 ? (int)(columns - i) : 64, (double)hidden_error->unit,
                      planes->size, planes->high + at, planes->low + at, &sums);
    }
    find_largest(h, columns, &l);
    bound_outliers(&l, square, header->error, hidden_error);
    double steps = planes->size * sqrt((double)sums.high) + sqrt((double)sums.low);
    double residual = sqrt(sums.residual) + 0x1p-21 * (double)hidden_error->unit * steps;
    hidden_error->residual = (float)(residual * UP * FLOAT_UP);
    hidden_error->rounding = (float)(gamma * norm * FLOAT_UP);
    return 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "maths/screen_bound.h"

#include "gumbel/screen.h"

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
    offsets->dither = at;
    if (!add_array(&at, columns_of_copy, sizeof(int32_t), unit))
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

void gumbel_screen_seed_dither(uint64_t seed, int64_t first, int64_t count, int32_t *dither)
{
    /* Words that no draw uses: the counts of draws are below 2^30 (noise.h). */
    const uint32_t unused = UINT32_C(1) << 31;
    gumbel_stream stream = {.seed = seed};
    for (int64_t i = 0; i < count; i += 4) {
        uint32_t words[4];
        gumbel_philox_words(stream, unused + (uint32_t)((first + i) / 4), 0, words);
        for (int64_t j = i; j < count && j < i + 4; j++)
            dither[j] = gumbel_screen_dither_of(words[j - i]);
    }
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

/* The least bound entry A + deviation R over all sets O of the n largest |h_j|, and its A and R,
 * rounded up. */
typedef struct outlier_bound {
    double bound;
    float sum, inlier_norm;
} outlier_bound;

static outlier_bound bound_outliers(const largest *l, double square, double entry, double deviation)
{
    double outliers = 0.0, remaining = square;
    outlier_bound best = {INFINITY, 0.0f, 0.0f};
    for (int n = 0; n <= l->count; n++) {
        /* The rounding error of `square`, of up to 65,535 terms, and of the subtractions. */
        double inlier_norm = sqrt(fmax(remaining, 0.0) + 1e-11 * square);
        double bound = entry * outliers + deviation * inlier_norm;
        if (bound < best.bound)
            best = (outlier_bound){bound, (float)(outliers * FLOAT_UP),
                                   (float)(inlier_norm * UP * FLOAT_UP)};
        if (n < l->count) {
            outliers += (double)l->size[n];
            remaining -= (double)l->size[n] * (double)l->size[n];
        }
    }
    return best;
}

/* Sums over a hidden state. */
typedef struct hidden_sums {
    double square;    /* of the norm */
    double magnitude; /* of |h_j| */
    double shift;     /* of u_j h_j */
    float max_size;
    int finite;
} hidden_sums;

static hidden_sums measure_hidden(const float *h, const int32_t *dither, int64_t columns)
{
    hidden_sums s = {.finite = 1};
    for (int64_t i = 0; i < columns; i++) {
        double size = fabs((double)h[i]);
        s.finite &= fabsf(h[i]) < INFINITY;
        s.max_size = fabsf(h[i]) > s.max_size ? fabsf(h[i]) : s.max_size;
        s.square += size * size;
        s.magnitude += size;
        s.shift += (double)dither[i] * (double)h[i];
    }
    s.shift *= (double)GUMBEL_SCREEN_DITHER_UNIT;
    return s;
}

/* Bounds the sum of e_j h_j: for certain, or with the chance of GUMBEL_SCREEN_DEVIATION if the
 * screen's certificate permits that and the bound is smaller. */
static void bound_quantization(const float *h, int64_t columns, const gumbel_screen_header *header,
                               const hidden_sums *s, gumbel_screen_hidden_error *hidden_error)
{
    largest l;
    const double error = header->error, entry = GUMBEL_SCREEN_ENTRY;
    find_largest(h, columns, &l);
    outlier_bound certain = bound_outliers(&l, s->square, error < entry ? error : entry, error);
    outlier_bound random = bound_outliers(&l, s->square, entry, GUMBEL_SCREEN_DEVIATION);
    /* The mean of an error, and the rounding of w / s to the unit of the dither. */
    double dithered = random.bound + (double)GUMBEL_SCREEN_DITHER_UNIT * s->magnitude;
    /* The rounding of the shift in float64 and float32, and of its sums in
     * gumbel_screen_bound_logit(). */
    double shift_error = 0x1p-21 * fabs(s->shift) + 0x1p-36 * s->magnitude;
    shift_error += (double)GUMBEL_SCREEN_WIDTH_MIN;
    hidden_error->shift = (float)s->shift;
    if (header->certificate == GUMBEL_SCREEN_CERTAIN || !(dithered < certain.bound)) {
        hidden_error->outlier_sum = certain.sum;
        hidden_error->inlier_norm = certain.inlier_norm;
        hidden_error->dithered = (float)(shift_error * FLOAT_UP);
        return;
    }
    hidden_error->outlier_sum = hidden_error->inlier_norm = 0.0f;
    hidden_error->dithered = (float)((dithered + shift_error) * UP * FLOAT_UP);
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
                               const int32_t *dither, double gamma,
                               const gumbel_screen_planes *planes,
                               gumbel_screen_hidden_error *hidden_error)
{
    plane_sums sums = {0};
    hidden_sums s = measure_hidden(h, dither, columns);
    double norm = sqrt(s.square) * UP;
    if (!s.finite || !(norm < GUMBEL_SCREEN_HIDDEN_MAX) ||
        !(norm * (double)header->weight < GUMBEL_SCREEN_LOGIT_MAX))
        return 0;
    /* This unit keeps |high| below half a plane's range, and |low| at most half of it. */
    hidden_error->unit =
        (float)((double)s.max_size / (planes->size * (planes->size / 2 - 1)) * FLOAT_UP);
    hidden_error->unit = hidden_error->unit < 0x1p-100f ? 0x1p-100f : hidden_error->unit;
    for (int64_t i = 0; i < columns; i += 64) {
        int64_t at = i / 64 * planes->stride;
        split_columns(h + i, columns - i < 64 ? (int)(columns - i) : 64, (double)hidden_error->unit,
                      planes->size, planes->high + at, planes->low + at, &sums);
    }
    bound_quantization(h, columns, header, &s, hidden_error);
    double steps = planes->size * sqrt((double)sums.high) + sqrt((double)sums.low);
    double residual = sqrt(sums.residual) + 0x1p-21 * (double)hidden_error->unit * steps;
    hidden_error->residual = (float)(residual * UP * FLOAT_UP);
    /* Also the rounding of w times the inverse of the step. */
    hidden_error->rounding = (float)((gamma + 0x1p-22) * norm * FLOAT_UP);
    return 1;
}

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
    const int is_tiled =
        layout == GUMBEL_SCREEN_LAYOUT_TILES || layout == GUMBEL_SCREEN_LAYOUT_NIBBLE_TILES;
    const int64_t side = is_tiled ? 128 : 64;
    const size_t unit = is_tiled ? 1024 : 64;
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

/* Four words of uniform random bits for columns column .. column + 3. */
static void make_seed_words(uint64_t seed, int64_t column, uint32_t words[4])
{
    /* Words that no draw uses: the counts of draws are below 2^30 (noise.h). */
    const uint32_t unused = UINT32_C(1) << 31;
    gumbel_stream stream = {.seed = seed};
    gumbel_philox_words(stream, unused + (uint32_t)(column / 4), 0, words);
}

void gumbel_screen_seed_dither(uint64_t seed, int64_t first, int64_t count, int32_t *dither)
{
    for (int64_t i = 0; i < count; i += 4) {
        uint32_t words[4];
        make_seed_words(seed, first + i, words);
        for (int64_t j = i; j < count && j < i + 4; j++)
            dither[j] = gumbel_screen_dither_of(words[j - i]);
    }
}

void gumbel_screen_seed_columns(uint64_t seed, int64_t first, int64_t count,
                                gumbel_screen_column *columns)
{
    for (int64_t i = 0; i < count; i += 4) {
        uint32_t words[4];
        make_seed_words(seed, first + i, words);
        for (int64_t j = i; j < count && j < i + 4; j++)
            columns[j] = words[j - i] / GUMBEL_SCREEN_SCALES * GUMBEL_SCREEN_SCALES;
    }
}

#define OCTAVE(of, x)                                                                              \
    of(x), of((x)*GUMBEL_SCREEN_ROOT_1), of((x)*GUMBEL_SCREEN_ROOT_2), of((x)*GUMBEL_SCREEN_ROOT_3)
#define ITSELF(x)  (x)
#define INVERSE(x) 1.0f / (x)
const float gumbel_screen_scales[GUMBEL_SCREEN_SCALES] = {
    OCTAVE(ITSELF, 1.0f), OCTAVE(ITSELF, 2.0f), OCTAVE(ITSELF, 4.0f), OCTAVE(ITSELF, 8.0f)};
const float gumbel_screen_inverse_scales[GUMBEL_SCREEN_SCALES] = {
    OCTAVE(INVERSE, 1.0f), OCTAVE(INVERSE, 2.0f), OCTAVE(INVERSE, 4.0f), OCTAVE(INVERSE, 8.0f)};

void gumbel_screen_scale_hidden(const gumbel_screen_column *columns, int64_t count, float *h)
{
    for (int64_t i = 0; i < count; i++)
        h[i] *= gumbel_screen_scales[gumbel_screen_column_scale(columns[i])];
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
    double sum;       /* of h_j */
    double shift;     /* of u_j h_j */
    float max_size;
    int finite;
} hidden_sums;

static hidden_sums measure_hidden(const float *h, const gumbel_screen_header *header,
                                  const int32_t *dither, int64_t columns)
{
    hidden_sums s = {.finite = 1};
    const int nested = gumbel_screen_is_nested(header->layout);
    for (int64_t i = 0; i < columns; i++) {
        double size = fabs((double)h[i]);
        int32_t u = nested ? gumbel_screen_column_dither((uint32_t)dither[i]) : dither[i];
        s.finite &= fabsf(h[i]) < INFINITY;
        s.max_size = fabsf(h[i]) > s.max_size ? fabsf(h[i]) : s.max_size;
        s.square += size * size;
        s.magnitude += size;
        s.sum += (double)h[i];
        s.shift += (double)u * (double)h[i];
    }
    s.shift *= (double)GUMBEL_SCREEN_DITHER_UNIT;
    return s;
}

/* The law of the errors e_j of a row, in steps. */
typedef struct error_law {
    double scale;      /* distance of two values that a weight is rounded to */
    double norm;       /* bounds the norm of the errors of every row */
    double deviation;  /* c of GUMBEL_SCREEN_DEVIATION; 0: bounds hold for certain */
    double mean;       /* bounds the mean of an error, and the rounding of w / s to the grid */
    double max_dither; /* bounds all |u_j| */
    double tiny;       /* bounds the errors of terms that are subnormal */
} error_law;

static error_law find_error_law(const gumbel_screen_header *header)
{
    error_law law = {.scale = 1.0,
                     .norm = (double)header->error,
                     .deviation = GUMBEL_SCREEN_DEVIATION,
                     .mean = (double)GUMBEL_SCREEN_DITHER_UNIT,
                     .max_dither = 0.5,
                     .tiny = (double)GUMBEL_SCREEN_WIDTH_MIN};
    if (gumbel_screen_is_nested(header->layout)) {
        law.deviation = GUMBEL_SCREEN_NESTED_DEVIATION;
        law.mean = 0x1p-16;
        law.max_dither = 8.5;
        /* Also N times the rounding of scaled subnormal hidden states. */
        law.tiny = 0x1p-125;
    }
    if (header->certificate == GUMBEL_SCREEN_CERTAIN)
        law.deviation = 0.0;
    return law;
}

/* Bounds the sum of e_j h_j: for certain, or with the chance of the law's deviation if there is one
 * and the bound is smaller. */
static void bound_quantization(const float *h, int64_t columns, const error_law *law,
                               const hidden_sums *s, gumbel_screen_hidden_error *hidden_error)
{
    largest l;
    const double entry = law->scale * (double)GUMBEL_SCREEN_ENTRY;
    find_largest(h, columns, &l);
    outlier_bound certain =
        bound_outliers(&l, s->square, law->norm < entry ? law->norm : entry, law->norm);
    outlier_bound random = bound_outliers(&l, s->square, entry, law->scale * law->deviation);
    double dithered = random.bound + law->mean * s->magnitude;
    /* The rounding of the shift in float64 and float32, and of its sums in
     * gumbel_screen_bound_logit(). */
    double shift_error =
        0x1p-21 * fabs(s->shift) + 2 * law->max_dither * 0x1p-36 * s->magnitude + law->tiny;
    hidden_error->shift = (float)s->shift;
    if (!(law->deviation > 0.0) || !(dithered < certain.bound)) {
        hidden_error->outlier_sum = certain.sum;
        hidden_error->inlier_norm = certain.inlier_norm;
        hidden_error->dithered = (float)(shift_error * FLOAT_UP);
        return;
    }
    hidden_error->outlier_sum = hidden_error->inlier_norm = 0.0f;
    hidden_error->dithered = (float)((dithered + shift_error) * UP * FLOAT_UP);
}

float gumbel_screen_bound_low_nibbles(int64_t columns)
{
    return (float)(7.5 * sqrt((double)columns) * FLOAT_UP);
}

/* Rounds h to one plane of integers k, each up or down at random such that its mean is h / unit.
 * Returns G: a bound of the sum of v_j (h_j - unit k_j) is G times the norm of v, for v that does
 * not depend on the random bits. */
static double round_to_plane(const float *h, int64_t columns, const int32_t *words, double unit,
                             double deviation, int8_t *plane, int64_t stride)
{
    double square = 0.0, grid = 0.0, of_plane = 0.0;
    for (int64_t i = 0; i < columns; i++) {
        double y = (double)h[i] / unit;
        int32_t on_grid = (int32_t)rint(y * 256.0);
        int32_t k = (on_grid + (int32_t)((uint32_t)words[i] >> 4 & 255)) >> 8;
        double r = (double)h[i] - unit * k, off_grid = y - on_grid / 256.0;
        plane[i / 64 * stride + i % 64] = (int8_t)k;
        square += r * r;
        grid += off_grid * off_grid;
        of_plane += (double)(k * k);
    }
    for (int64_t i = columns; i % 64 != 0; i++)
        plane[i / 64 * stride + i % 64] = 0;
    double certain = sqrt(square), random = unit * (sqrt(3.0) * deviation + sqrt(grid));
    return (deviation > 0.0 && random < certain ? random : certain) +
           0x1p-21 * unit * sqrt(of_plane);
}

void gumbel_screen_round_hidden(const float *h, int64_t columns, const gumbel_screen_header *header,
                                const int32_t *dither, const gumbel_screen_hidden_error *fine,
                                int8_t *plane, int64_t stride, gumbel_screen_hidden_error *coarse,
                                gumbel_screen_hidden_error *refined)
{
    hidden_sums s = measure_hidden(h, header, dither, columns);
    error_law law = find_error_law(header);
    law.scale = 16.0;
    law.norm += (double)gumbel_screen_bound_low_nibbles(columns);
    law.max_dither = 16.0;
    s.shift -= 7.5 * s.sum;
    *refined = *fine;
    refined->unit = (float)((double)s.max_size / 126.0 * FLOAT_UP);
    refined->unit = refined->unit < 0x1p-100f ? 0x1p-100f : refined->unit;
    double residual =
        round_to_plane(h, columns, dither, (double)refined->unit, law.deviation, plane, stride);
    refined->residual = (float)(residual * UP * FLOAT_UP);
    *coarse = *refined;
    coarse->unit *= 16.0f;
    bound_quantization(h, columns, &law, &s, coarse);
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
    hidden_sums s = measure_hidden(h, header, dither, columns);
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
    error_law law = find_error_law(header);
    bound_quantization(h, columns, &law, &s, hidden_error);
    double steps = planes->size * sqrt((double)sums.high) + sqrt((double)sums.low);
    double residual = sqrt(sums.residual) + 0x1p-21 * (double)hidden_error->unit * steps;
    hidden_error->residual = (float)(residual * UP * FLOAT_UP);
    /* Also the rounding of w times the inverse of the step, and by scales of columns. */
    double scaled = gumbel_screen_is_nested(header->layout) ? 0x1p-20 : 0x1p-22;
    hidden_error->rounding = (float)((gamma + scaled) * norm * FLOAT_UP);
    return 1;
}

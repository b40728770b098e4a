/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels in plain C, which every other instruction set must reproduce bit for bit.
 */
#include "cpu/cpu_kernels.h"

#include "cpu/lanes/cpu_widen.h"
#include "maths/rounding.h"

static void multiply_tile(const cpu_product *p)
{
    int64_t k_tiles = (p->hidden_size + CPU_K_TILE - 1) / CPU_K_TILE;
    for (int i = 0; i < p->count; i++) {
        const char *row = (const char *)p->weight + (int64_t)i * p->stride_bytes;
        for (int64_t b = 0; b < p->batch; b++) {
            float lanes[CPU_LANES] = {0};
            /* The zeros that pad a k-tile are added too: they turn -0 into +0. */
            for (int64_t k = 0; k < k_tiles * CPU_K_TILE; k++) {
                int64_t k_tile = k / CPU_K_TILE;
                int at = cpu_find_packed_place(p->dtype, (int)(k % CPU_K_TILE));
                float h = p->panels[(b * k_tiles + k_tile) * CPU_K_TILE + at];
                float w = k < p->hidden_size ? cpu_widen_element(row, p->dtype, k) : 0.0f;
                lanes[at % CPU_LANES] = fmaf(w, h, lanes[at % CPU_LANES]);
            }
            p->out[b * p->out_stride + i] = cpu_sum_lanes(lanes);
        }
    }
}

static void transform_logits(const void *from, gumbel_dtype dtype, int count,
                             const cpu_transform *t, float *z)
{
    for (int i = 0; i < count; i++) {
        float logit = cpu_widen_element(from, dtype, i);
        z[i] = gumbel_transform_logit(t->bias ? logit + t->bias[i] : logit, t->scale, t->soft_cap,
                                      t->inverse_cap, t->inverse_temperature);
    }
}

static void store_values(const float *v, int64_t count, gumbel_dtype dtype, void *to)
{
    for (int64_t i = 0; i < count; i++)
        gumbel_store_element(to, dtype, i, v[i]);
}

static void mask_tokens(float *z, const uint32_t *drop, int words)
{
    for (int i = 0; i < 32 * words; i++)
        if (drop[i / 32] >> i % 32 & 1)
            z[i] = -INFINITY;
}

/* Adds the mass of a block. Lane j sums tokens j, j + 16, j + 32, j + 48 in pairs. */
static void add_mass(gumbel_summary *s, const float *z)
{
    float lanes[CPU_LANES], m = -INFINITY;
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        m = z[i] > m ? z[i] : m;
    if (m == -INFINITY)
        return;
    for (int j = 0; j < CPU_LANES; j++)
        lanes[j] = (gumbel_exp(z[j] - m) + gumbel_exp(z[j + 16] - m)) +
                   (gumbel_exp(z[j + 32] - m) + gumbel_exp(z[j + 48] - m));
    s->max_z = m > s->max_z ? m : s->max_z;
    gumbel_mass_add_block(s, m, cpu_sum_lanes(lanes));
}

static void draw_tokens(const float *y, const cpu_draw *d)
{
    for (int block = 0; block < d->blocks; block++, y += GUMBEL_BLOCK) {
        float z[GUMBEL_BLOCK];
        for (int i = 0; i < GUMBEL_BLOCK; i++)
            z[i] = y[i] * d->factor;
        uint32_t token = d->token + (uint32_t)(block * GUMBEL_BLOCK);
        if (cpu_flag_invalid_logits(d->summaries, z))
            continue;
        if (d->with_mass)
            add_mass(d->summaries, z);
        for (int s = 0; s < d->num_samples; s++) {
            if (d->noise) {
                cpu_draw_with_noise(d, s, z, block * GUMBEL_BLOCK);
                continue;
            }
            gumbel_stream stream = d->row->stream;
            stream.sample += (uint32_t)s;
            for (uint32_t i = 0; i < GUMBEL_BLOCK; i++) {
                cpu_candidates *candidates = cpu_get_sample_candidates(d, s);
                if (d->row->greedy)
                    cpu_offer_greedy_token(&d->summaries[s], candidates, z[i], token + i);
                else
                    cpu_offer_token(&d->summaries[s], candidates, z[i],
                                    gumbel_noise_of_token(stream, token + i), token + i);
            }
        }
    }
}

static void make_noise(gumbel_stream stream, uint32_t token, int blocks, float *out)
{
    gumbel_fill_noise(stream, token, (int64_t)blocks * GUMBEL_BLOCK, out);
}

static uint32_t find_maxima(const float *v, int64_t blocks, float *largest)
{
    gumbel_summary seen = {0};
    for (int64_t i = 0; i < blocks; i++, v += GUMBEL_BLOCK) {
        cpu_flag_invalid_logits(&seen, v);
        largest[i] = -INFINITY;
        for (int j = 0; j < GUMBEL_BLOCK; j++)
            largest[i] = v[j] > largest[i] ? v[j] : largest[i];
    }
    return seen.flags;
}

static uint64_t find_blocks_from(const float *maxima, int64_t count, float bound)
{
    uint64_t bits = 0;
    for (int i = 0; i < GUMBEL_BLOCK && i < count; i++)
        bits |= (uint64_t) !(maxima[i] < bound) << i;
    return bits;
}

/* Whether a block may have tokens: the values of a block that a program removed are not defined. */
static int has_tokens(const cpu_span *s, int64_t block)
{
    return s->block_maxima[block] > -INFINITY;
}

static int64_t sum_masses(const cpu_span *s, float bound, float largest, cpu_weight *sum)
{
    int64_t count = 0;
    for (int64_t block = 0; block < s->blocks; block += s->step)
        for (int j = 0; j < GUMBEL_BLOCK && has_tokens(s, block); j++) {
            float v = s->v[block * GUMBEL_BLOCK + j];
            if (v < bound)
                continue;
            cpu_add_weight(sum, gumbel_token_mass(gumbel_exp(v - largest)));
            count++;
        }
    return count;
}

static int collect_values(const cpu_span *s, float bound, float *out, int room, int *count)
{
    for (int64_t block = 0; block < s->blocks; block += s->step)
        for (int j = 0; j < GUMBEL_BLOCK && has_tokens(s, block); j++) {
            if (s->v[block * GUMBEL_BLOCK + j] < bound)
                continue;
            if (*count == room)
                return 0;
            out[(*count)++] = s->v[block * GUMBEL_BLOCK + j];
        }
    return 1;
}

static void add_to_bins(const cpu_span *s, const cpu_histogram *h)
{
    for (int64_t block = 0; block < s->blocks; block += s->step)
        for (int j = 0; j < GUMBEL_BLOCK && has_tokens(s, block); j++) {
            float z = s->v[block * GUMBEL_BLOCK + j] * h->scale;
            float place = h->by_distance ? -gumbel_typical_distance(z, h->largest, h->centre) : z;
            if (place >= h->low && place <= h->high)
                cpu_add_weight(&h->bins[cpu_find_bin(h, place)],
                               h->by_mass ? gumbel_token_mass(gumbel_exp(z - h->largest)) : 1);
        }
}

static void sum_facts(const cpu_span *s, int required, float largest, gumbel_facts *facts)
{
    for (int64_t block = 0; block < s->blocks; block += s->step)
        for (int j = 0; j < GUMBEL_BLOCK && has_tokens(s, block); j++) {
            const float v = s->v[block * GUMBEL_BLOCK + j], x = v - largest;
            if (v > -INFINITY)
                gumbel_facts_add(facts, required, v, largest, gumbel_exp(x), gumbel_exp(2.0f * x));
        }
}

static void filter_distances(const float *v, float largest, float centre, float reach, float *out)
{
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        out[i] = gumbel_typical_distance(v[i], largest, centre) > reach ? -INFINITY : v[i];
}

static void adapt_values(const float *v, float largest, float inverse_mass, float target,
                         float *out)
{
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        out[i] = v[i] > -INFINITY ? gumbel_adapt_value(v[i], largest, inverse_mass, target) : v[i];
}

static int filter_block(const float *v, float scale, float bound, float *out)
{
    int survivors = 0;
    for (int i = 0; i < GUMBEL_BLOCK; i++) {
        out[i] = v[i] < bound ? -INFINITY : v[i] * scale;
        survivors += out[i] > -INFINITY;
    }
    return survivors;
}

static int64_t count_above(const cpu_span *s, float scale, float bound)
{
    int64_t count = 0;
    for (int64_t block = 0; block < s->blocks; block += s->step)
        for (int j = 0; j < GUMBEL_BLOCK && has_tokens(s, block); j++)
            count += s->v[block * GUMBEL_BLOCK + j] * scale > bound;
    return count;
}

static double exponentiate_row(float *z, int count, float max_z)
{
    double sum = 0.0;
    for (int block = 0; block < count; block += GUMBEL_BLOCK) {
        float e[GUMBEL_BLOCK] = {0}, lanes[CPU_LANES];
        for (int i = block; i < count && i < block + GUMBEL_BLOCK; i++)
            z[i] = e[i - block] = gumbel_relative_probability(z[i], max_z);
        for (int j = 0; j < CPU_LANES; j++)
            lanes[j] = (e[j] + e[j + 16]) + (e[j + 32] + e[j + 48]);
        sum += (double)cpu_sum_lanes(lanes);
    }
    return sum;
}

static void scale_row(float *z, int count, float by)
{
    for (int i = 0; i < count; i++)
        z[i] *= by;
}

/* A weight, divided by the scale of its column. */
static float load_scaled(const cpu_quantized_rows *r, int row, int64_t column)
{
    float w = cpu_widen_element((const char *)r->weight + row * r->stride_bytes, r->dtype, column);
    if (!r->low_nibbles)
        return w;
    return w *
           gumbel_screen_inverse_scales[gumbel_screen_column_scale((uint32_t)r->dither[column])];
}

/* Stores the bytes of a row's next 64 columns, of which `count` are given. */
static void store_columns(const cpu_quantized_rows *r, int row, int64_t column, uint8_t bytes[64],
                          int count)
{
    memset(bytes + count, 128, (size_t)(64 - count));
    if (r->low_nibbles) {
        cpu_store_nibbles(r, row, column, bytes);
        return;
    }
    for (int i = 0; i < 64; i++)
        r->copy[column / 64 * CPU_SCREEN_TILE + i / 4 * 64 + row * 4 + i % 4] = bytes[i];
}

/* Quantizes a row into its place of the copy, and raises the bounds. */
static void quantize_row(cpu_quantized_rows *r, int row)
{
    float error[CPU_LANES] = {0}, size[CPU_LANES] = {0}, coarse[CPU_LANES] = {0};
    float weight[CPU_LANES] = {0}, most = 0.0f;
    for (int64_t i = 0; i < r->hidden_size; i++) {
        float w = fabsf(load_scaled(r, row, i));
        most = !(w < INFINITY) ? INFINITY : w > most ? w : most;
    }
    r->steps[row] = cpu_choose_screen_step(r, most);
    if (!(r->steps[row] > 0.0f))
        return;
    float inverse = 1.0f / r->steps[row];
    uint8_t bytes[64];
    for (int64_t i = 0; i < r->hidden_size; i++) {
        int32_t u =
            r->low_nibbles ? gumbel_screen_column_dither((uint32_t)r->dither[i]) : r->dither[i];
        float x = load_scaled(r, row, i) * inverse, e;
        float q = (float)gumbel_screen_round(x, u, &e);
        int lane = (int)(i % CPU_LANES);
        weight[lane] = fmaf(x, x, weight[lane]);
        error[lane] = fmaf(e, e, error[lane]);
        size[lane] = fmaf(q, q, size[lane]);
        bytes[i % 64] = (uint8_t)((int)q + 128);
        float high = (float)((bytes[i % 64] & 0xf0) - 128);
        if (r->low_nibbles)
            coarse[lane] = fmaf(high, high, coarse[lane]);
        if (i % 64 == 63 || i == r->hidden_size - 1)
            store_columns(r, row, i / 64 * 64, bytes, (int)(i % 64) + 1);
    }
    cpu_raise_row_bound(r, row, cpu_sum_lanes(error),
                        fmaxf(cpu_sum_lanes(size), cpu_sum_lanes(coarse)), cpu_sum_lanes(weight));
}

static void quantize_rows(cpu_quantized_rows *r)
{
    for (int row = 0; row < 16; row++)
        for (int64_t column = 0; column < r->hidden_size; column += 64) {
            uint8_t bytes[64];
            store_columns(r, row, column, bytes, 0);
        }
    memset(r->steps, 0, 16 * sizeof *r->steps);
    for (int row = 0; row < r->count; row++)
        quantize_row(r, row);
}

static void bound_logits(const cpu_logit_bounds *e, float *out)
{
    for (int i = 0; i < GUMBEL_BLOCK; i++) {
        int64_t at = i / 16 * e->stride + i % 16;
        out[i] = gumbel_screen_bound_logit(e->steps[i], e->unit, e->plane, e->width, e->tiny,
                                           e->high[at], e->low[at]);
    }
}

const cpu_kernels cpu_reference_kernels = CPU_KERNELS(GUMBEL_ISA_REFERENCE, 1);

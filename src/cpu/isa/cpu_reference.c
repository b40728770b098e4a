/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels in plain C: what every other instruction set must reproduce bit for bit.
 */
#include "cpu/cpu_kernels.h"

#include "cpu/lanes/cpu_widen.h"

static void product(const cpu_product *p)
{
    int64_t chunks = (p->hidden_size + CPU_CHUNK - 1) / CPU_CHUNK;
    for (int i = 0; i < p->count; i++) {
        const char *row = (const char *)p->weight + (int64_t)i * p->stride_bytes;
        for (int64_t b = 0; b < p->batch; b++) {
            float lanes[CPU_LANES] = {0};
            /* Zeros that pad a chunk are added too: they make -0 a +0. */
            for (int64_t k = 0; k < chunks * CPU_CHUNK; k++) {
                int64_t chunk = k / CPU_CHUNK;
                int at = cpu_pack_place(p->dtype, (int)(k % CPU_CHUNK));
                float h = p->panels[(b * chunks + chunk) * CPU_CHUNK + at];
                float w = k < p->hidden_size ? cpu_widen_element(row, p->dtype, k) : 0.0f;
                lanes[at % CPU_LANES] = fmaf(w, h, lanes[at % CPU_LANES]);
            }
            p->out[b * p->out_stride + i] = cpu_sum_lanes(lanes);
        }
    }
}

static void transform(const void *from, gumbel_dtype dtype, int count, const cpu_transform *t,
                      float *z)
{
    for (int i = 0; i < count; i++) {
        float logit = cpu_widen_element(from, dtype, i);
        z[i] = gumbel_transform_logit(t->bias ? logit + t->bias[i] : logit, t->scale, t->soft_cap,
                                      t->inverse_cap, t->inverse_temperature);
    }
}

static void mask(float *z, const uint32_t *drop, int words)
{
    for (int i = 0; i < 32 * words; i++)
        if (drop[i / 32] >> i % 32 & 1)
            z[i] = -INFINITY;
}

/* The mass of a block: lane j sums tokens j, j + 16, j + 32, j + 48 in pairs. */
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

static void draw(const float *y, const cpu_draw *d)
{
    for (int block = 0; block < d->blocks; block++, y += GUMBEL_BLOCK) {
        float z[GUMBEL_BLOCK];
        for (int i = 0; i < GUMBEL_BLOCK; i++)
            z[i] = y[i] * d->factor;
        uint32_t token = d->token + (uint32_t)(block * GUMBEL_BLOCK);
        if (cpu_flag_block(d->summaries, z))
            continue;
        if (d->with_mass)
            add_mass(d->summaries, z);
        for (int s = 0; s < d->num_samples; s++) {
            if (d->noise) {
                cpu_draw_given(d, s, z, block * GUMBEL_BLOCK);
                continue;
            }
            gumbel_stream stream = d->row->stream;
            stream.sample += (uint32_t)s;
            for (uint32_t i = 0; i < GUMBEL_BLOCK; i++) {
                cpu_candidates *candidates = cpu_candidates_of(d, s);
                if (d->row->greedy)
                    cpu_offer_greedy(&d->summaries[s], candidates, z[i], token + i);
                else
                    cpu_offer(&d->summaries[s], candidates, z[i],
                              gumbel_noise_of_token(stream, token + i), token + i);
            }
        }
    }
}

static void noise(gumbel_stream stream, uint32_t token, int blocks, float *out)
{
    gumbel_fill_noise(stream, token, (int64_t)blocks * GUMBEL_BLOCK, out);
}

static uint32_t survey(const float *v, int64_t blocks, float *largest)
{
    gumbel_summary seen = {0};
    for (int64_t i = 0; i < blocks; i++, v += GUMBEL_BLOCK) {
        cpu_flag_block(&seen, v);
        largest[i] = -INFINITY;
        for (int j = 0; j < GUMBEL_BLOCK; j++)
            largest[i] = v[j] > largest[i] ? v[j] : largest[i];
    }
    return seen.flags;
}

static int64_t weigh(const cpu_stretch *s, float bound, float largest, cpu_weight *sum)
{
    int64_t count = 0;
    for (int64_t block = 0; block < s->blocks; block += s->step)
        for (int j = 0; j < GUMBEL_BLOCK; j++) {
            float v = s->v[block * GUMBEL_BLOCK + j];
            if (v < bound)
                continue;
            cpu_weight_add(sum, gumbel_token_mass(gumbel_exp(v - largest)));
            count++;
        }
    return count;
}

static void tally(const cpu_stretch *s, const cpu_tally *t)
{
    for (int64_t block = 0; block < s->blocks; block += s->step)
        for (int j = 0; j < GUMBEL_BLOCK; j++) {
            float z = s->v[block * GUMBEL_BLOCK + j] * t->scale;
            if (z >= t->low && z <= t->high)
                cpu_weight_add(&t->bins[cpu_tally_bin(t, z)],
                               t->by_mass ? gumbel_token_mass(gumbel_exp(z - t->largest)) : 1);
        }
}

static int keep(const float *v, float scale, float bound, float *out)
{
    int kept = 0;
    for (int i = 0; i < GUMBEL_BLOCK; i++) {
        out[i] = v[i] < bound ? -INFINITY : v[i] * scale;
        kept += out[i] > -INFINITY;
    }
    return kept;
}

static int64_t count_above(const cpu_stretch *s, float scale, float bound)
{
    int64_t count = 0;
    for (int64_t block = 0; block < s->blocks; block += s->step)
        for (int j = 0; j < GUMBEL_BLOCK; j++)
            count += s->v[block * GUMBEL_BLOCK + j] * scale > bound;
    return count;
}

static double exponentiate(float *z, int count, float max_z)
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

static void multiply(float *z, int count, float by)
{
    for (int i = 0; i < count; i++)
        z[i] *= by;
}

/* A row's bytes at its place in the tile, and what bounds them. */
static void screen_row(cpu_screen_rows *r, int row)
{
    const char *from = (const char *)r->weight + row * r->stride_bytes;
    float error[CPU_LANES] = {0}, size[CPU_LANES] = {0}, most = 0.0f;
    for (int64_t i = 0; i < r->hidden_size; i++) {
        float w = fabsf(cpu_widen_element(from, r->dtype, i));
        most = !(w < INFINITY) ? INFINITY : w > most ? w : most;
    }
    r->steps[row] = cpu_screen_step(most);
    if (!(r->steps[row] > 0.0f))
        return;
    float inverse = 1.0f / r->steps[row];
    for (int64_t i = 0; i < r->hidden_size; i++) {
        float x = cpu_widen_element(from, r->dtype, i) * inverse, q = rintf(x), e = x - q;
        int lane = (int)(i % CPU_LANES);
        error[lane] = fmaf(e, e, error[lane]);
        size[lane] = fmaf(q, q, size[lane]);
        r->copy[i / 64 * CPU_SCREEN_TILE + i % 64 / 4 * 64 + row * 4 + i % 4] =
            (uint8_t)((int)q + 128);
    }
    cpu_screen_bound_row(r, row, cpu_sum_lanes(error), cpu_sum_lanes(size));
}

static void screen_rows(cpu_screen_rows *r)
{
    for (int64_t column = 0; column < r->hidden_size; column += 64)
        memset(r->copy + column / 64 * CPU_SCREEN_TILE, 128, CPU_SCREEN_TILE);
    memset(r->steps, 0, 16 * sizeof *r->steps);
    for (int row = 0; row < r->count; row++)
        screen_row(r, row);
}

static void screen_ends(const cpu_screen_ends *e, float *out)
{
    for (int i = 0; i < GUMBEL_BLOCK; i++) {
        int64_t at = i / 16 * e->apart + i % 16;
        out[i] = gumbel_screen_bound_logit(e->steps[i], e->unit, e->plane, e->width, e->tiny,
                                           e->high[at], e->low[at]);
    }
}

const cpu_kernels cpu_reference_kernels = {
    .isa = GUMBEL_ISA_REFERENCE,
    .panel = 1,
    .product = product,
    .transform = transform,
    .mask = mask,
    .draw = draw,
    .noise = noise,
    .survey = survey,
    .weigh = weigh,
    .tally = tally,
    .keep = keep,
    .count_above = count_above,
    .exponentiate = exponentiate,
    .multiply = multiply,
    .screen_rows = screen_rows,
    .screen_ends = screen_ends,
};

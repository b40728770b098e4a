/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a row of which kThreads tokens at most matter, by one CTA, a thread a token: they are
 * put in order, so that what stays is a head of the list and every rule a sum over it.
 */
#ifndef GUMBEL_CUDA_REQUEST_SOME_CUH
#define GUMBEL_CUDA_REQUEST_SOME_CUH

#include "cuda/request_bins.cuh"

namespace
{

/* A token that matters; ids are negative for threads without one. */
struct some_token {
    float v; /* its value */
    int32_t id;
};

/* Put the list's `count` tokens, all with z > -inf, in order, with their values instead of their y:
 * larger ones first, then lower ids; thread i gets the i-th. */
__device__ __noinline__ some_token put_in_order(request_values values, int count)
{
    cuda_candidate *list = room().bench.list;
    const bool has = (int)threadIdx.x < count;
    const float scale = values.scale();
    some_token own = {-INFINITY, -1};
    int place = 0;
    if (has) {
        own = {list[threadIdx.x].y * scale, list[threadIdx.x].id};
#pragma unroll 4
        for (int i = 0; i < count; i++) {
            cuda_candidate other = list[i];
            float v = other.y * scale;
            place += v > own.v || (v == own.v && other.id < own.id);
        }
    }
    __syncthreads();
    if (has)
        list[place] = {own.v, own.id};
    __syncthreads();
    if (has)
        own = {list[threadIdx.x].y, list[threadIdx.x].id};
    return own;
}

/* How many of the first tokens stay. `v` is in order; `mass` is that of all tokens of the row where
 * some of those that a nucleus is of are not in the list, or NULL. */
__device__ __noinline__ int cut_some(const gumbel_rules &r, float v, int count, const weight *mass)
{
    const cuda_candidate *list = room().bench.list;
    const bool by_count = r.top_k > 0 && r.top_k < count;
    float largest = list[0].y, bound = gumbel_min_p_bound(largest, r.min_p);
    if (by_count && !r.exact)
        bound = fmaxf(bound, list[r.top_k - 1].y);
    int place = threadIdx.x, head = __syncthreads_count(place < count && v >= bound);
    if (by_count && r.exact)
        head = min(head, (int)r.top_k);
    if (!(r.top_p < 1.0f))
        return head;
    int whole = r.joint ? count : head;
    weight own = {0, 0}, all;
    if (place < whole)
        own.add(gumbel_token_mass(gumbel_exp(v - largest)));
    weight behind = sum_above(own, all);
    gumbel_wide needed = gumbel_nucleus(r.top_p, mass ? mass->wide() : all.wide());
    gumbel_wide before = all.wide() - behind.wide() - own.wide();
    int nucleus = __syncthreads_count(place < whole && before < needed);
    if (!r.exact) {
        float last = list[nucleus - 1].y;
        nucleus = __syncthreads_count(place < count && v >= last);
    }
    return min(head, nucleus);
}

/* The mass of what stays: thread i < head has a token of that z and id. Tokens of one block are
 * added by the warp of the first of them. For all threads. */
__device__ __noinline__ gumbel_summary sum_some(float z, int32_t id, int head)
{
    const cuda_candidate *list = room().bench.list;
    const float *all_z = (const float *)room().bench.high;
    int lane = threadIdx.x % 32, block = id / GUMBEL_BLOCK;
    const bool own = (int)threadIdx.x < head;
    bool first = own, alone = true;
    gumbel_summary mass;
    gumbel_summary_empty(&mass);
    __syncthreads();
    if (own)
        ((float *)room().bench.high)[threadIdx.x] = z;
    __syncthreads();
    for (int i = 0; own && i < head; i++)
        if (list[i].id / GUMBEL_BLOCK == block && i != (int)threadIdx.x) {
            first &= i > (int)threadIdx.x;
            alone = false;
        }
    if (own && alone) {
        mass.max_z = z;
        gumbel_mass_add_block(&mass, z, 1.0f);
    }
    for (uint32_t left = __ballot_sync(~0u, first && !alone); left; left &= left - 1) {
        int shown = __shfl_sync(~0u, block, __ffs(left) - 1);
        float beside[2] = {-INFINITY, -INFINITY};
        for (int i = 0; i < head; i++)
            if (list[i].id / GUMBEL_BLOCK == shown && list[i].id % 32 == lane)
                beside[list[i].id / 32 % 2] = all_z[i];
        add_block(mass, beside[0], beside[1]);
    }
    return cta_over(team_mass{mass}).of;
}

/* The best of the CTA's tokens in draw `at` of the call, the row's `sample`-th, thread i < head
 * having one; for all threads. */
__device__ __forceinline__ draw_winner draw_some(const gumbel_problem &q, float z, int32_t id,
                                                 int head, int64_t at, int sample)
{
    const gumbel_row &draw = room().row.draw;
    gumbel_stream stream = draw.stream;
    draw_winner best = draw_winner_none();
    stream.sample += (uint32_t)sample;
    if ((int)threadIdx.x < head) {
        const float *noise = q.sampling.noise;
        float g = 0.0f;
        if (!draw.greedy)
            g = noise ? noise[at * q.sampling.noise_stride - q.first_token + id]
                      : gumbel_of_token(stream, (uint32_t)id);
        draw_winner_offer(best, draw.greedy ? z : z + g, z, id);
    }
    return cta_over(team_winner{best}).of;
}

/* Do all that is asked of a row, by the leader's threads, which have `count` tokens in the list:
 * all that can matter. `seen` is what is known of the row, `raw` the mass of its logits where that
 * is asked for, `mass` as in cut_some(). */
__device__ __noinline__ void serve_some(int64_t b, int count, const gumbel_summary &seen,
                                        const gumbel_summary &raw, const weight *mass)
{
    const cuda_request_params &p = room().call;
    const gumbel_problem &q = p.problem;
    const gumbel_output &out = p.output;
    const request_row &row = room().row;
    const int samples = q.sampling.num_samples;
    request_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    request_result r = {seen, NAN, 0, gumbel_summary_status(&seen)};
    const bool ok = r.status == GUMBEL_ROW_OK;
    some_token own = put_in_order(values, count);
    float z = values.before ? values.z(own.v) : own.v;
    if (ok)
        r.kept = cut_some(row.rules, own.v, count, mass);
    const int head = r.kept;
    if (ok && (p.partials ? q.with_mass : out.lse || out.logprobs || out.top_logprobs)) {
        bool of_raw = out.logprobs_of == GUMBEL_RAW && !p.partials;
        r.mass = of_raw ? raw : sum_some(z, own.id, head);
        r.lse = r.mass.flags ? NAN : gumbel_summary_lse(&r.mass);
    }
#pragma unroll 1
    for (int sample = 0; sample < samples; sample++) {
        const int64_t at = b * samples + sample;
        draw_winner best = draw_some(q, z, own.id, head, at, sample);
        int rank = out.ranks ? 1 + __syncthreads_count(z > best.z) : 1;
        if (threadIdx.x == 0)
            write_draw(p, r, b, at, best, rank);
    }
    if (threadIdx.x == 0)
        write_row(p, r, b);
    if (q.request & GUMBEL_REQUEST_TOP) {
        /* Values that differ can have equal z, of which the lower id comes first. */
        int place = threadIdx.x;
        if (values.before && place < count) {
            place = 0;
            for (int i = 0; i < count; i++) {
                cuda_candidate other = room().bench.list[i];
                float other_z = values.z(other.y);
                place += other_z > z || (other_z == z && other.id < own.id);
            }
        }
        if (place < GUMBEL_TOP_MOST)
            room().top[place] = {z, own.id, (int)threadIdx.x < head};
        __syncthreads();
        write_top(p, room().top, r, b, ok ? min(count, out.num_top) : 0);
    }
}

} // namespace

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Candidate filter: a CTA reads its split of a row once and keeps the tokens whose z reaches a
 * bound. The bound is a z that as many tokens reach as the row requires, and it rises while the CTA
 * reads. Tokens below the bound affect no output, so the kept set, the most likely tokens and the
 * requested ranks follow from the candidates alone.
 */
#ifndef GUMBEL_CUDA_CANDIDATE_LIST_CUH
#define GUMBEL_CUDA_CANDIDATE_LIST_CUH

#include "cuda/truncated/row/load_logits.cuh"
#include "cuda/truncated/row/row_output.cuh"

namespace
{

constexpr int kCandidates = CUDA_TRUNCATED_CANDIDATES;
constexpr int kThreadTokens =
    kTruncatedTile / kThreads; /* tokens of a tile per thread: two quads */
static_assert(kThreadTokens == 8, "a thread takes two quads of a tile");
/* A bound is exact except for this many lowest bits of its key. */
constexpr int kUnresolvedBits = 14;

/* A CTA's candidates, in shared memory. */
struct candidate_list {
    cuda_candidate list[kCandidates];
    uint32_t count;          /* tokens offered; the list stores the first kCandidates */
    uint32_t largest_key[2]; /* key of the largest value; even and odd tiles alternate */
    bool last;               /* this CTA is the last of the row to finish */
};

/* Reads the tiles of a CTA's split of row b, which ends at token `end`. A thread loads two quads of
 * a tile. */
struct row_reader {
    const cuda_truncated_params &p;
    const truncated_row &row;
    list_stage &stage;
    int64_t b, end;

    __device__ __forceinline__ int64_t token_of(int64_t tile, int i) const
    {
        return tile + i / 4 * (kTruncatedTile / 2) + 4 * (int)threadIdx.x + i % 4;
    }

    __device__ __forceinline__ bool is_valid(int64_t token) const
    {
        return token >= p.problem.first_token && token < end;
    }

    /* Four logits from `token`, a multiple of 4, on; -inf for invalid tokens. */
    __device__ __forceinline__ four load_four(int64_t token) const
    {
        return load_four_logits(p.problem, b, token, end);
    }

    /* Loads this thread's logits of a tile. */
    __device__ __forceinline__ void load(int64_t tile, float (&l)[kThreadTokens]) const
    {
#pragma unroll
        for (int i = 0; i < kThreadTokens; i += 4) {
            four v = load_four(token_of(tile, i));
#pragma unroll
            for (int j = 0; j < 4; j++)
                l[i + j] = v.v[j];
        }
    }

    /* Replaces this thread's logits of a tile by their edited values. If the row has lists of
     * edited tokens, the tile is edited in `y`, in shared memory. */
    __device__ __forceinline__ void edit_tile(int64_t tile, float (&l)[kThreadTokens],
                                              float *y) const
    {
        if (row.lists) {
            stage_tile(p, row, b, tile, min(tile + kTruncatedTile, end), stage, y, false);
#pragma unroll
            for (int i = 0; i < kThreadTokens; i++) {
                int64_t token = token_of(tile, i);
                l[i] = is_valid(token) ? y[token - tile] : -INFINITY;
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < kThreadTokens; i += 4)
            edit_quad(token_of(tile, i), &l[i]);
    }

    /* Replaces the four logits from `token`, a multiple of 4, on by their edited values, for a row
     * without lists. */
    __device__ __forceinline__ void edit_quad(int64_t token, float *l) const
    {
        const gumbel_problem &q = p.problem;
        if (q.scale != 1.0f || q.soft_cap != 0.0f) {
            four scaled = scale_logit_quad(p, token, end, {l[0], l[1], l[2], l[3]});
            for (int i = 0; i < 4; i++)
                l[i] = scaled.v[i];
        }
        if (q.features & GUMBEL_FEATURE_TRANSFORMS)
            edit_four(q, row.edits, token, end, l);
    }
};

/* Filters the tiles of one split. */
struct candidate_filter {
    truncated_shared &x;
    candidate_list &s;
    required_tokens required;
    logit_values values;
    float nth = -INFINITY; /* a z that at least `target` tokens of the row reach */
    float largest;         /* largest value so far */

    __device__ __forceinline__ float current_bound() const
    {
        return required.lower_bound(nth, values, largest);
    }

    /* Appends a token; returns its index in the list, which may be past the end. */
    __device__ __forceinline__ uint32_t offer_token(float y, int64_t token) const
    {
        uint32_t at = atomicAdd(&s.count, 1);
        if (at < kCandidates)
            s.list[at] = {y, (int32_t)token};
        return at;
    }

    /* Raises `nth` to the target-th largest z of `source`. */
    template <class Source> __device__ __forceinline__ void raise_bound(const Source &source)
    {
        if (required.target == 0)
            return;
        logit_values by_z = {values.inverse_temperature, false};
        float top = values.before ? values.to_z(largest) : largest;
        kept_set_finder<Source> finder = {source, x.scratch, by_z, top, {x.thread_maxima}};
        descent_result found =
            finder.find_nth_in(source, required.target, fmaxf(nth, -FLT_MAX), kUnresolvedBits);
        if (found.reached)
            nth = fmaxf(nth, gumbel_value_of_key(found.key));
    }

    /* Removes tokens below the bound and tokens in [from, to) from the list. */
    __device__ __forceinline__ void prune_list(int64_t from, int64_t to) const
    {
        constexpr int each = kCandidates / kThreads;
        cuda_candidate own[each];
        int count = min(s.count, (uint32_t)kCandidates);
        float min_z = current_bound();
#pragma unroll
        for (int i = 0; i < each; i++)
            if ((int)threadIdx.x + i * kThreads < count)
                own[i] = s.list[threadIdx.x + i * kThreads];
        __syncthreads();
        if (threadIdx.x == 0)
            s.count = 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < each; i++)
            if ((int)threadIdx.x + i * kThreads < count && values.to_z(own[i].y) >= min_z &&
                !(own[i].id >= from && own[i].id < to))
                offer_token(own[i].y, own[i].id);
        __syncthreads();
    }

    /* Appends this thread's tokens that reach the bound. Returns whether the list holds `capacity`
     * or more. */
    __device__ __forceinline__ bool offer_tokens(const row_reader &reader, int64_t tile,
                                                 const float (&y)[kThreadTokens],
                                                 uint32_t capacity) const
    {
        float min_z = current_bound();
        bool full = false;
#pragma unroll
        for (int i = 0; i < kThreadTokens; i++) {
            float z = values.to_z(y[i]);
            if (z >= min_z && z > -INFINITY)
                full |= offer_token(y[i], reader.token_of(tile, i)) >= capacity;
        }
        return full;
    }

    /* Filters one tile, by all threads. Returns whether all candidates fit in the list. */
    __device__ __forceinline__ bool add_tile(const row_reader &reader, int64_t tile, int turn,
                                             const float (&y)[kThreadTokens])
    {
        float thread_max = y[0];
#pragma unroll
        for (int i = 1; i < kThreadTokens; i++)
            thread_max = fmaxf(thread_max, y[i]);
        float v = values.to_value(thread_max);
        uint32_t key = isnan(v) ? 0 : gumbel_key_of_value(v);
        if (turn == 0) {
            key = largest_of_cta(key, x.scratch);
            x.thread_maxima[threadIdx.x] = thread_max;
            largest = key ? gumbel_value_of_key(key) : -FLT_MAX;
            raise_bound(maxima_source{x.thread_maxima});
        } else if (required.log_min_p > -INFINITY) {
            key = __reduce_max_sync(~0u, key);
            if (threadIdx.x % 32 == 0)
                atomicMax(&s.largest_key[turn % 2], key);
        }
        bool full = offer_tokens(reader, tile, y, kCandidates / 2);
        full = __syncthreads_or(full);
        uint32_t seen = turn > 0 ? s.largest_key[turn % 2] : 0;
        if (seen > gumbel_key_of_value(largest))
            largest = gumbel_value_of_key(seen);
        if (!full)
            return true;
        key = largest_of_cta(key, x.scratch);
        if (key > gumbel_key_of_value(largest))
            largest = gumbel_value_of_key(key);
        x.thread_maxima[threadIdx.x] = thread_max;
        raise_bound(maxima_source{x.thread_maxima});
        raise_bound(list_source{s.list, min((int)s.count, kCandidates)});
        __syncthreads();
        prune_list(tile, tile + kTruncatedTile);
        full = offer_tokens(reader, tile, y, kCandidates);
        return !__syncthreads_or(full);
    }
};

} // namespace

#endif

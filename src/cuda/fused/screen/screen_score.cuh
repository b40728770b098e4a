/* SPDX-License-Identifier: Apache-2.0
 *
 * Scores the candidates of a draw with a screen by the full product. CTAs are split over groups of
 * eight rows, and the CTAs of a group over its candidates, up to 32 at a time. `gathered` is the
 * product: gathered_product, or gathered_product_sm80.
 */
#ifndef GUMBEL_CUDA_SCREEN_SCORE_CUH
#define GUMBEL_CUDA_SCREEN_SCORE_CUH

#include "cuda/fused/hopper/candidates_sm90.cuh"
#include "cuda/fused/tile/finish_sm90.cuh"
#include "cuda/fused/screen/gathered_rows.cuh"
#include "cuda/fused/screen/screen_thresholds.cuh"

namespace
{

/* Tokens that wait for their score, for truncated rows: those read at once, and one batch. */
constexpr int kQueue = CUDA_SCREEN_SCORE_THREADS + kScoreRows;

struct score_shared {
    cuda_screen_entry entries[kScoreRows];
    gathered_rows rows; /* weights of the entries' tokens */
    sm90_draw draws[kGroup];
    sm90_best best[kGroup];
    float thresholds[kGroup]; /* lower bounds on the rows' winning scores; -inf: unknown */
    uint32_t flags[kGroup];
    uint32_t is_last;
    /* Truncated rows only: */
    cuda_screen_entry queue[kQueue]; /* tokens to score; `unused`: index of the score */
    int queued;
    int counts[kGroup]; /* of tokens listed of each row */
    screen_penalties penalties[kGroup];
    float min_logits[kGroup]; /* lower bounds from the first pass of scoring */
    /* Without wide swaps: instead of `best`, its score and token as in finish_words; 0: none. */
    unsigned long long keys[kGroup];
};
static_assert(CUDA_SCREEN_INTERVALS(GUMBEL_SCREEN_LIST_MAX) < CUDA_SCREEN_SECOND_PASS,
              "a pass counts in 16 bits");
static_assert(sizeof(score_shared) <= CUDA_SCREEN_SCORE_SIDE_BYTES, "the launch has this size");

template <class gathered, class call> class screen_scorer
{
    const call &s;
    score_shared &shared;
    const gathered product;
    const int group, thread;

  public:
    __device__ __forceinline__ screen_scorer(const call &params, score_shared &memory,
                                             unsigned char *ring, int of_rows)
        : s(params), shared(memory),
          product(params.call, memory.rows, ring, min(kGroup, params.draws - kGroup * of_rows)),
          group(of_rows), thread(threadIdx.x)
    {
    }

    /* Scores this CTA's candidates, as number `member` of `members` CTAs. */
    __device__ __forceinline__ void score_all(int member, int members, int listed) const
    {
        for (int from = member; from < listed; from += kScoreRows * members) {
            choose_candidates(from, members, listed);
            if (shared.rows.count == 0)
                continue;
            float sum[4] = {};
            product.multiply(sum);
            keep_scores(sum);
            __syncthreads(); /* the entries may change */
        }
    }

    /* score_all() for truncated rows. The first pass scores the tokens whose lower bound reaches
     * the row's threshold; the second pass the other tokens whose upper bound reaches a threshold
     * computed from the first scores. */
    __device__ __forceinline__ void score_truncated(int member, int members) const
    {
        int listed = 0, queued = 0;
        for (int i = 0; i < kGroup; i++)
            listed += shared.counts[i];
        if (thread == 0)
            shared.queued = 0;
        __syncthreads();
        const int turn = CUDA_SCREEN_SCORE_THREADS * members;
        for (int from = member; from < listed; from += turn) {
            if (from + members * thread < listed)
                enqueue_token(from + members * thread);
            __syncthreads();
            queued = shared.queued;
            __syncthreads(); /* all threads have read the count before more are queued */
            const int min_queued =
                from + turn < listed ? kScoreRows : 1; /* the last turn scores all */
            while (queued >= min_queued)
                queued = score_queued(queued);
        }
    }

  private:
    /* Appends token number `at` of the group's lists to the queue if this pass scores it. */
    __device__ __forceinline__ void enqueue_token(int at) const
    {
        int column = 0;
        while (at >= shared.counts[column])
            at -= shared.counts[column++];
        const int row = kGroup * group + column;
        const uint4 raw = __ldcg((const uint4 *)&s.listed[row * s.listed_stride + at]);
        const float upper = __uint_as_float(raw.x), lower = __uint_as_float(raw.y);
        const bool is_first = lower >= shared.thresholds[column];
        if (s.second_pass ? is_first || upper < shared.min_logits[column] : !is_first)
            return;
        const uint32_t one = s.second_pass ? CUDA_SCREEN_SECOND_PASS : 1u;
        const uint32_t place = cuda_count_scored(atomicAdd(scored_of_row(s, row), one));
        if (place < CUDA_SCREEN_EXACT_MAX) /* otherwise the row is a fallback row */
            shared.queue[atomicAdd(&shared.queued, 1)] = {0.0f, raw.z, (uint32_t)row, place};
    }

    /* Scores the last tokens of the queue; returns how many remain. */
    __device__ __forceinline__ int score_queued(int queued) const
    {
        const int count = min(queued, kScoreRows), first = queued - count;
        if (thread < count)
            set_entry(thread, shared.queue[first + thread]);
        if (thread == 0) {
            shared.rows.count = count;
            shared.queued = first;
        }
        __syncthreads();
        float sum[4] = {};
        product.multiply(sum);
        keep_scores(sum);
        __syncthreads(); /* the entries may change */
        return first;
    }

    __device__ __forceinline__ void set_entry(int at, const cuda_screen_entry &entry) const
    {
        const gumbel_problem &q = s.call.problem;
        shared.entries[at] = entry;
        shared.rows.weights[at] = (const uint16_t *)q.weight.data +
                                  ((int64_t)entry.token - q.first_token) * q.weight.stride;
    }

    /* Stores a logit of a truncated row, after penalties. */
    __device__ __forceinline__ void write(float logit, const cuda_screen_entry &own) const
    {
        const float y = s.apply_penalties(shared.penalties[own.row % kGroup], own.token, logit);
        s.exact[own.row * CUDA_SCREEN_EXACT_MAX + own.unused] = {y, own.token};
    }

    /* Loads the next candidates and keeps those that can still win. */
    __device__ __forceinline__ void choose_candidates(int from, int members, int listed) const
    {
        if (thread == 0)
            shared.rows.count = 0;
        __syncthreads();
        const int at = from + members * thread;
        if (thread < kScoreRows && at < listed) {
            const uint4 raw =
                __ldcg((const uint4 *)&s.entries[group * CUDA_SCREEN_GROUP_CANDIDATES_MAX + at]);
            const cuda_screen_entry own = {__uint_as_float(raw.x), raw.y, raw.z, 0};
            if (!(own.upper < shared.thresholds[own.row % kGroup]))
                set_entry(atomicAdd(&shared.rows.count, 1), own);
        }
        __syncthreads();
    }

    /* Scores or stores the sums of candidates with their own rows of the batch */
    __device__ __forceinline__ void keep_scores(const float (&sum)[4]) const
    {
        product.each(sum, [&](int at, int column, float logit) {
            if (shared.entries[at].row % kGroup == (uint32_t)column)
                call::truncates ? write(logit, shared.entries[at])
                                : score_candidate(logit, shared.entries[at].token, column);
        });
    }

    __device__ __forceinline__ void score_candidate(float logit, uint32_t token, int column) const
    {
        const sm90_draw &draw = shared.draws[column];
        const float z = (logit * s.call.problem.scale) * draw.inverse_temperature;
        float score = z;
        if (!(z < INFINITY)) {
            atomicOr(&shared.flags[column], isnan(z) ? GUMBEL_FLAG_NAN : GUMBEL_FLAG_INFINITE);
            return;
        }
        if (!draw.greedy)
            score += draw_token_noise(
                {draw.seed, draw.position, draw.sample, s.call.problem.sampling.domain}, token);
        if constexpr (call::has_wide_swaps)
            update_best(&shared.best[column], {score, z, (int)token, 0});
        else if (score > -INFINITY)
            atomicMax(&shared.keys[column], key_of_best({score, z, (int)token, 0}));
    }
};

template <class call>
__device__ __forceinline__ void start_group(const call &s, score_shared &shared, int group)
{
    const int i = threadIdx.x, row = kGroup * group + i;
    if (i == 0)
        shared.is_last = 0;
    if (i >= kGroup)
        return;
    shared.best[i] = {-INFINITY, -INFINITY, -1, 0};
    if (!call::has_wide_swaps)
        shared.keys[i] = 0;
    shared.draws[i] = {};
    shared.thresholds[i] = -INFINITY;
    shared.flags[i] = 0;
    if (call::truncates)
        shared.counts[i] = 0;
    if (row < s.draws) {
        const uint64_t word =
            load_threshold(&s.call.row_thresholds[CUDA_THRESHOLD_WORDS * (int64_t)row]);
        if (word >> THRESHOLD_BITS == s.call.tag)
            shared.thresholds[i] = unpack_threshold(word);
        shared.draws[i] = s.parameters_of(row);
        shared.rows.hidden[i] = s.hidden_of(row);
        if (call::truncates) {
            shared.penalties[i] = s.penalties_of(row);
            shared.counts[i] = min((int)__ldcg(listed_of_row(s, row)), list_capacity(s));
        }
    }
}

/* Merges the samples of a row: the row gets the flags of all its samples, and no token if one of
 * them has none. Samples differ in this only if weights changed since the screen was made; a row
 * has one status. For all threads of the last CTA, before it writes the outputs. */
template <class call> __device__ __noinline__ void join_samples(const call &s)
{
    const int i = threadIdx.x, samples = s.call.problem.sampling.num_samples;
    unsigned long long flags = 0;
    bool is_empty = false;
    for (int k = 0; k < samples && i < s.draws; k++) {
        const finish_words *words = words_of_draw(s.call, i - i % samples + k);
        flags |= __ldcg(&words->state) & ((1u << CTA_COUNTER_BITS) - 1);
        is_empty |= __ldcg(&words->best) == 0;
    }
    __syncthreads(); /* all words are read before they change */
    if (i >= s.draws)
        return;
    words_of_draw(s.call, i)->state = flags; /* write_best() does not check the tag */
    if (is_empty)
        words_of_draw(s.call, i)->best = 0;
}

/* Merges this CTA's results into the draws; the last CTA writes the outputs. */
template <class call>
__device__ __forceinline__ void finish_group(const call &s, score_shared &shared, int group)
{
    const int i = threadIdx.x, row = kGroup * group + i;
    __syncthreads();
    if constexpr (call::has_wide_swaps) {
        if (i < kGroup && row < s.draws && (shared.best[i].id >= 0 || shared.flags[i] != 0))
            merge_draw(s.call, row, shared.best[i], shared.flags[i]);
    } else if (i < kGroup && row < s.draws)
        merge_cleared_draw(s.call, row, shared.keys[i], shared.flags[i]);
    __syncwarp();
    if (i == 0)
        shared.is_last = ptx_atomic_count(&s.state->ended) + 1 == gridDim.x;
    __syncthreads();
    if (!shared.is_last)
        return;
    if (s.call.problem.sampling.num_samples > 1)
        join_samples(s);
    if (i < s.draws)
        write_best(s.call, i);
}

constexpr int kFirstLogits = 8; /* of a lane, from which thresholds follow: more would raise them */

/* The largest key that at least `rank` of the warp's keys reach; 0 if there are fewer keys above 0.
 */
__device__ __forceinline__ uint32_t find_reached_key(const uint32_t (&keys)[kFirstLogits],
                                                     uint32_t rank)
{
    uint32_t low = 0, high = ~0u;
#pragma unroll 1
    while (low < high) {
        const uint32_t middle = high - (high - low) / 2;
        uint32_t count_above = 0;
#pragma unroll
        for (int k = 0; k < kFirstLogits; k++)
            count_above += keys[k] >= middle;
        count_above = __reduce_add_sync(~0u, count_above);
        low = count_above >= rank ? middle : low;
        high = count_above >= rank ? high : middle - 1;
    }
    return low;
}

/* A lower bound of the logits that can affect a row's outputs, by a warp, from the keys of some of
 * its logits; 0 is no logit. -inf if there are too few. */
__device__ __forceinline__ float find_min_logit(const uint32_t (&keys)[kFirstLogits],
                                                const row_bound &wanted)
{
    uint32_t key = ~0u, largest = 0;
    if (wanted.rank > 0)
        key = find_reached_key(keys, (uint32_t)wanted.rank);
#pragma unroll
    for (int k = 0; k < kFirstLogits; k++)
        largest = max(largest, keys[k]);
    largest = __reduce_max_sync(~0u, largest);
    if (key == 0 || largest == 0)
        return -INFINITY;
    const float by_rank = wanted.rank > 0 ? ordered_float(key) : INFINITY;
    const float by_min_p =
        wanted.top_rank > 0 ? ordered_float(largest) - wanted.distance : INFINITY;
    return bound_below(fminf(by_rank, by_min_p));
}

/* Computes a threshold of each row from the logits of the first pass, by the row's
 * CUDA_TRUNCATED_BOUND. For all warps; one CTA of the group publishes the values. Ends with a
 * barrier. */
template <class call>
__device__ __forceinline__ void find_min_logits(const call &s, score_shared &shared, int group,
                                                bool publishes)
{
    const int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i < kGroup; i += CUDA_SCREEN_SCORE_THREADS / 32) {
        const int row = kGroup * group + i;
        if (row >= s.draws)
            break;
        const uint32_t scored = cuda_count_first_scored(__ldcg(scored_of_row(s, row)));
        const int count = min((int)scored, CUDA_SCREEN_EXACT_MAX);
        const uint64_t word = __ldcg(truncation_word(s, row, CUDA_TRUNCATED_BOUND));
        uint32_t keys[kFirstLogits];
#pragma unroll
        for (int k = 0; k < kFirstLogits; k++) {
            const int at = lane + 32 * k;
            const float *logit = &s.exact[row * CUDA_SCREEN_EXACT_MAX + at].logit;
            keys[k] = at < count ? ordered_bits(__ldcg(logit)) : 0;
        }
        const float min_logit =
            fmaxf(find_min_logit(keys, read_bound_word(word)), shared.thresholds[i]);
        if (lane == 0) {
            shared.min_logits[i] = min_logit;
            if (publishes)
                *truncation_word(s, row, CUDA_TRUNCATED_FIRST_THRESHOLD) =
                    s.call.tag << THRESHOLD_BITS | pack_threshold(min_logit);
        }
    }
    __syncthreads();
}

/* Scores the candidates that the launch before has listed. */
template <class gathered, class call> __device__ __forceinline__ void run_scoring(const call &s)
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    unsigned char *ring = shared_memory;
    score_shared &shared = *(score_shared *)(ring + gathered::ring_bytes);
    const int groups = (s.draws + kGroup - 1) / kGroup;
    const int group = blockIdx.x % groups, member = blockIdx.x / groups;
    const int members = ((int)gridDim.x - group + groups - 1) / groups;
    ptx_wait_for_launch();
    ptx_allow_launch();
    /* These loads are independent of each other. */
    const uint32_t needs_full_pass = __ldcg(&s.state->again);
    const uint32_t all = call::truncates ? 0 : __ldcg(&s.state->listed[group]);
    const int list_max = min(max(s.header->list_max, 1), GUMBEL_SCREEN_LIST_MAX);
    start_group(s, shared, group);
    if (needs_full_pass)
        return;
    __syncthreads();
    const screen_scorer<gathered, call> own(s, shared, ring, group);
    if (call::truncates) {
        if (s.second_pass)
            find_min_logits(s, shared, group, member == 0);
        own.score_truncated(member, members);
        return;
    }
    own.score_all(member, members, (int)min(all, (uint32_t)CUDA_SCREEN_GROUP_CANDIDATES(list_max)));
    finish_group(s, shared, group);
}

} // namespace

#endif

// SPDX-License-Identifier: Apache-2.0
//
// The kernel that draws truncated rows from few of their blocks, from source on a CPU, its threads
// in a random order: each row is untouched, or has the CPU backend's outputs. Then clusters serve
// the fallback rows, or the CTAs of a cooperative launch.
#include "launch_blocks.h"
#include "launch_cluster.h"
#include "truncated_rows.h"
#include "inputs.h"
#include "sparse_blocks.h"

namespace
{

/* Numbers of rows. Nearly all rows in which few tokens matter must be served: a kernel that serves
 * none is never wrong. */
struct row_counts {
    int all, served, few, few_served;
    entropy_counts entropies; /* of served rows */
};
constexpr double kFewServed = 0.96;

struct test_problem {
    request *req;
    std::vector<int32_t> top_k; /* replaces the requested one; or none */
    bool has_block_maxima;      /* block maxima are given */
    sparse_blocks *sparse;      /* only some subtiles are stored; or NULL */
    int multiprocessors;
    engine_truncation cuts; /* replaces the requested one, too */
    uint64_t random;
    char what[500];
};

/* ------------------------------------------------------------------------------- a problem ---- */

request_plan plan_of(uint64_t *random)
{
    request_plan plan = {};
    plan.batch = 1 + random_below(random, 4);
    const bool many = one_in(random, 30); /* more than one per lane of a cluster's first warp */
    if (many)
        plan.batch += 30;
    static const uint32_t vocabs[] = {6, 300, 300, 5000, 5000, 5000, 5000, 5000};
    plan.vocab = 1 + random_below(random, vocabs[random_below(random, 8)]);
    if (many)
        plan.vocab = 1 + plan.vocab % 700;
    else if (one_in(random, 6)) /* more than one split */
        plan.vocab = 16384 + random_below(random, 30000);
    if (one_in(random, 40)) { /* more blocks than a CTA selects, all of which may matter */
        plan.batch = 1;
        plan.vocab = 131200 + random_below(random, 2000);
        plan.kind = 1 + (one_in(random, 2) ? ROW_EQUAL : ROW_FLAT);
    }
    plan.first_token = one_in(random, 2) ? random_below(random, 5000) : 0;
    if (one_in(random, 4))
        plan.vocab_size = plan.first_token + 1 + random_below(random, (uint32_t)plan.vocab);
    plan.samples = 1 + (int32_t)random_below(random, 2);
    plan.num_top = one_in(random, 2) ? 1 + (int32_t)random_below(random, 128) : 0;
    plan.dtype = (gumbel_dtype)(1 + random_below(random, 3));
    plan.scale = one_in(random, 4) ? 0.5f : 0.0f;
    plan.soft_cap = one_in(random, 4) ? 5.0f * (float)(1 + 5 * random_below(random, 2)) : 0.0f;
    plan.order = (gumbel_order)random_below(random, REQUEST_ORDERS);
    plan.ties = (gumbel_ties)random_below(random, 2);
    plan.transforms = !one_in(random, 3);
    plan.truncation = 1;
    plan.history = 1;
    plan.given_noise = one_in(random, 5);
    plan.seed = random_bits(random) >> 20;
    plan.kept_capacity = one_in(random, 3) ? 1 + (int32_t)random_below(random, 700) : 0;
    plan.entropy = one_in(random, 2);
    return plan;
}

/* Whether a top_p beside other rules refers to the whole row. */
bool top_p_is_of_whole_row(const gumbel_truncation &cut)
{
    return cut.order == GUMBEL_ORDER_JOINT || cut.order == GUMBEL_ORDER_JOINT_TEMPERATURE ||
           (!cut.top_k.data && (cut.order == GUMBEL_ORDER_TOP_K_TOP_P_MIN_P ||
                                cut.order == GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE));
}

/* A request that the host cannot rule out for this kernel, as blocks_tell() of the CUDA backend. */
request *make_request(uint64_t *random, bool sure, gumbel_device *cpu)
{
    for (;;) {
        request_plan plan = plan_of(random);
        if (sure) { /* allows a product to leave out subtiles */
            plan.vocab = 3000 + plan.vocab % 5000;
            plan.first_token -= plan.first_token % 4;
            plan.dtype = GUMBEL_FLOAT32;
            plan.soft_cap = 0.0f;
        }
        request *req = request_make(&plan, cpu);
        gumbel_truncation *cut = &req->truncation;
        req->transforms.banned = req->transforms.bias = req->transforms.late_bias = {};
        if (top_p_is_of_whole_row(*cut))
            cut->top_p = {};
        if (cut->top_k.data || cut->min_p.data)
            return req;
        request_free(req);
    }
}

/* Gives every row a top_k that the kernel serves, usually of fewer tokens than there are blocks. */
void request_few_tokens(test_problem *test)
{
    gumbel_truncation *cut = &test->req->truncation;
    const uint32_t most = one_in(&test->random, 3) ? CUDA_TRUNCATED_TOP_MAX : 20;
    for (int64_t b = 0; b < test->req->plan.batch; b++)
        test->top_k.push_back(1 + (int32_t)random_below(&test->random, most));
    cut->top_k = {test->top_k.data(), 0};
}

/* Makes half of each row's tokens equal and far above the others, with a small top_k: all of them
 * are kept, more than a CTA serves, and none of the others. */
void tie_half_of_tokens(test_problem *test)
{
    const gumbel_tensor &t = test->req->logits.logits;
    for (int64_t b = 0; b < t.rows; b++)
        for (int64_t i = 0; i < t.cols / 2; i++)
            ((float *)t.data)[b * t.stride + i] = 50.0f;
    for (int32_t &k : test->top_k)
        k = 1 + k % 4;
}

/* Gives each row a token with an infinite logit: other subtiles may still be left out. */
void add_infinite_logit(test_problem *test)
{
    const gumbel_tensor &t = test->req->logits.logits;
    for (int64_t b = 0; b < t.rows; b++)
        ((float *)t.data)[b * t.stride + random_below(&test->random, (uint32_t)t.cols)] = INFINITY;
}

/* Makes penalties, if any, raise tokens of the output above all others. */
void raise_penalised(test_problem *test)
{
    static const float presence = -20.0f;
    gumbel_transforms *t = &test->req->transforms;
    if (!t->presence.data)
        return;
    t->presence = (gumbel_row_f32){&presence, GUMBEL_SAME};
}

/* Makes penalties, if any, lower tokens of the history, every third token. */
void lower_penalised(test_problem *test)
{
    static const float repetition = 1.5f, frequency = 0.25f, presence = 0.5f;
    gumbel_transforms *t = &test->req->transforms;
    const gumbel_history &h = test->req->history;
    if (!t->presence.data || !h.prompt)
        return;
    for (int64_t at = 0; at < test->req->plan.batch * h.vocab_size; at += 3) {
        const int64_t b = at / h.vocab_size, token = at % h.vocab_size;
        h.prompt[b * gumbel_mask_words_of(h.vocab_size) + token / 32] |= 1u << token % 32;
    }
    t->repetition = (gumbel_row_f32){&repetition, GUMBEL_SAME};
    t->frequency = (gumbel_row_f32){&frequency, GUMBEL_SAME};
    t->presence = (gumbel_row_f32){&presence, GUMBEL_SAME};
}

/* --------------------------------------------------------------------------- block maxima ---- */

/* Whether the kernel has found a row's block maxima; it may skip a fallback row. */
bool block_maxima_agree(const float *expected, const float *found, int64_t blocks, bool left,
                        const char *what)
{
    const std::vector<unsigned char> poison((size_t)blocks * sizeof *found, 0xa7);
    if (left && memcmp(found, poison.data(), poison.size()) == 0)
        return true;
    for (int64_t i = 0; i < blocks; i++)
        if (!same_float(expected[i], found[i])) {
            printf("%s: the peak of block %d is %a, not %a\n", what, (int)i, (double)found[i],
                   (double)expected[i]);
            return false;
        }
    return true;
}

/* ---------------------------------------------------------------------------------- launch ---- */

/* Parameters as run_blocks() of the CUDA backend prepares them; the workspace is poisoned. */
cuda_truncated_params blocks_params(const test_problem &test, const gumbel_output &output)
{
    cuda_truncated_params p = params_of(*test.req, output);
    const gumbel_problem *q = &p.problem;
    p.has_block_maxima = test.has_block_maxima;
    p.blocks = (q->end_token - CUDA_MAXIMA_ORIGIN(q->first_token) + CUDA_MAXIMA_BLOCK - 1) /
               CUDA_MAXIMA_BLOCK;
    p.split_size = p.has_block_maxima
                       ? p.blocks
                       : cuda_blocks_per_split(p.blocks, q->batch, test.multiprocessors);
    p.splits = (int32_t)((p.blocks + p.split_size - 1) / p.split_size);
    p.tag = 1 + (uint64_t)q->batch;
    size_t rows = (size_t)q->batch;
    p.block_maxima = (float *)poisoned_workspace(rows * (size_t)p.blocks * sizeof *p.block_maxima);
    memset(p.block_maxima, 0xa7,
           rows * (size_t)p.blocks * sizeof *p.block_maxima); /* block_maxima_agree() compares */
    p.row_states = (int32_t *)poisoned_workspace(rows * sizeof *p.row_states);
    p.counters = (uint64_t *)poisoned_workspace(rows * CUDA_THRESHOLD_WORDS * sizeof *p.counters);
    return p;
}

void free_params(const cuda_truncated_params &p)
{
    free(p.block_maxima);
    free(p.row_states);
    free(p.counters);
}

/* z of all tokens of all rows, [B, V], before truncation. */
std::vector<float> find_z_before_truncation(const request *req, gumbel_device *cpu)
{
    std::vector<float> z((size_t)(req->plan.batch * req->plan.vocab));
    gumbel_sampling sampling = req->sampling;
    sampling.truncation = NULL;
    if (request_process(cpu, &req->logits, &sampling, z.data()))
        exit(1);
    return z;
}

/* Whether row b, with these z, has a top_k that keeps at most as many tokens as the kernel has
 * threads, and no penalty raises a token. */
bool few_matter(const request *req, int64_t b, const float *z)
{
    const gumbel_truncation &cut = req->truncation;
    const gumbel_sampling &s = req->sampling;
    const gumbel_transforms &t = req->transforms;
    const int64_t vocab = req->plan.vocab;
    bool raised = s.transforms && (row_f32(&t.repetition, &s, b, 1.0f) < 1.0f ||
                                   row_f32(&t.frequency, &s, b, 0.0f) < 0.0f ||
                                   row_f32(&t.presence, &s, b, 0.0f) < 0.0f);
    int32_t top_k = row_i32(&cut.top_k, &s, b, 0);
    if (raised || row_f32(&s.temperature, &s, b, 1.0f) == 0.0f || top_k == 0 || top_k >= vocab ||
        top_k > CUDA_TRUNCATED_TOP_MAX)
        return false;
    std::vector<float> sorted(z, z + vocab);
    std::sort(sorted.begin(), sorted.end(), std::greater<float>());
    float last = sorted[(size_t)std::min<int64_t>(vocab, std::max(top_k, req->plan.num_top)) - 1];
    return std::count_if(z, z + vocab, [&](float x) { return x >= last && x > -INFINITY; }) <=
           CUDA_TRUNCATED_THREADS;
}

bool rows_agree(const test_problem &test, const gumbel_problem &whole,
                const cuda_truncated_params &p, const outcome *host, const outcome *untouched,
                gumbel_device *cpu, row_counts *counts)
{
    std::vector<float> maxima = find_block_maxima(whole, p.blocks, test.sparse),
                       z = find_z_before_truncation(test.req, cpu);
    for (int64_t b = 0; b < p.problem.batch; b++) {
        const float *own = &z[(size_t)(b * test.req->plan.vocab)];
        bool left = p.row_states[b] == CUDA_ROW_FALLBACK;
        bool few = few_matter(test.req, b, own);
        int64_t first = b * p.blocks;
        bool spoilt = host->status[b] == GUMBEL_ROW_NAN || host->status[b] == GUMBEL_ROW_INFINITE;
        if ((!left && p.row_states[b] != CUDA_ROW_SERVED) || (left && few && spoilt)) {
            printf("%s: row %d: %s\n", test.what, (int)b,
                   left ? "left, though nothing can be drawn" : "neither served nor left");
            return false;
        }
        if (!row_agrees(left ? untouched : host, p.output, b, test.what) ||
            !block_maxima_agree(&maxima[(size_t)first], p.block_maxima + first, p.blocks, left,
                                test.what))
            return false;
        if (!left)
            counts->entropies.add(host, p.output, b);
        counts->all++;
        counts->served += !left;
        counts->few += few;
        counts->few_served += few && !left;
    }
    return true;
}

/* Serves the fallback rows by clusters, or by groups of CTAs of a cooperative launch, which cannot
 * precede a product; returns whether all rows agree. */
bool fallback_rows_agree(test_problem *test, cuda_truncated_params p, const outcome *host)
{
    const gumbel_problem &q = p.problem;
    const int64_t origin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    const int64_t most = one_in(&test->random, 2) ? q.batch : 1;
    const int64_t clusters = 1 + random_below(&test->random, (uint32_t)most);
    p.splits = CUDA_CLUSTER_CTAS;
    p.split_size = cuda_cluster_slice(std::max<int64_t>(q.end_token - origin, 1));
    if (!p.stored_subtiles && one_in(&test->random, 2))
        emulate_grid(p, clusters, &test->random, test->what);
    else
        emulate_cluster(p, clusters, &test->random, test->what);
    for (int64_t b = 0; b < q.batch; b++)
        if (!row_agrees(host, p.output, b, test->what))
            return false;
    return true;
}

/* Launches twice with the same counters, as a replayed graph, or once. */
bool passes(int index, gumbel_device *cpu, row_counts *counts)
{
    test_problem test = {};
    test.random = (uint64_t)index;
    const bool sure = index % 4 == 1, tied = index % 20 == 5;
    test.req = make_request(&test.random, sure, cpu);
    if (tied || !one_in(&test.random, sure ? 4 : 2))
        request_few_tokens(&test);
    else if (one_in(&test.random, 2))
        truncate_as_engines(test.req, 2 + (int32_t)random_below(&test.random, 60), &test.cuts,
                            &test.random);
    if (tied)
        tie_half_of_tokens(&test);
    if (sure && one_in(&test.random, 8))
        add_infinite_logit(&test);
    if (one_in(&test.random, 8))
        raise_penalised(&test);
    else if (sure && one_in(&test.random, 2))
        lower_penalised(&test);
    if (one_in(&test.random, 4))
        set_adjacent_logits(test.req, &test.random);
    test.has_block_maxima = index % 2;
    test.multiprocessors = 1 + (int)random_below(&test.random, 3);
    outcome *host = request_outcome(test.req), *ours = request_outcome(test.req);
    outcome *untouched = request_outcome(test.req);
    cuda_truncated_params p = blocks_params(test, choose_outputs(ours, &test.random));
    snprintf(test.what, sizeof test.what, "problem %d, block maxima %s, %d splits: %s", index,
             test.has_block_maxima ? "given" : "found", p.splits,
             request_describe(&test.req->plan));
    bool good = request_draw(cpu, test.req, host) == GUMBEL_OK;
    const gumbel_problem whole = p.problem;
    sparse_blocks sparse = {};
    if (test.has_block_maxima && p.problem.batch <= 32 && bounds_apply(p.problem) &&
        (sure || one_in(&test.random, 2))) {
        sparse = drop_unneeded_subtiles(p, &test.random);
        hand_over(test.sparse = &sparse, &p);
    }
    for (int launch = one_in(&test.random, 8) ? 2 : 1; good && launch > 0; launch--) {
        std::vector<float> maxima = find_block_maxima(whole, p.blocks, test.sparse);
        if (test.has_block_maxima)
            std::copy(maxima.begin(), maxima.end(), p.block_maxima);
        outcome_poison(ours);
        emulate_blocks(p, &test.random, test.what);
        good = rows_agree(test, whole, p, host, untouched, cpu, counts) &&
               (!test.sparse || sparse.thresholds[1] == 0) &&
               (!(tied || one_in(&test.random, 4)) || fallback_rows_agree(&test, p, host));
    }
    free_params(p);
    outcome_free(untouched);
    outcome_free(ours);
    outcome_free(host);
    request_free(test.req);
    return good;
}

} // namespace

/* usage: test_truncated_blocks [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    row_counts counts = {};
    int failed = run_cpu_problems(
        argc, argv, 70, 5000, [&](int i, gumbel_device *cpu) { return passes(i, cpu, &counts); });
    printf("%d rows, %d served; of %d where few tokens matter, %d\n", counts.all, counts.served,
           counts.few, counts.few_served);
    bool leaves = counts.few >= 50 && counts.few_served < kFewServed * counts.few;
    if (leaves)
        printf("too many rows are left\n");
    const bool idle = !counts.entropies.check("blocks", counts.all >= 300 ? 3 : 0);
    return failed != 0 || leaves || idle;
}

// SPDX-License-Identifier: Apache-2.0
//
// The kernels that serve rows of requests by clusters, and by the CTAs of a cooperative launch,
// from source on a CPU, the threads of a row's CTAs in a random order, against the CPU backend.
#include "launch_cluster.h"
#include "truncated_rows.h"

#include "cuda/policy/cuda_policy.h"

namespace
{

/* Kinds of problems. */
enum problem_kind {
    PROBLEM_ANY,
    PROBLEM_SUITED, /* one token by top_k or top_p alone, which keep many: rows that suit pivots */
    PROBLEM_LONE,   /* the same, with any rows */
    PROBLEM_HARD,   /* top_k alone, with all tokens in one slice or ties at the cutoff */
    PROBLEM_FEW,    /* top_k that keeps few tokens, or min_p, with or without top_p */
    PROBLEM_ENGINE, /* top_k, then top_p, then min_p, keeping few or many tokens */
    PROBLEM_MASS,   /* a nucleus of the whole row, which keeps few tokens */
};

/* The kernels. */
typedef std::vector<cluster_path> row_kernel(const cuda_truncated_params &, int64_t, uint64_t *,
                                             const char *);

/* Numbers of rows by how they were served. */
struct row_counts {
    int all, paths[CLUSTER_PATHS];
    int suited, quick; /* rows that suit pivots, and those that pivots served */
    entropy_counts listed_entropies, other_entropies; /* of rows served from lists, and others */
};
/* A kernel that gives up pivots too early is never wrong, but slow: pivots must serve nearly all
 * rows that suit them. */
constexpr double kQuick = 0.95;
/* A grid serves one of kGridEvery problems of each kind, too: twice as many threads run at the same
 * time, which takes five times as long. */
constexpr int kGridEvery = 2;

struct test_problem {
    problem_kind kind;
    request *req;
    int32_t top_k; /* the only rule; 0: top_p */
    float min_p, top_p, temperature;
    engine_truncation cuts;
    bool processed;                   /* processed rows are requested, and nothing is drawn */
    std::vector<int32_t> fallback;    /* rows to serve; or none */
    std::vector<int32_t> given;       /* tokens to score; or none */
    std::vector<int32_t> list_status; /* of rows; or none */
    std::vector<int64_t> late_offsets;
    std::vector<int32_t> late_ids;
    std::vector<float> late_values;
    int32_t live_rows;
    uint64_t random;
    char what[500];
};

/* ------------------------------------------------------------------------------- a problem ---- */

request_plan plan_of(problem_kind kind, uint64_t *random)
{
    static const uint32_t vocabs[] = {600, 5000, 20000, 20000};
    request_plan plan = {};
    plan.batch = 1 + random_below(random, 2);
    plan.vocab = 1 + random_below(random, vocabs[random_below(random, 4)]);
    if (kind != PROBLEM_ANY)
        plan.vocab = 4000 + random_below(random, 12000);
    plan.first_token = one_in(random, 2) ? random_below(random, 3000) : 0;
    plan.order = (gumbel_order)random_below(random, REQUEST_ORDERS);
    plan.ties = kind == PROBLEM_SUITED ? GUMBEL_TIES_ALL : (gumbel_ties)random_below(random, 2);
    plan.kind = kind == PROBLEM_SUITED || one_in(random, 2) ? 1 + ROW_GAUSSIAN : 0;
    plan.truncation = 1;
    plan.seed = random_bits(random) >> 20;
    if (kind == PROBLEM_SUITED) { /* slices of similar size; a small one would test little */
        plan.vocab -= plan.vocab % 1024;
        plan.first_token -= plan.first_token % GUMBEL_BLOCK;
    }
    if (kind == PROBLEM_SUITED || kind == PROBLEM_HARD)
        return plan;
    if (one_in(random, 6))
        plan.vocab_size = plan.first_token + 1 + random_below(random, (uint32_t)plan.vocab);
    plan.samples = 1 + (kind != PROBLEM_LONE && one_in(random, 2));
    plan.num_top = one_in(random, 2) ? 1 + (int32_t)random_below(random, 128) : 0;
    bool exact = kind == PROBLEM_LONE && !one_in(random, 4); /* suits no special path */
    plan.dtype = exact ? GUMBEL_FLOAT32 : (gumbel_dtype)(1 + random_below(random, 3));
    plan.scale = one_in(random, 4) ? 0.5f : 0.0f;
    plan.soft_cap = one_in(random, 4) ? 5.0f * (float)(1 + 5 * random_below(random, 2)) : 0.0f;
    plan.logprobs_of = one_in(random, 5) ? GUMBEL_RAW : GUMBEL_PROCESSED;
    plan.transforms = one_in(random, kind == PROBLEM_LONE ? 4 : 2);
    plan.history = one_in(random, 2);
    plan.given_noise = one_in(random, 8);
    plan.kept_capacity = one_in(random, 3) ? 1 + (int32_t)random_below(random, 700) : 0;
    plan.entropy = one_in(random, 2);
    return plan;
}

/* Truncates by one rule, between a few tokens and all; rows that suit pivots avoid both ends. */
void truncate_by_one_rule(test_problem *test)
{
    static const float top_ps[] = {0.8f, 0.95f, 0.9999f, 0.3f, 1e-30f, 1 - 1e-7f};
    const bool suits = test->kind == PROBLEM_SUITED;
    const int64_t vocab = test->req->plan.vocab;
    gumbel_truncation *cut = &test->req->truncation;
    clear_truncation(cut);
    if (one_in(&test->random, 2)) {
        int64_t most = 300u << random_below(&test->random, 7);
        most = std::min(most, suits ? vocab / 8 : vocab);
        test->top_k = 300 + (int32_t)random_below(&test->random, (uint32_t)(most - 299));
        cut->top_k = (gumbel_row_i32){&test->top_k, GUMBEL_SAME};
    } else {
        test->top_p = top_ps[random_below(&test->random, suits ? 3 : 6)];
        cut->top_p = (gumbel_row_f32){&test->top_p, GUMBEL_SAME};
    }
}

/* Truncates by a top_k that keeps more tokens than a CTA can: adjacent ones, or many of one value.
 */
void truncate_beyond_a_cta(test_problem *test)
{
    gumbel_truncation *cut = &test->req->truncation;
    clear_truncation(cut);
    test->top_k =
        CUDA_TRUNCATED_THREADS + (int32_t)random_below(&test->random, CUDA_TRUNCATED_THREADS);
    cut->top_k = (gumbel_row_i32){&test->top_k, GUMBEL_SAME};
    set_hostile_logits(test->req,
                       random_below(&test->random, 2) ? random_below(&test->random, 2) : 7);
}

/* Gives all rows the same usual temperature. */
void set_usual_temperature(test_problem *test)
{
    static const float usual[] = {0.7f, 1.0f, 1.5f};
    test->temperature = usual[random_below(&test->random, 3)];
    test->req->sampling.temperature = (gumbel_row_f32){&test->temperature, GUMBEL_SAME};
}

/* Truncates to few tokens, and by a nucleus of these or of the whole row. */
void truncate_to_few(test_problem *test)
{
    gumbel_truncation *cut = &test->req->truncation;
    const bool mass = test->kind == PROBLEM_MASS;
    clear_truncation(cut);
    test->top_k = 1 + (int32_t)random_below(&test->random, CUDA_TRUNCATED_TOP_MAX);
    test->min_p = 0.01f * (float)(1 + random_below(&test->random, 20));
    test->top_p = 0.01f * (float)(1 + random_below(&test->random, 99));
    uint32_t by = mass ? random_below(&test->random, 4) : 1 + random_below(&test->random, 3);
    if (by & 1)
        cut->top_k = {&test->top_k, GUMBEL_SAME};
    if (by & 2)
        cut->min_p = {&test->min_p, GUMBEL_SAME};
    static const gumbel_order of_all[] = {/* the first two without a top_k: */
                                          GUMBEL_ORDER_TOP_K_TOP_P_MIN_P,
                                          GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE,
                                          GUMBEL_ORDER_JOINT, GUMBEL_ORDER_JOINT_TEMPERATURE};
    if (mass && by)
        cut->order =
            of_all[by & 1 ? 2 + random_below(&test->random, 2) : random_below(&test->random, 4)];
    if (mass || one_in(&test->random, 2))
        cut->top_p = (gumbel_row_f32){&test->top_p, GUMBEL_SAME};
}

/* A top_k that a CTA's list serves, or hardly any list does. */
int32_t any_top_k(uint64_t *random)
{
    return one_in(random, 2) ? 2 + (int32_t)random_below(random, 60)
                             : CUDA_TRUNCATED_TOP_MAX + 1 + (int32_t)random_below(random, 3000);
}

/* Scores given tokens: drawn ones, others, or none. */
void set_given_tokens(test_problem *test)
{
    const request_plan &plan = test->req->plan;
    for (int64_t i = 0; i < plan.batch * plan.samples; i++)
        test->given.push_back(
            (int32_t)(plan.first_token + random_below(&test->random, (uint32_t)plan.vocab + 2)) -
            (one_in(&test->random, 9) ? (int32_t)plan.first_token + 9 : 1));
    test->req->sampling.noise = NULL;
    test->req->sampling.given = {test->given.data(), 0};
}

/* Late biases that raise some tokens of each row above most others. */
void set_late_biases(test_problem *test)
{
    const request_plan &plan = test->req->plan;
    gumbel_transforms &t = test->req->transforms;
    test->late_offsets.push_back(0);
    for (int64_t b = 0; b < plan.batch; b++) {
        for (uint32_t more = random_below(&test->random, 40); more > 0; more--) {
            test->late_ids.push_back(
                (int32_t)(plan.first_token + random_below(&test->random, (uint32_t)plan.vocab)));
            test->late_values.push_back(6 * random_normal(&test->random));
        }
        test->late_offsets.push_back((int64_t)test->late_ids.size());
    }
    t.struct_size = sizeof t;
    t.late_bias = {test->late_offsets.data(), test->late_ids.data(), test->late_values.data(), 0};
    test->req->sampling.transforms = &t;
}

/* If the request has lists, one time in three, some rows have lists without room. */
void set_list_status(test_problem *test)
{
    gumbel_transforms &t = test->req->transforms;
    if ((!t.banned.offsets && !t.late_bias.offsets) || !one_in(&test->random, 3))
        return;
    for (int64_t b = 0; b < test->req->plan.batch; b++)
        test->list_status.push_back(one_in(&test->random, 3) ? GUMBEL_ROW_LISTS : GUMBEL_ROW_SLOT);
    t.list_status = test->list_status.data();
}

/* The request points into the problem. */
void make_test(test_problem *test, int index, gumbel_device *cpu)
{
    static const problem_kind kinds[] = {PROBLEM_ANY,  PROBLEM_SUITED, PROBLEM_LONE,
                                         PROBLEM_FEW,  PROBLEM_HARD,   PROBLEM_LONE,
                                         PROBLEM_MASS, PROBLEM_ENGINE};
    test->random = (uint64_t)index;
    test->kind = kinds[index % 8];
    request_plan plan = plan_of(test->kind, &test->random);
    test->req = request_make(&plan, cpu);
    const bool suits = test->kind == PROBLEM_SUITED, hard = test->kind == PROBLEM_HARD;
    if (suits || hard || !one_in(&test->random, 3))
        set_usual_temperature(test);
    if (suits || test->kind == PROBLEM_LONE)
        truncate_by_one_rule(test);
    else if (hard)
        truncate_beyond_a_cta(test);
    else if (test->kind == PROBLEM_ENGINE)
        truncate_as_engines(test->req, any_top_k(&test->random), &test->cuts, &test->random);
    else if (test->kind != PROBLEM_ANY)
        truncate_to_few(test);
    if (one_in(&test->random, 2)) /* lists take another path than masks and histories */
        test->req->transforms.banned = test->req->transforms.bias =
            test->req->transforms.late_bias = {};
    if (!suits && !hard && one_in(&test->random, 3))
        set_late_biases(test);
    set_list_status(test);
    if (!suits && !hard && one_in(&test->random, 3))
        set_adjacent_logits(test->req, &test->random);
    else if (!suits && !hard && one_in(&test->random, 2))
        set_hostile_logits(test->req, random_below(&test->random, REQUEST_SHAPES));
    test->processed = test->kind == PROBLEM_ANY && one_in(&test->random, 4);
    if (test->kind == PROBLEM_ANY && one_in(&test->random, 3))
        set_given_tokens(test);
    test->live_rows = (int32_t)plan.batch - 1;
    if (!suits && one_in(&test->random, 6))
        test->req->sampling.live_rows = &test->live_rows;
    if (one_in(&test->random, 4))
        for (int64_t b = 0; b < plan.batch; b++)
            test->fallback.push_back(one_in(&test->random, 3) ? CUDA_ROW_SERVED
                                                              : CUDA_ROW_FALLBACK);
}

/* Some outputs; with a single rule, a token and perhaps the number of kept tokens. */
gumbel_output outputs_of(test_problem *test, const outcome *ours)
{
    gumbel_output wanted = choose_outputs(ours, &test->random);
    const bool lone = test->kind == PROBLEM_SUITED || test->kind == PROBLEM_LONE;
    if (lone || test->kind == PROBLEM_HARD ||
        (test->kind == PROBLEM_MASS && one_in(&test->random, 2))) {
        wanted.lse = wanted.logprobs = wanted.top_logprobs = wanted.kept_logprobs = NULL;
        wanted.ranks = wanted.top_ids = NULL;
        if (test->kind == PROBLEM_SUITED || one_in(&test->random, 2)) /* pivots may serve */
            wanted.kept = wanted.kept_ids = NULL, wanted.entropy = NULL;
    }
    return wanted;
}

/* ---------------------------------------------------------------------------- comparison ---- */

void count_row(const test_problem &test, cluster_path path, const outcome *host,
               const gumbel_output &ours, int64_t b, row_counts *counts)
{
    const bool passes = path == CLUSTER_BY_PASSES;
    (passes ? counts->other_entropies : counts->listed_entropies).add(host, ours, b);
    bool suits = test.kind == PROBLEM_SUITED;
    counts->all++;
    counts->paths[path]++;
    counts->suited += suits;
    counts->quick += suits && (path == CLUSTER_PIVOTED || path == CLUSTER_PIVOTED_FEW);
}

/* Serves the rows; returns whether all rows to serve agree with the CPU backend. */
bool draws_agree(test_problem *test, gumbel_device *cpu, cuda_truncated_params p,
                 row_kernel *kernel, int64_t clusters, row_counts *counts)
{
    outcome *host = request_outcome(test->req), *untouched = request_outcome(test->req);
    bool good = request_draw(cpu, test->req, host) == GUMBEL_OK;
    std::vector<cluster_path> paths = kernel(p, clusters, &test->random, test->what);
    for (int64_t b = 0; good && b < p.problem.batch; b++) {
        bool served = !p.row_states || p.row_states[b] == CUDA_ROW_FALLBACK;
        good = row_agrees(served ? host : untouched, p.output, b, test->what);
        if (served)
            count_row(*test, paths[(size_t)b], host, p.output, b, counts);
    }
    outcome_free(untouched);
    outcome_free(host);
    return good;
}

/* As above, for processed rows. */
bool processed_agree(test_problem *test, gumbel_device *cpu, cuda_truncated_params p,
                     row_kernel *kernel, int64_t clusters)
{
    const gumbel_problem &q = p.problem;
    const gumbel_tensor &l = q.logits;
    const float untouched = -12352.0f; /* exact in every dtype */
    const bool same = one_in(&test->random, 2), in_place = same && one_in(&test->random, 2);
    p.processed_stride = in_place ? l.stride : q.vocab + random_below(&test->random, 3);
    p.processed_dtype = same ? l.dtype : GUMBEL_FLOAT32;
    processed_rows rows(q.batch, p.processed_stride, p.processed_dtype, untouched);
    processed_rows host(q.batch, q.vocab, p.processed_dtype, untouched);
    if (in_place) {
        memcpy(rows.data(), l.data,
               (size_t)((q.batch - 1) * l.stride + q.vocab) * dtype_size(l.dtype));
        p.problem.logits.data = rows.data();
    }
    const processed_rows before = rows;
    if (request_process_into(cpu, &test->req->logits, &test->req->sampling, host.data(),
                             p.processed_dtype, 0))
        return false;
    p.processed = rows.data();
    kernel(p, clusters, &test->random, test->what);
    for (int64_t b = 0; b < q.batch; b++)
        for (int64_t i = 0; i < p.processed_stride; i++) {
            bool served = (!p.row_states || p.row_states[b] == CUDA_ROW_FALLBACK) && i < q.vocab;
            float found = rows.load(b, i), expected = (served ? host : before).load(b, i);
            if (same_float(found, expected))
                continue;
            printf("%s: row %d: processed[%d] is %a, not %a\n", test->what, (int)b, (int)i,
                   (double)found, (double)expected);
            return false;
        }
    return true;
}

bool passes(int index, gumbel_device *cpu, row_kernel *kernel, row_counts *counts)
{
    test_problem test = {};
    make_test(&test, index, cpu);
    outcome *ours = request_outcome(test.req);
    gumbel_output none = {};
    cuda_truncated_params p = params_of(*test.req, test.processed ? none : outputs_of(&test, ours));
    const gumbel_problem &q = p.problem;
    int64_t origin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    int64_t clusters = 1 + random_below(&test.random, (uint32_t)q.batch);
    p.splits = CUDA_CLUSTER_CTAS;
    p.split_size = cuda_cluster_slice(std::max<int64_t>(q.end_token - origin, 1));
    p.row_states = test.fallback.empty() ? NULL : test.fallback.data();
    snprintf(test.what, sizeof test.what, "problem %d, %s, %s: %s", index,
             kernel == emulate_grid ? "grid" : "cluster", test.processed ? "processed" : "drawn",
             request_describe(&test.req->plan));
    bool good = test.processed ? processed_agree(&test, cpu, p, kernel, clusters)
                               : draws_agree(&test, cpu, p, kernel, clusters, counts);
    outcome_free(ours);
    request_free(test.req);
    return good;
}

/* Whether each path served rows as often as expected; no row has a program. */
bool all_paths_serve(const row_counts &counts)
{
    const int least = counts.all / 50;
    bool good = true;
    for (int path = 0; path < CLUSTER_PATHS; path++)
        good &= path == CLUSTER_BEFORE_PROGRAM || counts.paths[path] >= least;
    return good && counts.quick >= kQuick * counts.suited;
}

/* Prints how a kernel served its rows; returns whether it did as expected. Few problems do not
 * reach every path. */
bool check_paths(const char *kernel, const row_counts &counts)
{
    printf("%s: %d rows: %d listed, %d by masses, %d and %d of few by pivots, %d by all\n", kernel,
           counts.all, counts.paths[CLUSTER_LISTED], counts.paths[CLUSTER_BY_MASS],
           counts.paths[CLUSTER_PIVOTED], counts.paths[CLUSTER_PIVOTED_FEW],
           counts.paths[CLUSTER_BY_PASSES]);
    printf("%s: pivots served %d of %d rows that suit them\n", kernel, counts.quick, counts.suited);
    const bool good = counts.all < 80 || all_paths_serve(counts);
    if (!good)
        printf("%s: a way to serve rows does so too seldom\n", kernel);
    const int least = counts.all < 80 ? 0 : 2;
    const bool listed = counts.listed_entropies.check("from lists", least);
    return counts.other_entropies.check("by passes", 0) && listed && good &&
           counts.other_entropies.positive >= least;
}

} // namespace

/* usage: test_truncated_cluster [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    gumbel_device *cpu = open_device((gumbel_isa)0, 1, 0);
    row_counts by_cluster = {}, by_grid = {};
    const int failed = run_problems(argc, argv, 32, 2000, [&](int i) {
        const bool good = passes(i, cpu, emulate_cluster, &by_cluster);
        if (i / 8 % kGridEvery)
            return good;
        return passes(i, cpu, emulate_grid, &by_grid) && good;
    });
    const bool idle = !check_paths("cluster", by_cluster) | !check_paths("grid", by_grid);
    gumbel_close(cpu);
    return failed != 0 || idle;
}

// SPDX-License-Identifier: Apache-2.0
//
// The two kernels that draw rows before the only rule of their programs besides TEMPERATURE, by a
// cluster or by CTAs that hold a split each, against the CPU backend; clusters, or the CTAs of a
// cooperative launch, serve the rows that the latter leave. Pivots must serve nearly all rows: a
// kernel that gives them up too early has the right tokens, but is slow.
#include "launch_cluster.h"
#include "launch_pivots.h"
#include "truncated_rows.h"

#include "cuda/policy/cuda_policy.h"

namespace
{

constexpr int64_t kRows = 4;
constexpr double kPivotedShare = 0.95;

/* Rows, those that pivots served, and those whose CTAs did not run at the same time. */
struct row_counts {
    int all, pivoted, in_splits, pivoted_in_splits, drawn_again, abandoned;
};

/* A program of one rule, with the parameters of its rows. */
struct single_rule_program {
    gumbel_programs programs;
    gumbel_program_rule rule;
    bool before; /* the rule comes before the temperature */
    uint8_t rules[GUMBEL_PROGRAM_LENGTH];
    float values[kRows], temperature;
};

/* Sets the row parameter of a rule, one of the usual values for each row. */
void set_values(single_rule_program *single, gumbel_row_f32 *field, std::vector<float> usual,
                uint64_t *random)
{
    for (float &value : single->values)
        value = usual[random_below(random, (uint32_t)usual.size())];
    *field = {single->values, 1};
}

void set_rule(single_rule_program *single, request *req, uint64_t *random)
{
    static const gumbel_program_rule choices[] = {
        GUMBEL_PROGRAM_TYPICAL_P, GUMBEL_PROGRAM_TYPICAL_P, GUMBEL_PROGRAM_TOP_P,
        GUMBEL_PROGRAM_EPSILON,   GUMBEL_PROGRAM_ETA,       GUMBEL_PROGRAM_TOP_N_SIGMA,
        GUMBEL_PROGRAM_TOP_A,     GUMBEL_PROGRAM_P_LESS,    GUMBEL_PROGRAM_SURPRISE};
    static const float temperatures[] = {0.7f, 1.0f, 1.5f};
    gumbel_programs *q = &single->programs;
    single->rule = choices[random_below(random, sizeof choices / sizeof *choices)];
    single->before = one_in(random, 2);
    single->rules[single->before ? 0 : 1] = (uint8_t)single->rule;
    single->rules[single->before ? 1 : 0] = GUMBEL_PROGRAM_TEMPERATURE;
    single->temperature = temperatures[random_below(random, 3)];
    *q = {};
    q->struct_size = sizeof *q;
    q->rules = single->rules;
    q->count = 1;
    req->truncation = {};
    req->truncation.struct_size = sizeof req->truncation;
    req->truncation.ties = (gumbel_ties)random_below(random, 2);
    req->truncation.programs = q;
    req->sampling.temperature = {&single->temperature, GUMBEL_SAME};
    if (single->rule == GUMBEL_PROGRAM_TYPICAL_P)
        set_values(single, &q->typical_p, {0.5f, 0.9f, 0.99f, 0.9999f}, random);
    if (single->rule == GUMBEL_PROGRAM_TOP_P)
        set_values(single, &req->truncation.top_p, {0.5f, 0.9f, 0.9999f}, random);
    if (single->rule == GUMBEL_PROGRAM_EPSILON)
        set_values(single, &q->epsilon, {3e-4f, 1e-3f, 1e-6f}, random);
    if (single->rule == GUMBEL_PROGRAM_ETA)
        set_values(single, &q->eta, {3e-4f, 4e-3f, 1e-6f}, random);
    if (single->rule == GUMBEL_PROGRAM_TOP_N_SIGMA)
        set_values(single, &q->top_n_sigma, {1.0f, 2.0f, 3.5f}, random);
    if (single->rule == GUMBEL_PROGRAM_TOP_A)
        set_values(single, &q->top_a, {0.2f, 0.01f, 1.0f}, random);
    if (single->rule == GUMBEL_PROGRAM_SURPRISE)
        set_values(single, &q->surprise, {4.0f, 9.0f, 14.0f}, random);
}

/* Makes the draw from which the kernel of splits starts. */
void draw_without_program(const request &req, gumbel_device *cpu, outcome *plain_draw)
{
    request plain = req;
    plain.sampling.truncation = NULL;
    if (request_draw(cpu, &plain, plain_draw) != GUMBEL_OK)
        exit(1);
}

/* Runs the kernel of a cluster a row. */
bool cluster_passes(cuda_truncated_params p, const outcome *host, bool usual, uint64_t *random,
                    const char *what, row_counts *counts)
{
    const int64_t origin = p.problem.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    p.splits = CUDA_CLUSTER_CTAS;
    p.split_size = cuda_cluster_slice(std::max<int64_t>(p.problem.end_token - origin, 1));
    const std::vector<cluster_path> paths = emulate_programs(p, random, what);
    for (int64_t b = 0; b < p.problem.batch; b++) {
        if (!row_agrees(host, p.output, b, what))
            return false;
        counts->all += usual;
        counts->pivoted += usual && paths[(size_t)b] == CLUSTER_PIVOTED;
    }
    return true;
}

/* Runs the kernel of splits after a plain draw, and one that serves the rows that it leaves. */
bool splits_pass(cuda_truncated_params p, const outcome *host, bool usual, uint64_t *random,
                 const char *what, row_counts *counts)
{
    const gumbel_problem &q = p.problem;
    const int64_t origin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    const int64_t range = std::max<int64_t>(q.end_token - origin, 1);
    const bool at_once = !one_in(random, 6);
    std::vector<int32_t> states((size_t)q.batch, -1);
    p.splits = (int32_t)cuda_pivot_splits(range);
    std::vector<uint64_t> exchange((size_t)cuda_pivot_exchange_words(q.batch, p.splits));
    p.exchange = exchange.data();
    p.row_states = states.data();
    const std::vector<pivot_paths> paths =
        emulate_program_pivots(program_params_of(p), at_once, random, what);
    for (int64_t b = 0; b < q.batch; b++) {
        const bool abandoned = exchange[(size_t)b] != 0;
        const bool served = states[(size_t)b] == CUDA_ROW_SERVED;
        if (!served && states[(size_t)b] != CUDA_ROW_FALLBACK) {
            fprintf(stderr, "%s: row %lld has the state %d\n", what, (long long)b,
                    (int)states[(size_t)b]);
            return false;
        }
        if (served && !row_agrees(host, p.output, b, what))
            return false;
        counts->abandoned += abandoned;
        counts->drawn_again += paths[(size_t)b].drawn_again;
        counts->in_splits += usual && !abandoned;
        counts->pivoted_in_splits += usual && !abandoned && served;
    }
    p.splits = CUDA_CLUSTER_CTAS;
    p.split_size = cuda_cluster_slice(range);
    if (one_in(random, 3))
        emulate_program_grid(p, random, what);
    else
        emulate_programs(p, random, what);
    for (int64_t b = 0; b < q.batch; b++)
        if (!row_agrees(host, p.output, b, what))
            return false;
    return true;
}

bool passes(int index, gumbel_device *cpu, row_counts *counts)
{
    uint64_t random = (uint64_t)index + 7000;
    single_rule_program single = {};
    request_plan plan = {};
    plan.batch = 1 + random_below(&random, 2);
    plan.vocab = 2000 + random_below(&random, one_in(&random, 3) ? 30000 : 9000);
    plan.kind = 1 + ROW_GAUSSIAN;
    plan.truncation = 1;
    plan.seed = random_bits(&random) >> 20;
    plan.samples = 1;
    plan.dtype = (gumbel_dtype)(1 + random_below(&random, 3));
    plan.soft_cap = one_in(&random, 4) ? 5.0f : 0.0f;
    choose_range(&plan, &random);
    request *req = request_make(&plan, cpu);
    const bool hostile = one_in(&random, 3);
    set_rule(&single, req, &random);
    req->transforms.banned = req->transforms.bias = {};
    /* Pivots keep all ties at the end of a nucleus. */
    const bool by_id =
        single.rule == GUMBEL_PROGRAM_TOP_P && req->truncation.ties == GUMBEL_TIES_EXACT;
    const bool usual = !hostile && !by_id;
    if (hostile)
        set_hostile_logits(req, random_below(&random, REQUEST_SHAPES));
    outcome *ours = request_outcome(req), *host = request_outcome(req);
    gumbel_output wanted = {};
    wanted.struct_size = sizeof wanted;
    wanted.tokens = ours->output.tokens;
    wanted.status = ours->output.status;
    const cuda_truncated_params p = params_of(*req, wanted);
    char what[300];
    snprintf(what, sizeof what, "problem %d, rule %d%s: %s", index, (int)single.rule,
             single.before ? " before the temperature" : "", request_describe(&plan));
    bool good = request_draw(cpu, req, host) == GUMBEL_OK &&
                cluster_passes(p, host, usual, &random, what, counts);
    if (good && plan.soft_cap == 0.0f) {
        draw_without_program(*req, cpu, ours);
        good = splits_pass(p, host, usual, &random, what, counts);
    }
    outcome_free(host);
    outcome_free(ours);
    request_free(req);
    return good;
}

} // namespace

/* usage: test_program_pivots [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    row_counts n = {};
    int failed = run_cpu_problems(argc, argv, 120, 3000,
                                  [&](int i, gumbel_device *cpu) { return passes(i, cpu, &n); });
    printf("pivots of clusters served %d of %d usual rows, pivots of splits %d of %d; %d rows were "
           "drawn again, %d abandoned\n",
           n.pivoted, n.all, n.pivoted_in_splits, n.in_splits, n.drawn_again, n.abandoned);
    const bool leaves = n.all >= 40 && (n.pivoted < kPivotedShare * n.all ||
                                        n.pivoted_in_splits < kPivotedShare * n.in_splits);
    const bool rare = n.all >= 40 && std::min(n.drawn_again, n.abandoned) < n.all / 40;
    if (leaves || rare)
        printf("pivots serve too few rows, or some path is too rare\n");
    return failed != 0 || leaves || rare;
}

// SPDX-License-Identifier: Apache-2.0
//
// Weights that change in place after their screen was made: the kernels' source on a CPU, with
// guard pages after weights, hidden states, workspace and outputs. Whatever the weights become,
// each launch ends and stays within its memory, and each draw has a token of the vocabulary or a
// status other than GUMBEL_ROW_OK. Weights that are all NaN give GUMBEL_ROW_NAN.
#include "launch_screen.h"
#include "launch_sm90.h"
#include "launch_cluster.h"
#include "truncated_rows.h"

extern "C" {
#include "stale_weights.h"
#include "guard_pages.h"
}

namespace
{

/* Numbers of calls. */
struct counts {
    int drawn, left;
};

problem_plan plan_of(int index, uint64_t *random)
{
    static const int64_t batches[] = {3, 1, 4, 9, 2, 20};
    problem_plan plan = {};
    plan.batch = batches[random_below(random, 6)];
    plan.vocab = 16 * (20 + random_below(random, 50));
    plan.hidden_size = 64 + 8 * random_below(random, 30);
    plan.weight_dtype = one_in(random, 3) ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16;
    plan.hidden_dtype = plan.weight_dtype;
    plan.samples = one_in(random, 3) ? 2 : 1;
    plan.first_token = one_in(random, 3) ? 64 * random_below(random, 1000) : 0;
    if (one_in(random, 3))
        plan.vocab_size = plan.first_token + plan.vocab - random_below(random, 140);
    plan.temperature = one_in(random, 6) ? 0.002f : one_in(random, 3) ? -0.8f : 0.7f;
    plan.seed = (uint64_t)index;
    return plan;
}

/* Truncation of rows, if any. */
struct row_truncation {
    int32_t top_k;
    float top_p, min_p;
    gumbel_truncation cut;

    explicit row_truncation(uint64_t *random)
        : top_k(1 + (int32_t)random_below(random, 8)), top_p(0.9f), min_p(0.05f), cut()
    {
        cut.struct_size = sizeof cut;
        cut.top_k = {&top_k, GUMBEL_SAME};
        if (one_in(random, 2))
            cut.top_p = {&top_p, GUMBEL_SAME};
        if (one_in(random, 2))
            cut.min_p = {&min_p, GUMBEL_SAME};
        cut.order =
            one_in(random, 2) ? GUMBEL_ORDER_TOP_K_TOP_P_MIN_P : GUMBEL_ORDER_MIN_P_TOP_K_TOP_P;
        cut.ties = (gumbel_ties)random_below(random, 2);
    }
};

/* A tensor in pages of its own, without the gap after its last row. */
gumbel_tensor fenced(guard_set *f, gumbel_tensor t)
{
    const int64_t stride = t.stride ? t.stride : t.cols;
    t.data =
        guard_copy(f, t.data, (size_t)((t.rows - 1) * stride + t.cols) * dtype_size(t.dtype), 1);
    return t;
}

/* Poisoned outputs of a call in pages of their own. */
gumbel_output fenced_output(guard_set *f, int64_t batch, int samples, int num_top, bool all)
{
    const size_t rows = (size_t)batch * 4, draws = rows * (size_t)samples;
    gumbel_output out = {};
    out.struct_size = sizeof out;
    out.tokens = (int32_t *)guard_copy(f, NULL, draws, 1);
    out.scores = (float *)guard_copy(f, NULL, draws, 1);
    out.status = (int32_t *)guard_copy(f, NULL, rows, 1);
    if (!all)
        return out;
    out.lse = (float *)guard_copy(f, NULL, rows, 1);
    out.logprobs = (float *)guard_copy(f, NULL, draws, 1);
    out.ranks = (int32_t *)guard_copy(f, NULL, draws, 1);
    out.kept = (int32_t *)guard_copy(f, NULL, rows, 1);
    out.num_top = num_top;
    out.top_ids = (int32_t *)guard_copy(f, NULL, rows * (size_t)num_top, 1);
    out.top_logprobs = (float *)guard_copy(f, NULL, rows * (size_t)num_top, 1);
    out.logprobs_of = GUMBEL_PROCESSED;
    return out;
}

/* Whether each draw has a valid token, or none and a status. */
bool is_sound(const gumbel_problem &q, const gumbel_output &out, bool all_nan, const char *what)
{
    const int samples = q.sampling.num_samples;
    for (int64_t at = 0; at < q.batch * samples; at++) {
        const int32_t token = out.tokens[at], status = out.status[at / samples];
        const bool good =
            status == GUMBEL_ROW_OK ? token >= q.first_token && token < q.end_token : token == -1;
        if (good && !(all_nan && status != GUMBEL_ROW_NAN))
            continue;
        printf("%s: draw %d has token %d, status %d\n", what, (int)at, (int)token, (int)status);
        return false;
    }
    return true;
}

/* Draws by the screen, and fallback rows by the full pass and clusters. */
bool draw_stale(emulated_launch &own, const gumbel_output &output, bool is_cut, int ctas,
                guard_set *f, uint64_t *random, const char *what)
{
    int64_t listed = 0;
    own.params.output = output;
    if (!is_cut)
        return emulate_screen(own.params, ctas, random, what, &listed);
    own.params.problem.features |= gumbel_output_features(&output);
    const gumbel_problem &q = own.params.problem;
    const int64_t stride = (q.vocab + 3) / 4 * 4;
    const void *logits = guard_copy(f, NULL, (size_t)(q.batch * stride) * sizeof(float), 1);
    std::vector<int32_t> states((size_t)q.batch, 7);
    cuda_truncated_params p = {};
    p.problem = q;
    p.problem.hidden_size = 0;
    p.problem.logits = tensor_of(logits, GUMBEL_FLOAT32, q.batch, q.vocab, stride);
    p.output = output;
    p.row_states = states.data();
    if (!emulate_truncated_screen(own.params, &p, ctas, random, what, &listed))
        return false;
    p.splits = CUDA_CLUSTER_CTAS;
    p.split_size = cuda_cluster_slice(q.end_token - q.first_token);
    emulate_cluster(p, 1 + random_below(random, (uint32_t)q.batch), random, what);
    return true;
}

/* Draws plain rows by the kernels of other GPUs, too; returns whether the draws are sound. */
bool draws_soundly_by_mma(emulated_launch &own, const problem_plan &plan, bool all_nan, int ctas,
                          guard_set *f, uint64_t *random, const char *what)
{
    int64_t listed = 0;
    own.params.output = fenced_output(f, plan.batch, plan.samples, 0, false);
    own.params.tag++;
    emulate_screen_sm80(own.params, ctas, 100 * 1024, random, what, &listed);
    return is_sound(own.params.problem, own.params.output, all_nan, what);
}

bool passes(int index, counts *all)
{
    uint64_t random = (uint64_t)index;
    char what[400];
    const stale_kind kind = (stale_kind)(index % STALE_KINDS);
    const bool is_cut = index / STALE_KINDS % 2;
    const problem_plan plan = plan_of(index, &random);
    problem *generated = problem_make(&plan);
    const row_truncation cuts(&random);
    const int ctas = 1 + (int)random_below(&random, 5);
    snprintf(what, sizeof what, "problem %d, %s%s, %d CTAs: %s", index, stale_names[kind],
             is_cut ? ", cut" : "", ctas, problem_describe(&plan));
    guard_set f = {};
    gumbel_head head = generated->head;
    gumbel_sampling sampling = generated->sampling;
    head.weight = fenced(&f, head.weight);
    head.hidden = fenced(&f, head.hidden);
    sampling.truncation = is_cut ? &cuts.cut : NULL;
    const gumbel_output output =
        fenced_output(&f, plan.batch, plan.samples, 3, is_cut && one_in(&random, 2));
    emulated_launch own =
        emulated_launch_of(head, sampling, output.lse != NULL, 0, ctas, &random, what);
    void *screen =
        emulate_prepare_screen(own.params.problem.weight, choose_certificate(&random),
                               random_bits(&random), GUMBEL_SCREEN_LIST_MAX, &random, what);
    own.params.problem.screen = screen;
    own.params.row_thresholds = (uint64_t *)guard_copy(
        &f, NULL, (size_t)(plan.batch * plan.samples) * CUDA_THRESHOLD_WORDS * sizeof(uint64_t), 1);
    own.params.tag = 1 + 3 * (uint64_t)index;
    spoil_rows(&head.weight, kind, &random);
    if (one_in(&random, 4))
        spoil_rows(&head.hidden, kind, &random);
    const bool left = draw_stale(own, output, is_cut, ctas, &f, &random, what);
    all->left += left;
    all->drawn += !left;
    bool good = is_sound(own.params.problem, output, kind == STALE_NAN, what);
    if (!is_cut)
        good &= draws_soundly_by_mma(own, plan, kind == STALE_NAN, ctas, &f, &random, what);
    free(screen);
    free_guard_set(&f);
    problem_free(generated);
    return good;
}

} // namespace

/* usage: test_stale_screens [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    counts all = {};
    int failed =
        run_problems(argc, argv, 2 * STALE_KINDS, 500, [&](int i) { return passes(i, &all); });
    printf("%d drawn by stale screens, %d left to the full pass\n", all.drawn, all.left);
    return failed != 0;
}

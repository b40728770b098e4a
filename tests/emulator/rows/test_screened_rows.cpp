// SPDX-License-Identifier: Apache-2.0
//
// Truncated rows drawn by a screen on Hopper: the kernels' source on a CPU, its threads in a random
// order, all CTAs at the same time, against the CPU backend's draw from the logits of the full
// pass, bit by bit (log-normalisers within two ulps). Clusters draw the fallback rows from those
// logits, with the same bits. The screen must serve most calls that suit it.
#include "launch_screen.h"
#include "launch_sm90.h"
#include "launch_cluster.h"
#include "truncated_rows.h"
#include "tables.h"

namespace
{

/* Numbers of calls. */
struct counts {
    int drawn, left, sure, sure_drawn;
    int64_t rows, listed;
};
constexpr double kSureDrawn = 0.6; /* a CTA that is early waits in vain */

/* Truncation, mask and penalties of rows. */
struct row_truncation {
    std::vector<int32_t> top_k, mask; /* [B]; [B][words], or none */
    std::vector<float> top_p, min_p;
    std::vector<float> repetition, frequency, presence; /* [B], or none */
    std::vector<uint32_t> prompt, output;
    std::vector<uint16_t> counts;
    gumbel_history history;
    gumbel_truncation cut;
    gumbel_transforms transforms;
    bool suits; /* the screen is expected to serve all rows */
};

problem_plan plan_of(int index, uint64_t *random)
{
    static const int64_t batches[] = {1, 3, 4, 2, 6, 13, 1, 5, 33, 2};
    problem_plan plan = {};
    plan.batch = batches[index % 10];
    plan.vocab = 16 * (20 + random_below(random, 70));
    plan.hidden_size = 64 + 8 * random_below(random, one_in(random, 4) ? 90 : 20);
    plan.weight_dtype = one_in(random, 3) ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16;
    plan.hidden_dtype = plan.weight_dtype;
    plan.samples = one_in(random, 3) ? 2 + (int)random_below(random, 3) : 1;
    plan.first_token = one_in(random, 3) ? 64 * random_below(random, 1000) : 0;
    if (one_in(random, 3))
        plan.vocab_size = plan.first_token + plan.vocab - random_below(random, 140);
    plan.scale = one_in(random, 4) ? 0.75f : 0.0f;
    plan.temperature = one_in(random, 6) ? 0.002f : one_in(random, 4) ? -0.8f : 0.7f;
    plan.seed = random_bits(random) >> 20;
    return plan;
}

/* Makes many weights equal, so that logits tie, also at the cutoff. */
void tie(problem *generated)
{
    const gumbel_tensor &t = generated->head.weight;
    const int64_t stride = t.stride ? t.stride : t.cols;
    uint16_t *weight = (uint16_t *)generated->weight;
    for (int64_t row = t.rows / 5; row < t.rows; row++)
        memcpy(weight + row * stride, weight + row % (t.rows / 5) * stride, (size_t)t.cols * 2);
}

void spoil(problem *generated, uint64_t *random)
{
    const gumbel_tensor *t = one_in(random, 2) ? &generated->head.weight : &generated->head.hidden;
    void *data = t == &generated->head.weight ? generated->weight : generated->hidden;
    const int64_t at = t->rows / 2 * (t->stride ? t->stride : t->cols) + 7;
    dtype_store_nan(data, t->dtype, at);
}

/* Truncates to numbers of tokens for which the first wave of tiles usually gives a threshold. */
void make_truncation(const problem_plan &plan, int wave, bool min_p_alone,
                     row_truncation *generated, uint64_t *random)
{
    const int64_t words = (plan.first_token + plan.vocab + 31) / 32;
    const uint32_t most = one_in(random, 8) ? 90 : (uint32_t)wave;
    generated->suits = true;
    for (int64_t b = 0; b < plan.batch; b++) {
        const bool odd = one_in(random, 60);
        generated->top_k.push_back(odd ? 0 : 1 + (int32_t)random_below(random, most));
        generated->top_p.push_back(
            one_in(random, 3) ? 1.0f : 0.05f * (float)(1 + random_below(random, 19)));
        generated->min_p.push_back(one_in(random, 2) ? 0.0f
                                                     : 0.01f * (float)random_below(random, 30));
        generated->suits &= !odd && generated->top_k.back() <= wave;
    }
    if (min_p_alone) { /* more tokens are kept than outputs list as the most likely ones */
        generated->top_k.assign((size_t)plan.batch, 0);
        generated->min_p.assign((size_t)plan.batch, 0.05f);
        generated->suits = true;
    }
    generated->cut.struct_size = sizeof generated->cut;
    generated->cut.top_k = {generated->top_k.data(), 0};
    if (!one_in(random, 3))
        generated->cut.top_p = {generated->top_p.data(), 0};
    if (one_in(random, 2) || min_p_alone)
        generated->cut.min_p = {generated->min_p.data(), 0};
    generated->cut.order = (gumbel_order)random_below(random, REQUEST_ORDERS);
    if (generated->cut.order == GUMBEL_ORDER_JOINT ||
        generated->cut.order == GUMBEL_ORDER_JOINT_TEMPERATURE)
        generated->cut.order = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P;
    generated->cut.ties = (gumbel_ties)random_below(random, 2);
    generated->transforms.struct_size = sizeof generated->transforms;
    if (!one_in(random, 3))
        return;
    const uint32_t kind = random_below(random, 4);
    for (int64_t i = 0; i < plan.batch * words; i++) {
        const uint64_t bits = random_bits(random);
        generated->mask.push_back(kind == 0 ? (int32_t)(bits & bits >> 32 & random_bits(random))
                                  : kind == 1 && one_in(random, 2) ? 0
                                                                   : (int32_t)bits);
    }
    generated->transforms.mask = {generated->mask.data(), words};
}

/* Penalises tokens by a history that has seen some or most of them, often so little that they are
 * kept; a history may end before the vocabulary. A row whose penalties raise logits is a fallback
 * row. */
void make_penalties(const problem_plan &plan, row_truncation *generated, uint64_t *random)
{
    const int64_t end = plan.first_token + plan.vocab, tokens = end - random_below(random, 40);
    const size_t words = (size_t)(tokens + 31) / 32;
    for (int64_t b = 0; b < plan.batch; b++) {
        const bool raises = one_in(random, 40), acts = !one_in(random, 5);
        const float size = one_in(random, 2) ? 0.5f : 0.01f;
        generated->repetition.push_back(raises ? 0.9f : acts ? 1.0f + size : 1.0f);
        generated->frequency.push_back(acts ? size * (float)random_below(random, 3) : 0.0f);
        generated->presence.push_back(acts ? size * (float)random_below(random, 3) : 0.0f);
        generated->suits &= !raises;
    }
    const bool dense = one_in(random, 2);
    for (size_t i = 0; i < words * (size_t)plan.batch; i++) {
        const uint64_t a = random_bits(random), b = random_bits(random);
        generated->prompt.push_back((uint32_t)(dense ? a | b : a & b));
        generated->output.push_back(
            (uint32_t)(random_bits(random) & random_bits(random) & random_bits(random)));
    }
    for (int64_t i = 0; i < plan.batch * tokens; i++) {
        const uint32_t *row = &generated->output[words * (size_t)(i / tokens)];
        const bool seen = row[i % tokens / 32] >> i % tokens % 32 & 1;
        generated->counts.push_back((uint16_t)(seen ? 1 + random_below(random, 3) : 0));
    }
    generated->history.struct_size = sizeof generated->history;
    generated->history.vocab_size = tokens;
    generated->history.prompt = generated->prompt.data();
    generated->history.output = generated->output.data();
    generated->history.counts = generated->counts.data();
    generated->transforms.history = &generated->history;
    generated->transforms.repetition = {generated->repetition.data(), 0};
    generated->transforms.frequency = {generated->frequency.data(), 0};
    generated->transforms.presence = {generated->presence.data(), 0};
}

/* Stores the logits of the full pass. */
void store(const problem &generated, int ctas, table *logits, uint64_t *random, const char *what)
{
    const int width = cuda_sm90_width_for(generated.plan.batch);
    emulated_launch own =
        emulated_launch_of(generated.head, generated.sampling, false, width, ctas, random, what);
    own.params.problem.sampling.num_samples = 1;
    own.params.logits_out = logits->row(0);
    own.params.logits_out_stride = logits->stride;
    emulate_fused(own);
}

gumbel_logits logits_of(const problem &generated, table *logits)
{
    gumbel_logits all = {};
    all.struct_size = sizeof all;
    all.logits = tensor_of(logits->row(0), GUMBEL_FLOAT32, generated.plan.batch,
                           generated.plan.vocab, logits->stride);
    all.scale = generated.plan.scale;
    all.first_token = generated.plan.first_token;
    all.vocab_size = generated.plan.vocab_size;
    return all;
}

/* The request from logits that serves the fallback rows. */
cuda_truncated_params rows_of(const gumbel_problem &whole, table *logits,
                              const gumbel_output &output, std::vector<int32_t> *states)
{
    cuda_truncated_params p = {};
    p.problem = whole;
    p.problem.hidden_size = 0;
    p.problem.logits =
        tensor_of(logits->row(0), GUMBEL_FLOAT32, whole.batch, whole.vocab, logits->stride);
    p.output = output;
    p.row_states = states->data();
    return p;
}

bool passes(int index, gumbel_device *cpu, counts *all)
{
    uint64_t random = (uint64_t)index;
    char what[400];
    problem_plan plan = plan_of(index, &random);
    const bool penalised = index % 5 == 2;
    if (penalised)
        plan.scale = 0.0f; /* a call with both takes the full pass */
    problem *generated = problem_make(&plan);
    const bool is_spoilt = one_in(&random, 12), is_short = one_in(&random, 12);
    const bool is_tied = one_in(&random, 5);
    if (is_tied)
        tie(generated);
    const gumbel_screen_certificate certificate = choose_certificate(&random);
    const bool leans = certificate == GUMBEL_SCREEN_CERTAIN && !is_spoilt && one_in(&random, 2);
    if (leans)
        enlarge_steps(generated->head.weight);
    if (is_spoilt)
        spoil(generated, &random);
    const int ctas = 2 + (int)random_below(&random, 5);
    row_truncation cuts = {};
    const bool min_p_alone = index % 12 == 7;
    const int64_t tokens =
        plan.vocab_size ? std::min(plan.vocab, plan.vocab_size - plan.first_token) : plan.vocab;
    const int first = (int)std::min<int64_t>(ctas, (tokens + 127) / 128);
    make_truncation(plan, first - first / 8, min_p_alone, &cuts, &random);
    if (penalised)
        make_penalties(plan, &cuts, &random);
    snprintf(what, sizeof what, "problem %d, %d CTAs%s%s%s%s: %s", index, ctas,
             is_short ? ", short lists" : "", is_tied ? ", ties" : "",
             cuts.mask.empty() ? "" : ", masked", penalised ? ", penalties" : "",
             problem_describe(&plan));
    gumbel_sampling sampling = generated->sampling;
    sampling.truncation = &cuts.cut;
    sampling.transforms = cuts.mask.empty() && !penalised ? NULL : &cuts.transforms;
    outcome *host = outcome_make(plan.batch, plan.samples),
            *ours = outcome_make(plan.batch, plan.samples);
    const int num_top = 1 + (int)random_below(&random, 5);
    outcome_widen(host, num_top, GUMBEL_PROCESSED);
    outcome_widen(ours, num_top, GUMBEL_PROCESSED);
    const int32_t capacity = 1 + (int32_t)random_below(&random, one_in(&random, 2) ? 8 : 600);
    outcome_list_kept(host, capacity);
    outcome_list_kept(ours, capacity);
    emulated_launch own =
        emulated_launch_of(generated->head, sampling, false, 0, ctas, &random, what);
    void *screen =
        emulate_prepare_screen(own.params.problem.weight, certificate, random_bits(&random),
                               is_short ? 1 : GUMBEL_SCREEN_LIST_MAX, &random, what);
    if (leans)
        lean_on_dither(generated->head.hidden, screen);
    table logits(plan.batch, (plan.vocab + 3) / 4 * 4), found = logits;
    store(*generated, ctas, &logits, &random, what);
    const gumbel_logits stored = logits_of(*generated, &logits);
    bool good = draw_logits(cpu, &stored, &sampling, host) == GUMBEL_OK;
    outcome_poison(ours);
    gumbel_output output = choose_outputs(ours, &random);
    if (one_in(&random, 2) && !min_p_alone) {
        output.num_top = 0;
        output.top_ids = NULL;
        output.top_logprobs = NULL;
    }
    const bool needs_mass =
        output.lse || output.logprobs || output.top_logprobs || output.kept_logprobs;
    own.params.problem.with_mass = needs_mass;
    uint64_t *floors = (uint64_t *)poisoned_workspace((size_t)(plan.batch * plan.samples) *
                                                      CUDA_THRESHOLD_WORDS * sizeof *floors);
    std::vector<int32_t> states((size_t)plan.batch, 7);
    own.params.problem.screen = screen;
    own.params.problem.features |= gumbel_output_features(&output);
    own.params.output = output;
    own.params.row_thresholds = floors;
    own.params.tag = 1 + 3 * (uint64_t)index;
    cuda_truncated_params p = rows_of(own.params.problem, &found, output, &states);
    int64_t listed = 0;
    const bool again = emulate_truncated_screen(own.params, &p, ctas, &random, what, &listed);
    if (again) {
        p.splits = CUDA_CLUSTER_CTAS;
        p.split_size = cuda_cluster_slice(tokens);
        good &= same_bits(found, logits);
        emulate_cluster(p, 1 + random_below(&random, (uint32_t)plan.batch), &random, what);
    }
    for (int64_t b = 0; b < plan.batch && good; b++)
        good = row_agrees(host, output, b, what);
    /* In many rows, more tokens may pass than a tile can queue. The screen does not serve greedy
     * rows that request a mass or a count. */
    const bool sure = cuts.suits && !is_spoilt && !is_short && !is_tied && plan.batch <= 3 &&
                      num_top <= first - first / 8 &&
                      (plan.temperature > 0 || (!needs_mass && !output.kept));
    all->left += again;
    all->drawn += !again;
    all->sure += sure;
    all->sure_drawn += sure && !again;
    all->rows += again ? 0 : plan.batch;
    all->listed += listed;
    if (!good)
        printf("%s: %s\n", what, again ? "left to the full pass" : "drawn by the screen");
    free(floors);
    free(screen);
    outcome_free(host);
    outcome_free(ours);
    problem_free(generated);
    return good;
}

} // namespace

/* usage: test_screened_rows [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    counts all = {};
    int failed = run_cpu_problems(argc, argv, 24, 500,
                                  [&](int i, gumbel_device *cpu) { return passes(i, cpu, &all); });
    printf(
        "%d drawn, %d left to the full pass, %.1f candidates a row; of %d that must be drawn, %d\n",
        all.drawn, all.left, all.rows ? (double)all.listed / (double)all.rows : 0.0, all.sure,
        all.sure_drawn);
    const bool leaves = all.sure >= 5 && all.sure_drawn < kSureDrawn * all.sure;
    if (leaves)
        printf("too many are left\n");
    return failed != 0 || leaves;
}

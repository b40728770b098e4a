// SPDX-License-Identifier: Apache-2.0
//
// Rows that allow few tokens, drawn from hidden states in one launch, from masks and from lists,
// with samples, given noise and summaries, and with logits of NaN and infinity: all outputs have
// the bits of a draw from the logits of the Hopper kernel that stores all of them.
#include "allowed_tokens.h"
#include "launch_allowed.h"
#include "launch_sm90.h"
#include "tables.h"

extern "C" {
#include "outcome.h"
}

#include "cuda/policy/screen_policy.h"

namespace
{

/* Few columns of many tokens, many columns of few tokens, or some of both. */
problem_plan make_plan(int index, uint64_t *random)
{
    static const int64_t batches[] = {1, 8, 3, 16, 1, 9};
    static const gumbel_dtype biases[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    const uint32_t size = random_below(random, 8);
    problem_plan plan = {};
    plan.batch = batches[index % 6];
    plan.vocab = 16 * (9 + random_below(random, size == 0 ? 2000 : size == 1 ? 10 : 150));
    plan.hidden_size = 8 * (1 + random_below(random, size == 0 ? 4 : size == 1 ? 800 : 200));
    plan.samples = one_in(random, 3) ? 1 + (int32_t)random_below(random, 32) : 1;
    plan.weight_dtype = one_in(random, 2) ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16;
    plan.hidden_dtype = plan.weight_dtype;
    plan.weight_gap = 8 * random_below(random, 3);
    plan.hidden_gap = 8 * random_below(random, 3);
    if (one_in(random, 2))
        plan.bias_dtype = biases[random_below(random, 3)];
    plan.scale = one_in(random, 4) ? -0.75f : 0.0f;
    plan.soft_cap = one_in(random, 4) ? 4.0f : 0.0f;
    plan.temperature = one_in(random, 3) ? -1.0f : 0.7f;
    plan.first_token = one_in(random, 2) ? 4 * random_below(random, 1000) : 0;
    if (one_in(random, 2)) /* up to a tile of invalid tokens at the end */
        plan.vocab_size = plan.first_token + plan.vocab - random_below(random, 140);
    plan.first_sample = random_below(random, 3);
    plan.seed = random_bits(random) >> 20;
    return plan;
}

/* Stores NaN and infinities in the weights of some tokens. */
void set_hostile_weights(const problem *generated, uint64_t *random)
{
    const problem_plan &plan = generated->plan;
    const int64_t stride = plan.hidden_size + plan.weight_gap;
    for (int i = 0; i < 4; i++) {
        const int64_t at = random_below(random, (uint32_t)plan.vocab) * stride;
        if (i == 0)
            dtype_store_nan(generated->weight, plan.weight_dtype, at);
        else
            dtype_store_infinite(generated->weight, plan.weight_dtype, at, i % 2 ? 1 : -1);
    }
}

/* A call under test, and what it needs. */
struct few_call {
    problem_plan plan;
    problem *generated;
    int64_t words;
    std::vector<int32_t> masks;
    token_lists lists;
    bool by_lists, with_mass, with_partials;
    int32_t live;
    std::vector<float> noise;
    gumbel_head head;
    gumbel_sampling sampling;
    gumbel_transforms transforms;
};

void make_call(few_call *call, int index, uint64_t *random)
{
    call->plan = make_plan(index, random);
    const problem_plan &plan = call->plan;
    call->generated = problem_make(&plan);
    call->words = (plan.first_token + plan.vocab + 31) / 32;
    call->masks = make_masks(plan, call->words, random);
    call->by_lists = one_in(random, 2);
    if (call->by_lists)
        call->lists = make_lists(plan, call->masks, call->words, random);
    call->with_mass = one_in(random, 2);
    call->with_partials = one_in(random, 4);
    call->live =
        (int32_t)(one_in(random, 3) ? random_below(random, (uint32_t)plan.batch + 1) : plan.batch);
    if (one_in(random, 4)) /* a row of NaN logits */
        dtype_store_nan(call->generated->hidden, plan.hidden_dtype, 0);
    if (one_in(random, 3))
        set_hostile_weights(call->generated, random);
    problem_rows(call->generated, 0, plan.batch, &call->head, &call->sampling);
    if (one_in(random, 5)) {
        call->noise.resize((size_t)(plan.batch * plan.samples * plan.vocab));
        for (float &g : call->noise)
            g = (float)random_below(random, 1000) / 100.0f;
        call->sampling.noise = call->noise.data();
        call->sampling.noise_stride = plan.vocab;
    }
    call->transforms.struct_size = sizeof call->transforms;
    if (call->by_lists)
        call->transforms.allowed = {call->lists.offsets.data(), call->lists.ids.data(), NULL, 0};
    else
        call->transforms.mask = {call->masks.data(), 0};
}

/* Stores all logits by the Hopper kernel. */
void store_logits(const few_call &call, table &logits, uint64_t *random, const char *what)
{
    gumbel_sampling sampling = call.sampling;
    sampling.noise = NULL;
    sampling.noise_stride = 0;
    sampling.num_samples = 1;
    emulated_launch whole = emulated_launch_of(
        call.head, sampling, false, emulated_width(call.plan.batch, 1, random), 2, random, what);
    whole.params.logits_out = logits.row(0);
    whole.params.logits_out_stride = logits.stride;
    emulate_fused(whole);
}

/* The workspace of a draw, undefined at first. */
struct draw_workspace {
    std::vector<gumbel_summary> summaries, partials;
    std::vector<uint64_t> thresholds;

    draw_workspace(const gumbel_problem &q, int64_t splits, uint64_t *random)
        : summaries((size_t)(q.batch * q.sampling.num_samples * splits)),
          partials((size_t)(q.batch * q.sampling.num_samples)),
          thresholds(partials.size() * CUDA_THRESHOLD_WORDS, random_bits(random))
    {
    }
    void set(cuda_params *p, bool with_partials, uint64_t *random)
    {
        p->summaries = summaries.data();
        p->row_thresholds = thresholds.data();
        p->partials = with_partials ? partials.data() : nullptr;
        p->tag = random_bits(random) >> 24;
    }
};

gumbel_output outputs_of(const outcome *generated, bool with_mass)
{
    gumbel_output output = generated->output;
    if (!with_mass)
        output.lse = output.logprobs = NULL;
    return output;
}

/* Draws from all logits, as a call of the allowed tokens' masks. */
void draw_from_logits(const few_call &call, const cuda_params &few, table &logits, outcome *into,
                      draw_workspace *own, uint64_t *random, const char *what)
{
    cuda_params p = few;
    gumbel_problem &q = p.problem;
    const int64_t range = q.end_token - q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    q.logits = tensor_of(logits.row(0), GUMBEL_FLOAT32, q.batch, q.vocab, logits.stride);
    q.hidden_size = 0;
    q.features = GUMBEL_FEATURE_MASK;
    q.transforms.mask = {call.masks.data(), call.words};
    p.split_size = (range + GUMBEL_BLOCK - 1) / GUMBEL_BLOCK * GUMBEL_BLOCK;
    p.splits = 1;
    p.output = outputs_of(into, call.with_mass);
    own->set(&p, call.with_partials, random);
    emulate_draw_allowed(p, random, what);
}

bool partials_agree(const draw_workspace &expected, const draw_workspace &found, const char *what)
{
    for (size_t i = 0; i < found.partials.size(); i++) {
        const gumbel_summary &a = expected.partials[i], &b = found.partials[i];
        if (memcmp(&a.best_score, &b.best_score, sizeof a.best_score) == 0 &&
            memcmp(&a.best_z, &b.best_z, sizeof a.best_z) == 0 && a.best_id == b.best_id &&
            a.max_z == b.max_z && memcmp(a.mass, b.mass, sizeof a.mass) == 0 &&
            a.mass_exponent == b.mass_exponent && a.flags == b.flags)
            continue;
        printf("%s: summary %d: token %d, flags %u, not %d, %u\n", what, (int)i, (int)b.best_id,
               b.flags, (int)a.best_id, a.flags);
        return false;
    }
    return true;
}

struct row_counts {
    int64_t drawn, others;
};

bool passes(int index, row_counts *counts)
{
    uint64_t random = (uint64_t)index;
    few_call call = {};
    char what[400];
    make_call(&call, index, &random);
    const problem_plan &plan = call.plan;
    snprintf(what, sizeof what, "problem %d: %s, %s", index, problem_describe(&plan),
             call.by_lists ? "lists" : "masks");
    table logits(plan.batch, plan.vocab + 2);
    store_logits(call, logits, &random, what);
    call.sampling.transforms = &call.transforms;
    call.sampling.live_rows = &call.live;
    cuda_allowed_draw_params s = {};
    s.call =
        emulated_launch_of(call.head, call.sampling, call.with_mass, 0, 1, &random, what).params;
    s.call.splits = 1 + (int32_t)random_below(&random, 5);
    s.reads_lists = call.by_lists;
    outcome *expected = outcome_make(plan.batch, plan.samples);
    outcome *found = outcome_make(plan.batch, plan.samples);
    draw_workspace own(s.call.problem, s.call.splits, &random), other = own;
    outcome_poison(expected);
    draw_from_logits(call, s.call, logits, expected, &other, &random, what);
    s.call.output = outputs_of(found, call.with_mass);
    own.set(&s.call, call.with_partials, &random);
    bool good = true;
    for (int replay = 0; good && replay < 2; replay++) {
        outcome_poison(found);
        emulate_allowed_fused(s, &random, what);
        good = call.with_partials ? partials_agree(other, own, what)
                                  : outcome_same(expected, 0, found, OUTCOME_ALL, what);
    }
    for (int64_t b = 0; b < plan.batch && !call.with_partials; b++)
        ++*(found->status[b] == GUMBEL_ROW_OK ? &counts->drawn : &counts->others);
    outcome_free(expected);
    outcome_free(found);
    problem_free(call.generated);
    return good;
}

} // namespace

/* usage: test_allowed_fused [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    row_counts counts = {};
    int failed = run_problems(argc, argv, 80, 2000, [&](int i) { return passes(i, &counts); });
    printf("%d rows drawn, %d not\n", (int)counts.drawn, (int)counts.others);
    return failed != 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// The product of the weights of allowed tokens: its logits have the bits of the Hopper kernel that
// stores all of them, with other thread orders, splits and batches, and no other token of a group
// of rows is written.
#include "launch_allowed.h"
#include "launch_sm90.h"
#include "tables.h"

extern "C" {
#include "outcome.h"
}

#include "cuda/policy/screen_policy.h"

#include <algorithm>

namespace
{

problem_plan make_plan(int index, uint64_t *random)
{
    static const int64_t batches[] = {1, 8, 3, 16, 27, 9};
    static const gumbel_dtype biases[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    problem_plan plan = {};
    plan.batch = batches[index % 6];
    plan.vocab = 16 * (9 + random_below(random, 150));
    plan.hidden_size = 8 * (1 + random_below(random, one_in(random, 2) ? 8 : 300));
    plan.weight_dtype = one_in(random, 2) ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16;
    plan.hidden_dtype = plan.weight_dtype;
    plan.weight_gap = 8 * random_below(random, 3);
    plan.hidden_gap = 8 * random_below(random, 3);
    if (one_in(random, 2))
        plan.bias_dtype = biases[random_below(random, 3)];
    plan.scale = one_in(random, 4) ? -0.75f : 0.0f; /* must not affect stored logits */
    plan.first_token = one_in(random, 2) ? 4 * random_below(random, 1000) : 0;
    if (one_in(random, 2)) /* up to a tile of invalid tokens at the end */
        plan.vocab_size = plan.first_token + plan.vocab - random_below(random, 140);
    plan.seed = random_bits(random) >> 20;
    return plan;
}

/* Masks of all rows: few tokens, a run of neighbours, no token or, rarely, all of them. */
std::vector<int32_t> make_masks(const problem_plan &plan, int64_t words, uint64_t *random)
{
    std::vector<int32_t> masks((size_t)(plan.batch * words));
    for (int64_t b = 0; b < plan.batch; b++) {
        int32_t *row = &masks[(size_t)(b * words)];
        const uint32_t kind = random_below(random, 6);
        const uint32_t count = kind == 0 ? 0 : random_below(random, kind == 1 ? 300 : 40);
        const uint32_t from = random_below(random, (uint32_t)plan.vocab);
        if (one_in(random, 12))
            std::fill(row, row + words, -1);
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t place =
                kind == 2 ? from + i : random_below(random, (uint32_t)plan.vocab);
            const int64_t token = plan.first_token + place % plan.vocab;
            row[token / 32] |= (int32_t)(1u << token % 32);
        }
    }
    return masks;
}

bool allows(const std::vector<int32_t> &masks, int64_t words, int64_t b, int64_t token)
{
    return (uint32_t)masks[(size_t)(b * words + token / 32)] >> token % 32 & 1;
}

/* Whether any drawn row of the group of row b allows a token. */
bool group_allows(const std::vector<int32_t> &masks, int64_t words, int64_t live, int64_t b,
                  int64_t token)
{
    const int64_t first = b / CUDA_SCREEN_GROUP * CUDA_SCREEN_GROUP;
    for (int64_t row = first; row < std::min(first + CUDA_SCREEN_GROUP, live); row++)
        if (allows(masks, words, row, token))
            return true;
    return false;
}

struct token_counts {
    int64_t stored, unwritten;
};

bool logits_agree(const problem_plan &plan, const std::vector<int32_t> &masks, int64_t words,
                  int64_t live, int64_t tokens, table &expected, table &found, const char *what,
                  token_counts *counts)
{
    for (int64_t b = 0; b <= found.rows; b++)
        for (int64_t i = 0; i < found.stride; i++) {
            const int64_t token = plan.first_token + i;
            const bool stored =
                b < live && i < tokens && group_allows(masks, words, live, b, token);
            const float ours = found.row(b)[i], theirs = stored ? expected.row(b)[i] : 0.0f;
            counts->stored += stored;
            counts->unwritten += !stored;
            if (stored ? memcmp(&ours, &theirs, sizeof ours) == 0 ||
                             (std::isnan(ours) && std::isnan(theirs))
                       : found.poisoned(b, i))
                continue;
            printf("%s: row %d, token %d: %a, not %a\n", what, (int)b, (int)i, (double)ours,
                   stored ? (double)theirs : (double)NAN);
            return false;
        }
    return true;
}

bool passes(int index, token_counts *counts)
{
    uint64_t random = (uint64_t)index;
    const problem_plan plan = make_plan(index, &random);
    problem *generated = problem_make(&plan);
    const int64_t words = (plan.first_token + plan.vocab + 31) / 32;
    const int64_t tokens =
        (plan.vocab_size ? std::min(plan.vocab_size, plan.first_token + plan.vocab)
                         : plan.first_token + plan.vocab) -
        plan.first_token;
    const std::vector<int32_t> masks = make_masks(plan, words, &random);
    const int32_t live = one_in(&random, 3)
                             ? (int32_t)random_below(&random, (uint32_t)plan.batch + 1)
                             : (int32_t)plan.batch;
    gumbel_transforms transforms = {};
    gumbel_head head;
    gumbel_sampling sampling;
    char what[400];
    snprintf(what, sizeof what, "problem %d: %s", index, problem_describe(&plan));
    table expected(plan.batch, plan.vocab + 2), found = expected, again = expected;
    if (one_in(&random, 4)) /* a row of NaN logits */
        dtype_store_nan(generated->hidden, plan.hidden_dtype, 0);
    problem_rows(generated, 0, plan.batch, &head, &sampling);
    emulated_launch whole = emulated_launch_of(
        head, sampling, false, emulated_width(plan.batch, 1, &random), 2, &random, what);
    whole.params.logits_out = expected.row(0);
    whole.params.logits_out_stride = expected.stride;
    emulate_fused(whole);
    transforms.struct_size = sizeof transforms;
    transforms.mask = {masks.data(), 0};
    sampling.transforms = &transforms;
    sampling.live_rows = &live;
    emulated_launch few = emulated_launch_of(head, sampling, false, 0, 1, &random, what);
    few.params.logits_out = found.row(0);
    few.params.logits_out_stride = found.stride;
    const int64_t groups = (plan.batch + CUDA_SCREEN_GROUP - 1) / CUDA_SCREEN_GROUP;
    emulate_allowed_product(few.params, groups + random_below(&random, 5), &random, what);
    few.params.logits_out = again.row(0);
    emulate_allowed_product(few.params, groups + random_below(&random, 5), &random, what);
    const bool good =
        logits_agree(plan, masks, words, live, tokens, expected, found, what, counts) &&
        same_bits(found, again);
    problem_free(generated);
    return good;
}

} // namespace

/* usage: test_allowed_product [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    token_counts counts = {};
    int failed = run_problems(argc, argv, 48, 1000, [&](int i) { return passes(i, &counts); });
    printf("%d logits stored, %d not written\n", (int)counts.stored, (int)counts.unwritten);
    return failed != 0;
}

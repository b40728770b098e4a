// SPDX-License-Identifier: Apache-2.0
//
// The product of the weights of allowed tokens: its logits have the bits of the Hopper kernel that
// stores all of them, with other thread orders, splits and batches, and no other token of a group
// of rows is written. Masks that the kernel makes of lists have the bits of the lists.
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

/* Whether new masks have the bits of `masks`, from word `origin` on. */
bool masks_agree(const std::vector<uint32_t> &new_masks, const std::vector<int32_t> &masks,
                 int64_t words, int64_t origin, const char *what)
{
    const int64_t new_words = words - origin;
    for (size_t i = 0; i < new_masks.size(); i++) {
        const int64_t b = (int64_t)i / new_words, word = origin + (int64_t)i % new_words;
        if (new_masks[i] == (uint32_t)masks[(size_t)(b * words + word)])
            continue;
        printf("%s: row %d, word %d of its mask: %x\n", what, (int)b, (int)word, new_masks[i]);
        return false;
    }
    return true;
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
    std::vector<int32_t> masks = make_masks(plan, words, &random);
    const bool by_lists = one_in(&random, 2);
    const token_lists lists = by_lists ? make_lists(plan, masks, words, &random) : token_lists();
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
    if (by_lists) {
        transforms.mask = {};
        transforms.allowed = {lists.offsets.data(), lists.ids.data(), NULL, 0};
    }
    const int64_t groups = (plan.batch + CUDA_SCREEN_GROUP - 1) / CUDA_SCREEN_GROUP;
    const int64_t origin = CUDA_ALLOWED_ORIGIN(plan.first_token) / 32;
    std::vector<uint32_t> new_masks(by_lists ? (size_t)(plan.batch * (words - origin)) : 0);
    cuda_allowed_params few = {};
    few.call = emulated_launch_of(head, sampling, false, 0, 1, &random, what).params;
    few.call.logits_out_stride = found.stride;
    if (by_lists) {
        few.new_masks = new_masks.data();
        few.mask_words = words - origin;
        few.mask_tiles = (32 * few.mask_words + CUDA_HISTORY_TILE - 1) / CUDA_HISTORY_TILE;
    }
    bool good = true;
    for (table *into : {&found, &again}) {
        std::fill(new_masks.begin(), new_masks.end(), kPoison);
        few.call.logits_out = into->row(0);
        emulate_allowed_product(few, groups + random_below(&random, 5), &random, what);
        good = good && masks_agree(new_masks, masks, words, origin, what);
    }
    good = good && logits_agree(plan, masks, words, live, tokens, expected, found, what, counts) &&
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * Entropies, the two likeliest tokens and banned tokens of rows drawn from hidden states: the
 * outputs of one launch are those of a device that stores all logits, entropies and
 * log-normalisers to within their errors. Rows have the same bits in every batch and replay.
 */
#include "cuda_requests.h"

#include <math.h>

static int calls_in_one_launch;

/* A request for Hopper's product: a few banned tokens a row, or in some rows all. */
static request *make_request(request_plan plan, gumbel_dtype dtype, int banned, uint64_t *random)
{
    plan.usual = plan.samples = 1;
    request *req = request_make(&plan, cpu);
    req->head.weight = request_narrow_tensor(req, &req->head.weight, dtype);
    req->head.hidden = request_narrow_tensor(req, &req->head.hidden, dtype);
    req->head.bias = (gumbel_tensor){0};
    req->transforms = (gumbel_transforms){.struct_size = sizeof req->transforms};
    req->sampling.transforms = &req->transforms;
    if (!banned)
        return req;
    int64_t *offsets = request_allocate(req, (size_t)plan.batch + 1, sizeof *offsets);
    int32_t *ids = request_allocate(req, (size_t)(40 * plan.batch + plan.vocab), sizeof *ids);
    for (int64_t b = 0; b < plan.batch; b++) {
        const uint32_t count = random_below(random, b % 5 == 0 ? 40 : 4);
        offsets[b + 1] = offsets[b];
        for (uint32_t i = 0; i < count; i++)
            ids[offsets[b + 1]++] = (int32_t)random_below(random, (uint32_t)plan.vocab + 99);
        for (int64_t token = 0; b == 2 && token < plan.vocab; token++)
            ids[offsets[b + 1]++] = (int32_t)token;
    }
    req->transforms.banned = (gumbel_token_lists){.offsets = offsets, .ids = ids};
    return req;
}

/* Outputs of `rows` rows: one or two likeliest tokens, or none, and entropies. */
static outcome *make_outcome(int64_t rows, int num_top, int entropy)
{
    outcome *empty = outcome_make(rows, 1);
    outcome_widen(empty, num_top > 0 ? num_top : 5, GUMBEL_PROCESSED);
    if (entropy)
        outcome_add_entropy(empty);
    empty->output.ranks = empty->output.kept = NULL;
    if (num_top == 0) {
        empty->output.top_ids = NULL; /* with num_top 5, which then has no effect */
        empty->output.top_logprobs = NULL;
    }
    return empty;
}

/* Whether two values differ by no more than `most`, or are the same special value. */
static int are_near(float x, float y, float most)
{
    return (isnan(x) && isnan(y)) || x == y || fabsf(x - y) <= most;
}

static void compare_rows(const outcome *stored, const outcome *found, const char *what)
{
    const int num_top = found->output.num_top;
    for (int64_t b = 0; b < found->batch; b++) {
        const float ulps = 0x1p-20f * fmaxf(1.0f, fabsf(stored->lse[b]));
        int good = stored->status[b] == found->status[b] && stored->tokens[b] == found->tokens[b] &&
                   are_near(stored->scores[b], found->scores[b], 0.0f) &&
                   are_near(stored->lse[b], found->lse[b], ulps) &&
                   are_near(stored->logprobs[b], found->logprobs[b], 2 * ulps);
        for (int64_t at = b * num_top; at < (b + 1) * num_top; at++)
            good = good && stored->top_ids[at] == found->top_ids[at] &&
                   are_near(stored->top_logprobs[at], found->top_logprobs[at], 2 * ulps);
        if (found->output.entropy)
            good = good &&
                   are_near(stored->entropy[b], found->entropy[b],
                            0x1p-15f + 0x1p-19f * (stored->entropy[b] + fabsf(stored->lse[b])));
        CHECK(good, "%s: row %d: token %d, %d; entropy %g, %g", what, (int)b,
              (int)stored->tokens[b], (int)found->tokens[b],
              stored->output.entropy ? (double)stored->entropy[b] : 0.0,
              found->output.entropy ? (double)found->entropy[b] : 0.0);
    }
}

/* Draws the rows again in batches of `rows` rows. */
static void compare_batches(const request *req, const outcome *whole, int64_t rows,
                            const char *what)
{
    for (int64_t first = 0; first < req->plan.batch; first += rows) {
        const int64_t left = req->plan.batch - first, count = left < rows ? left : rows;
        request part;
        request_rows(req, first, count, &part);
        gpu_request *on_gpu = gpu_request_make(&part);
        outcome *found = make_outcome(count, whole->output.top_ids ? whole->output.num_top : 0,
                                      whole->output.entropy != NULL);
        gpu_request_draw(on_gpu, 1, found);
        CHECK(outcome_same(whole, first, found, OUTCOME_ALL, what), "%d rows from %d on",
              (int)count, (int)first);
        outcome_free(found);
        gpu_request_free(on_gpu);
    }
}

/* Frees the request. */
static void compare_statistics(request *req, int num_top, int entropy, int64_t rows)
{
    const char *what = request_describe(&req->plan);
    outcome *stored = make_outcome(req->plan.batch, num_top, entropy);
    outcome *found = make_outcome(req->plan.batch, num_top, entropy);
    outcome *again = make_outcome(req->plan.batch, num_top, entropy);
    gpu_request *on_gpu = gpu_request_make(req);
    gpu_request_draw_by(on_gpu, "-hopper-statistics", stored);
    gpu_request_draw(on_gpu, 1, found);
    calls_in_one_launch += gpu_request_uses(on_gpu, found, "draw: hopper-statistics:");
    compare_rows(stored, found, what);
    compare_batches(req, found, rows, what);
    gpu_replay captured = gpu_request_capture(on_gpu, 1, again);
    for (int replay = 0; replay < 2; replay++) {
        gpu_replay_draw(&captured, again);
        CHECK(outcome_same(found, 0, again, OUTCOME_ALL, what), "replay %d", replay);
    }
    gpu_replay_free(&captured);
    gpu_request_free(on_gpu);
    outcome_free(stored);
    outcome_free(found);
    outcome_free(again);
    request_free(req);
}

static void statistics_of_rows(void)
{
    static const int64_t batches[] = {1, 8, 40, 128, 129, 300, 64, 256};
    static const int64_t vocabs[] = {20016, 16, 1008, 4096};
    uint64_t random = 61;
    for (int i = 0; i < 32; i++) {
        request_plan plan = {.batch = batches[i % 8],
                             .vocab = vocabs[i / 8 % 4],
                             .hidden_size = 64 + 8 * (i % 9),
                             .seed = 900 + (uint64_t)i};
        request *req = make_request(plan, i % 3 ? GUMBEL_BFLOAT16 : GUMBEL_FLOAT16, i % 2, &random);
        compare_statistics(req, i % 3, i % 2 == 0 || i % 3 == 0, i % 5 ? 70 : 33);
    }
    CHECK(!gpu_has_clusters() || calls_in_one_launch > 26, "%d calls", calls_in_one_launch);
}

static void check_small_calls(int calls)
{
    uint64_t random = 67;
    for (int i = 0; i < calls; i++) {
        request_plan plan = {
            .batch = i % 2 ? 130 : 5, .vocab = 2064, .hidden_size = 72, .seed = 990 + (uint64_t)i};
        compare_statistics(make_request(plan, GUMBEL_BFLOAT16, i / 2, &random), 2, 1, 130);
    }
}

/* For compute-sanitizer; the second for racecheck, which takes longest. */
static void statistics_small(void) { check_small_calls(4); }
static void statistics_few(void) { check_small_calls(2); }

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"statistics_of_rows", statistics_of_rows},
        {"statistics_small", statistics_small},
        {"statistics_few", statistics_few},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}

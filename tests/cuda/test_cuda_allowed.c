/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that allow few tokens, from hidden states: with max_allowed every output has the bits of the
 * call without it, also if rows allow more tokens, or all, and in one launch or two.
 */
#include "cuda_requests.h"

/* Calls whose product multiplied only the weights of allowed tokens; calls that also drew in the
 * same launch. */
static int calls_with_few, calls_fused;

/* A request whose head suits Hopper's product, without masks, bans and lists. */
static request *make_request(request_plan plan, gumbel_dtype dtype)
{
    plan.hidden_size = (plan.hidden_size + 7) / 8 * 8;
    plan.vocab = (plan.vocab + 15) / 16 * 16;
    plan.first_token = plan.first_token / 4 * 4;
    if (plan.vocab_size && plan.vocab_size <= plan.first_token)
        plan.vocab_size = plan.first_token + 1;
    request *req = request_make(&plan, cpu);
    req->head.weight = request_narrow_tensor(req, &req->head.weight, dtype);
    req->head.hidden = request_narrow_tensor(req, &req->head.hidden, dtype);
    req->transforms.struct_size = sizeof req->transforms;
    req->sampling.transforms = &req->transforms;
    return req;
}

static int32_t choose_token(const request *req, uint64_t *random)
{
    return (int32_t)req->plan.first_token +
           (int32_t)random_below(random, (uint32_t)req->plan.vocab + 1);
}

/* Lists of 1 to `longest` tokens, with duplicates; one in eight is empty if `empty`. */
static void allow_listed(request *req, uint32_t longest, int empty, uint64_t *random)
{
    const int64_t batch = req->plan.batch;
    int64_t *offsets = request_allocate(req, (size_t)batch + 1, sizeof *offsets);
    int32_t *ids = request_allocate(req, (size_t)batch * longest, sizeof *ids);
    for (int64_t b = 0; b < batch; b++) {
        const int is_empty = empty && random_below(random, 8) == 0;
        offsets[b + 1] = offsets[b] + (is_empty ? 0 : 1 + random_below(random, longest));
        for (int64_t k = offsets[b]; k < offsets[b + 1]; k++)
            ids[k] = k > offsets[b] && random_below(random, 9) == 0 ? ids[k - 1]
                                                                    : choose_token(req, random);
    }
    req->transforms.allowed = (gumbel_token_lists){.offsets = offsets, .ids = ids};
}

/* Masks of up to `most` tokens a row: scattered, or neighbours. */
static void allow_masked(request *req, uint32_t most, uint64_t *random)
{
    const request_plan *plan = &req->plan;
    const int64_t words = (plan->first_token + plan->vocab + 31) / 32;
    const int64_t rows = req->sampling.slots.of_row ? req->sampling.slots.count : plan->batch;
    int32_t *mask = request_allocate(req, (size_t)(rows * words), sizeof *mask);
    for (int64_t b = 0; b < rows; b++) {
        const uint32_t count = random_below(random, most + 1);
        const uint32_t from = random_below(random, (uint32_t)plan->vocab);
        const int is_run = random_below(random, 3) == 0;
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t place = is_run ? from + i : random_below(random, (uint32_t)plan->vocab);
            const int64_t token = plan->first_token + place % plan->vocab;
            mask[b * words + token / 32] |= (int32_t)(1u << token % 32);
        }
    }
    req->transforms.mask = (gumbel_row_i32){mask, 0};
}

static void count_call(const gpu_request *on_gpu, const outcome *like)
{
    calls_with_few += gpu_request_uses(on_gpu, like, "logits: allowed:");
    calls_fused += gpu_request_uses(on_gpu, like, "draw: allowed-fused:");
}

/* Draws without max_allowed and with it; frees the request. */
static void compare_limits(request *req, int64_t max_allowed)
{
    request few = *req;
    few.transforms.max_allowed = max_allowed;
    few.sampling.transforms = &few.transforms;
    outcome *expected = request_outcome(req), *found = request_outcome(req);
    gpu_request *all = gpu_request_make(req), *limited = gpu_request_make(&few);
    gpu_request_draw(all, 1, expected);
    gpu_request_draw(limited, 1, found);
    CHECK(outcome_same(expected, 0, found, OUTCOME_ALL, request_describe(&req->plan)),
          "max_allowed %d", (int)max_allowed);
    count_call(limited, found);
    gpu_request_free(all);
    gpu_request_free(limited);
    outcome_free(expected);
    outcome_free(found);
    request_free(req);
}

/* Requests of all kinds. The limit is often exceeded. */
static void check_requests(int count)
{
    uint64_t random = 23;
    for (int i = 0; i < count; i++) {
        request_plan plan = request_plan_at_random(i, 1);
        plan.history = i % 2;
        request *req = make_request(plan, i % 3 ? GUMBEL_BFLOAT16 : GUMBEL_FLOAT16);
        if (i % 4)
            allow_listed(req, i % 5 ? 40 : 2, i % 3 == 0, &random);
        if (i % 4 == 0 || i % 7 == 0)
            allow_masked(req, 30, &random);
        compare_limits(req, 1 + random_below(&random, 4));
    }
}

static void any_request(void)
{
    check_requests(150);
    CHECK(!gpu_has_clusters() || calls_with_few > 20, "%d calls", calls_with_few);
}

/* A vocabulary of a real model, by the number of allowed tokens. */
static void real_vocabulary(void)
{
    static const uint32_t counts[] = {1, 2, 64, 1024, 4096};
    static const int64_t batches[] = {1, 8, 9};
    uint64_t random = 29;
    for (int i = 0; i < 30; i++) {
        const uint32_t count = counts[i % 5];
        request_plan plan = {.batch = batches[i % 3],
                             .vocab = 151936,
                             .hidden_size = 256,
                             .samples = 1 + i % 2,
                             .num_top = i % 4 == 1 ? 2 : 0,
                             .usual = 1,
                             .truncation = i % 4 == 2,
                             .cuts = REQUEST_TOP_K | REQUEST_TOP_P,
                             .seed = 300 + (uint64_t)i};
        request *req = make_request(plan, GUMBEL_BFLOAT16);
        i % 2 ? allow_masked(req, count, &random) : allow_listed(req, count, 0, &random);
        compare_limits(req, count);
    }
}

/* Draws without max_allowed, and with it in one launch, in two, and in replays of a graph. Outputs
 * are those of a plain call, without log-normalisers unless `with_mass`. Frees the request. */
static void compare_launches(request *req, int64_t max_allowed, int with_mass)
{
    request few = *req;
    few.transforms.max_allowed = max_allowed;
    few.sampling.transforms = &few.transforms;
    const char *what = request_describe(&req->plan);
    outcome *expected = outcome_make(req->plan.batch, req->plan.samples);
    outcome *found = outcome_make(req->plan.batch, req->plan.samples);
    if (!with_mass) {
        expected->output.lse = expected->output.logprobs = NULL;
        found->output.lse = found->output.logprobs = NULL;
    }
    const outcome_parts parts = with_mass ? OUTCOME_ALL : OUTCOME_TOKENS | OUTCOME_SCORES;
    gpu_request *all = gpu_request_make(req), *limited = gpu_request_make(&few);
    gpu_request_draw(all, 1, expected);
    gpu_request_draw(limited, 1, found);
    CHECK(outcome_same(expected, 0, found, parts, what), "max_allowed %d", (int)max_allowed);
    count_call(limited, found);
    gpu_request_draw_by(limited, "-allowed-fused", found);
    CHECK(outcome_same(expected, 0, found, parts, what), "two launches");
    gpu_replay captured = gpu_request_capture(limited, 1, found);
    for (int replay = 0; replay < 3; replay++) {
        gpu_replay_draw(&captured, found);
        CHECK(outcome_same(expected, 0, found, parts, what), "replay %d", replay);
    }
    gpu_replay_free(&captured);
    gpu_request_free(all);
    gpu_request_free(limited);
    outcome_free(expected);
    outcome_free(found);
    request_free(req);
}

/* Stores NaN and infinities in the weights of some tokens. */
static void set_hostile_weights(const request *req, uint64_t *random)
{
    const gumbel_tensor *t = &req->head.weight;
    for (int i = 0; i < 40; i++) {
        const int64_t at = (int64_t)random_below(random, (uint32_t)t->rows) * t->stride;
        if (i % 4 == 0)
            dtype_store_nan((void *)t->data, t->dtype, at);
        else
            dtype_store_infinite((void *)t->data, t->dtype, at, i % 2 ? 1 : -1);
    }
}

/* Plain calls by the number of allowed tokens. */
static void one_launch(void)
{
    static const uint32_t counts[] = {1, 2, 63, 64, 65, 1024, 4096};
    static const int64_t batches[] = {1, 8, 3, 9, 64};
    uint64_t random = 31;
    for (int i = 0; i < 28; i++) {
        const uint32_t count = counts[i % 7];
        const int is_deep = i % 10 == 3; /* D of a real model, and a small vocabulary */
        const int is_middle = i % 5 == 1;
        request_plan plan = {.batch = batches[i % 5],
                             .vocab = is_deep     ? 4096
                                      : is_middle ? 16384
                                                  : 32768,
                             .hidden_size = is_deep     ? 4096
                                            : is_middle ? 520
                                                        : 32 + 8 * (i % 8),
                             .samples = i % 6 == 5 ? 32 : 1 + i % 3,
                             .first_token = i % 4 == 2 ? 1000 : 0,
                             .usual = 1,
                             .seed = 500 + (uint64_t)i};
        request *req = make_request(plan, i % 3 ? GUMBEL_BFLOAT16 : GUMBEL_FLOAT16);
        i % 2 ? allow_masked(req, count, &random) : allow_listed(req, count, i % 8 == 0, &random);
        if (i % 4 == 1)
            set_hostile_weights(req, &random);
        /* More than a quarter of the vocabulary would have the full pass. */
        const int64_t most = plan.vocab / 4 / plan.batch, limit = i % 11 ? count : 1;
        compare_launches(req, limit < most ? limit : most, i % 3 != 1);
    }
    CHECK(!gpu_has_clusters() || calls_fused > 20, "%d calls", calls_fused);
}

/* Small calls: `requests` in any launch, and `calls` in one launch and in two. */
static void check_small_calls(int requests, int calls)
{
    uint64_t random = 37;
    check_requests(requests);
    for (int i = 0; i < calls; i++) {
        request_plan plan = {.batch = i % 2 ? 9 : 1,
                             .vocab = 2048,
                             .hidden_size = 64 + 200 * (i % 3),
                             .samples = 1 + i % 3,
                             .usual = 1,
                             .seed = 700 + (uint64_t)i};
        request *req = make_request(plan, GUMBEL_BFLOAT16);
        i % 4 < 2 ? allow_masked(req, 70, &random) : allow_listed(req, 70, i == 2, &random);
        compare_launches(req, 40, i % 3 != 1);
    }
}

/* For compute-sanitizer; the second for racecheck, which takes longest. */
static void allowed_small(void) { check_small_calls(8, 8); }
static void allowed_few(void) { check_small_calls(2, 2); }

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"any_request", any_request}, {"real_vocabulary", real_vocabulary},
        {"one_launch", one_launch},   {"allowed_small", allowed_small},
        {"allowed_few", allowed_few}, {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks draw the tokens of one device, bit for bit: 1 to 8 ranks as threads, every kind of request,
 * shards of any size and order, empty shards.
 */
#include "prefixed_programs.h"
#include "shards.h"
#include "test_scale.h"
#include "thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* One call that all ranks make. */
typedef struct shared_call {
    thread_ranks *place;
    const request *req;
    const shard_split *split;
    gumbel_device **devices;
    const shard_outcome *expected;
    int fused, wide;
    size_t frame_bytes;
    gumbel_traffic traffic;
    _Atomic int wrong;
} shared_call;

static void run_rank(void *argument, int32_t rank)
{
    shared_call *c = argument;
    gumbel_error error = {"", ""};
    gumbel_group *group = NULL;
    gumbel_transport transport = thread_ranks_transport(c->place, rank);
    const gumbel_group_options options = {.struct_size = sizeof options,
                                          .first_token = c->split->first[rank],
                                          .rows = c->split->rows[rank],
                                          .frame_bytes = c->frame_bytes};
    shard_outcome found = shards_outcome(c->req, c->wide);
    if (gumbel_group_open(&transport, c->devices[rank], &options, &group, &error) != GUMBEL_OK ||
        shards_draw(group, c->req, c->split, rank, c->fused, &found, &error) != GUMBEL_OK) {
        printf("rank %d: %s: %s\n", (int)rank, error.field, error.message);
        c->wrong = 1;
    } else if (!shards_same(c->expected, &found, "ranks")) {
        c->wrong = 1;
    }
    if (rank == 0 && group) {
        c->traffic.struct_size = sizeof c->traffic;
        if (gumbel_group_traffic(group, &c->traffic) != GUMBEL_OK)
            c->wrong = 1;
    }
    gumbel_group_close(group);
    shards_outcome_free(&found);
}

typedef struct devices {
    gumbel_device *all[8];
} devices;

static devices open_devices(void)
{
    devices generated;
    gumbel_isa isas[4];
    int count = list_isas(isas);
    for (int i = 0; i < 8; i++)
        generated.all[i] = open_device(isas[i % count], 1, 64 << i % 4);
    return generated;
}

static void close_devices(devices *generated)
{
    for (int i = 0; i < 8; i++)
        gumbel_close(generated->all[i]);
}

static gumbel_traffic compare_draws(const devices *on, const request *req, int32_t ranks,
                                    int aligned, int wide, size_t frame_bytes, uint64_t *random)
{
    int fused = req->product != NULL;
    shard_split split =
        split_vocabulary(req->plan.first_token, req->plan.vocab, ranks, aligned, random);
    shard_outcome expected = shards_outcome(req, wide);
    shared_call call = {.place = thread_ranks_make(ranks),
                        .req = req,
                        .split = &split,
                        .devices = (gumbel_device **)(uintptr_t)on->all,
                        .expected = &expected,
                        .fused = fused,
                        .wide = wide,
                        .frame_bytes = frame_bytes};
    assert_int_equal(shards_draw_whole(on->all[0], req, fused, &expected), GUMBEL_OK);
    thread_ranks_run(ranks, run_rank, &call);
    if (call.wrong)
        fail_msg("%d ranks: %s", (int)ranks, request_describe(&req->plan));
    thread_ranks_free(call.place);
    shards_outcome_free(&expected);
    return call.traffic;
}

/* Requests of every kind, from logits and from hidden states. */
static void requests_match_one_device(void **state)
{
    devices on = open_devices();
    uint64_t random = 31;
    (void)state;
    for (int i = 0; i < scale_count(240, 12); i++) {
        request_plan plan = request_plan_at_random(i * 5 + 3, i % 3 == 0);
        plan.entropy = i % 4 == 1;
        plan.kept_capacity = i % 3 == 1 ? 1 + (int32_t)random_below(&random, 200) : 0;
        request *req = request_make(&plan, on.all[0]);
        compare_draws(&on, req, 1 + (int32_t)random_below(&random, 8), i % 2, 1,
                      i % 4 == 0 ? 256 : 0, &random);
        request_free(req);
    }
    close_devices(&on);
}

/* Plain draws. If shards meet at block boundaries, only summaries are exchanged. */
static void plain_draws_match_one_device(void **state)
{
    devices on = open_devices();
    uint64_t random = 32;
    int64_t plain = 0;
    (void)state;
    for (int i = 0; i < scale_count(200, 12); i++) {
        request_plan plan = request_plan_at_random(i * 7 + 1, i % 2);
        plan.truncation = 0;
        plan.vocab = 1 + (int64_t)random_below(&random, 900);
        plan.vocab_size = i % 3 == 0 ? plan.first_token + 1 + plan.vocab * 2 / 3 : 0;
        request *req = request_make(&plan, on.all[0]);
        int aligned = i % 4 > 0;
        gumbel_traffic traffic = compare_draws(&on, req, 1 + (int32_t)random_below(&random, 8),
                                               aligned, 0, i % 5 == 0 ? 320 : 0, &random);
        assert_int_equal(traffic.calls, 1);
        assert_int_equal(traffic.rows, plan.batch);
        if (aligned) {
            int64_t bytes = 48 * plan.batch * plan.samples, room = (i % 5 == 0 ? 320 : 4096) - 256;
            assert_int_equal(traffic.rows_by_rows, 0);
            assert_int_equal(traffic.exchanges, bytes > room ? 3 : 2);
            plain++;
        }
        request_free(req);
    }
    assert_true(plain > (TEST_SANITIZED ? 5 : 20));
    close_devices(&on);
}

/* Rows of every kind, with every order of rules and tie mode. */
static void every_row_kind_order_and_tie(void **state)
{
    devices on = open_devices();
    uint64_t random = 33;
    (void)state;
    for (int kind = 1; kind <= ROW_ALL_KINDS; kind++)
        for (int order = 0; order < REQUEST_ORDERS; order++)
            for (int ties = 0; ties < 2; ties++) {
                if (TEST_SANITIZED && (kind + 2 * order + ties) % 6)
                    continue;
                request_plan plan = {.batch = 12,
                                     .vocab = 70 + kind * 97,
                                     .samples = 1 + (order + ties) % 2,
                                     .num_top = 7,
                                     .kept_capacity = kind % 3 ? 300 : 1,
                                     .entropy = 1,
                                     .order = (gumbel_order)order,
                                     .ties = (gumbel_ties)ties,
                                     .logprobs_of = (gumbel_distribution)(order % 2),
                                     .truncation = 1,
                                     .kind = kind,
                                     .seed = (uint64_t)(kind * 100 + order * 10 + ties)};
                request *req = request_make(&plan, on.all[0]);
                compare_draws(&on, req, 2 + (kind + order) % 7, ties, 1, 0, &random);
                request_free(req);
            }
    close_devices(&on);
}

/* Rows drawn by random programs of rules. */
static void programs_match_one_device(void **state)
{
    devices on = open_devices();
    uint64_t random = 38;
    (void)state;
    for (int i = 0; i < scale_count(120, 12); i++) {
        prefixed_programs programs;
        request_plan plan = request_plan_at_random(i * 5 + 2, i % 3 == 0);
        plan.truncation = 1;
        request *req = request_make(&plan, on.all[0]);
        prefixed_programs_set(&programs, req, &random);
        compare_draws(&on, req, 1 + (int32_t)random_below(&random, 8), i % 2, 1, 0, &random);
        request_free(req);
    }
    close_devices(&on);
}

/* Given tokens, including invalid ids and tokens that cannot be drawn. */
static void given_tokens_match_one_device(void **state)
{
    devices on = open_devices();
    uint64_t random = 34;
    (void)state;
    for (int i = 0; i < scale_count(40, 12); i++) {
        request_plan plan = request_plan_at_random(i * 3, i % 2);
        plan.given_noise = 0;
        plan.batch += i == 0 ? 300 : 0;
        request *req = request_make(&plan, on.all[0]);
        size_t draws = (size_t)(plan.batch * plan.samples);
        int32_t *given = make_zeroed(draws, sizeof *given);
        for (size_t at = 0; at < draws; at++)
            given[at] =
                random_below(&random, 6) == 0
                    ? -1
                    : (int32_t)(plan.first_token + random_below(&random, (uint32_t)plan.vocab));
        req->sampling.given = (gumbel_row_i32){given, 0};
        compare_draws(&on, req, 1 + (int32_t)random_below(&random, 5), i % 2, 1, 0, &random);
        free(given);
        request_free(req);
    }
    close_devices(&on);
}

/* k = 50 with p = .95 takes one exchange, top_p alone two; no row is gathered. */
static void usual_truncation_takes_one_exchange(void **state)
{
    static const int32_t k = 50;
    static const float p = 0.95f, min_p = 0.02f, warm = 0.8f;
    devices on = open_devices();
    uint64_t random = 35;
    (void)state;
    for (int order = 0; order < REQUEST_ORDERS; order++)
        for (int i = 0; i < 12; i += TEST_SANITIZED ? 5 : 1) {
            request_plan plan = {.batch = 5,
                                 .vocab = 2000 + 300 * i,
                                 .hidden_size = i % 4 == 3 ? 20 : 0,
                                 .samples = 1 + i % 2,
                                 .num_top = i % 3 * 10,
                                 .order = (gumbel_order)order,
                                 .ties = (gumbel_ties)(i / 2 % 2),
                                 .truncation = 1,
                                 .transforms = i % 2,
                                 .usual = 1,
                                 .kind = 1 + ROW_GAUSSIAN,
                                 .seed = 40 + (uint64_t)i};
            request *req = request_make(&plan, on.all[0]);
            gumbel_truncation *t = &req->truncation;
            *t = (gumbel_truncation){.struct_size = sizeof *t,
                                     .top_k = {&k, GUMBEL_SAME},
                                     .top_p = {&p, GUMBEL_SAME},
                                     .order = plan.order,
                                     .ties = plan.ties};
            if (i % 5 == 0)
                t->min_p = (gumbel_row_f32){&min_p, GUMBEL_SAME};
            req->sampling.temperature = (gumbel_row_f32){&warm, GUMBEL_SAME};
            gumbel_traffic traffic = compare_draws(&on, req, 1 + i % 8, 1, 1, 1 << 16, &random);
            int joint = order == GUMBEL_ORDER_JOINT || order == GUMBEL_ORDER_JOINT_TEMPERATURE;
            if (plan.hidden_size == 0) /* (logits of a small product may tie) */
                assert_int_equal(traffic.rows_by_rows, 0);
            assert_in_range(traffic.exchanges - 1, 1, traffic.rows_by_rows > 0 ? 3 : 1 + joint);
            request_free(req);
        }
    close_devices(&on);
}

/* Rules before the temperature distinguish tokens whose z is equal after it: by value, then by
 * id. */
static void tokens_equal_only_after_the_temperature(void **state)
{
    static const int32_t k = 5;
    static const float hot = 3e38f;
    devices on = open_devices();
    uint64_t random = 36;
    (void)state;
    for (int i = 0; i < 24; i += TEST_SANITIZED ? 5 : 1) {
        request_plan plan = {.batch = 3,
                             .vocab = 900,
                             .samples = 1,
                             .num_top = 1 + i,
                             .order = i % 2 ? GUMBEL_ORDER_BEFORE_TEMPERATURE
                                            : GUMBEL_ORDER_JOINT_TEMPERATURE,
                             .truncation = 1,
                             .kind = 1 + ROW_GAUSSIAN,
                             .scale = i % 2 ? 1e-6f : 2e-7f,
                             .seed = 60 + (uint64_t)i};
        request *req = request_make(&plan, on.all[0]);
        gumbel_truncation *t = &req->truncation;
        *t = (gumbel_truncation){
            .struct_size = sizeof *t, .top_k = {&k, GUMBEL_SAME}, .order = plan.order};
        req->sampling.temperature = (gumbel_row_f32){&hot, GUMBEL_SAME};
        compare_draws(&on, req, 1 + i % 5, 1, 1, 0, &random);
        request_free(req);
    }
    close_devices(&on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(plain_draws_match_one_device),
                                       cmocka_unit_test(requests_match_one_device),
                                       cmocka_unit_test(usual_truncation_takes_one_exchange),
                                       cmocka_unit_test(tokens_equal_only_after_the_temperature),
                                       cmocka_unit_test(every_row_kind_order_and_tie),
                                       cmocka_unit_test(programs_match_one_device),
                                       cmocka_unit_test(given_tokens_match_one_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

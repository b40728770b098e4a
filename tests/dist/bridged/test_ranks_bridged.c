/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks whose devices' memory the host cannot read, in groups whose messages lie in host memory,
 * alone and beside ranks on CPUs: every request draws what one device draws, to the bit; what is
 * wrong is an error by name on every rank, in time.
 */
#include "far_device.h"
#include "shards.h"
#include "thread_ranks.h"

#include <gumbel/dist.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS_MOST = 5, TIMEOUT = 20000, SHORT_TIMEOUT = 300 };

static int how_many(int usual)
{
    int many = getenv("GUMBEL_NIGHTLY") ? 20 * usual : usual;
    return TEST_SANITIZED ? (many + 11) / 12 : many;
}

/* One call that all ranks make. */
typedef struct shared_call {
    thread_ranks *place;
    const request *req, *odd; /* `odd`: what rank 0 asks for instead, or NULL */
    const shard_cut *cut;
    gumbel_device *cpu;
    far_device *far_one;
    uint32_t far_ranks; /* bits */
    const shard_outcome *expected;
    int fused, wide, hangs, calls;
    int64_t spare, timeout_ms;
    gumbel_status status[RANKS_MOST];
    gumbel_error error[RANKS_MOST];
    _Atomic int wrong;
} shared_call;

static void one_rank(void *argument, int32_t rank)
{
    shared_call *c = argument;
    gumbel_error *error = &c->error[rank];
    gumbel_group *group = NULL;
    gumbel_transport transport = thread_ranks_transport(c->place, rank);
    const gumbel_group_options options = {.struct_size = sizeof options,
                                          .first_token = c->cut->first[rank],
                                          .rows = c->cut->rows[rank],
                                          .timeout_ms = c->timeout_ms};
    int is_far = c->far_ranks >> rank & 1;
    const request *req = rank == 0 && c->odd ? c->odd : c->req;
    shard_outcome found = shards_outcome(req, c->wide);
    gumbel_device *device = is_far ? far_device_of(c->far_one) : c->cpu;
    c->status[rank] = gumbel_group_open(&transport, device, &options, &group, error);
    if (is_far && c->hangs)
        far_device_hang(c->far_one);
    for (int i = 0; i <= c->calls && c->status[rank] == GUMBEL_OK; i++)
        c->status[rank] =
            is_far ? far_draw(group, req, c->cut, rank, c->fused, c->spare, &found, error)
                   : shards_draw(group, req, c->cut, rank, c->fused, &found, error);
    if (c->expected && c->status[rank] != GUMBEL_OK)
        printf("rank %d: %s: %s\n", (int)rank, error->field, error->message);
    if (c->expected)
        c->wrong |= c->status[rank] != GUMBEL_OK || !shards_same(c->expected, &found, "ranks");
    else if (is_far)
        c->wrong |= !outcome_untouched(found.drawn);
    gumbel_group_close(group);
    shards_outcome_free(&found);
}

static void check(gumbel_device *cpu, const request *req, int32_t ranks, uint32_t far_ranks,
                  int aligned, int wide, uint64_t *random)
{
    int fused = req->product != NULL;
    shard_cut cut = shards_cut_tokens(&req->plan, ranks, aligned, random);
    shard_outcome expected = shards_outcome(req, wide);
    shared_call call = {.place = thread_ranks_make(ranks),
                        .req = req,
                        .cut = &cut,
                        .cpu = cpu,
                        .far_one = far_device_make(cpu),
                        .far_ranks = far_ranks,
                        .expected = &expected,
                        .fused = fused,
                        .wide = wide,
                        .calls = 1,
                        .timeout_ms = TIMEOUT};
    assert_int_equal(shards_draw_whole(cpu, req, fused, &expected), GUMBEL_OK);
    thread_ranks_run(ranks, one_rank, &call);
    if (call.wrong)
        fail_msg("%d ranks, far %x: %s", (int)ranks, far_ranks, request_describe(&req->plan));
    thread_ranks_free(call.place);
    far_device_free(call.far_one);
    shards_outcome_free(&expected);
}

/* Requests of every kind; half of the groups have all ranks far. */
static void every_request(void **state)
{
    gumbel_device *cpu = open_device(GUMBEL_ISA_AUTO, 1, 0);
    uint64_t random = 71;
    (void)state;
    for (int i = 0; i < how_many(160); i++) {
        request_plan plan = request_plan_at_random(i * 5 + 2, i % 3 == 0);
        int32_t ranks = 1 + (int32_t)random_below(&random, RANKS_MOST);
        plan.vocab = plan.vocab < 2 * ranks ? 2 * ranks : plan.vocab;
        plan.vocab_size = i % 4 == 1 ? plan.first_token + 1 + plan.vocab * 2 / 3 : plan.vocab_size;
        request *req = request_make(&plan, cpu);
        uint32_t far_ranks = i % 2 ? ~0u : 1 + random_below(&random, (1u << ranks) - 1);
        check(cpu, req, ranks, far_ranks, i % 3 != 1, 1, &random);
        request_free(req);
    }
    gumbel_close(cpu);
}

static void plain_draws(void **state)
{
    gumbel_device *cpu = open_device(GUMBEL_ISA_AUTO, 1, 0);
    uint64_t random = 72;
    (void)state;
    for (int i = 0; i < how_many(80); i++) {
        request_plan plan = request_plan_at_random(i * 7 + 4, i % 2);
        int32_t ranks = 2 + (int32_t)random_below(&random, RANKS_MOST - 1);
        plan.truncation = 0;
        plan.vocab = 2 * ranks + (int64_t)random_below(&random, 900);
        request *req = request_make(&plan, cpu);
        check(cpu, req, ranks, 1 + random_below(&random, (1u << ranks) - 1), i % 4 > 0, 0, &random);
        request_free(req);
    }
    gumbel_close(cpu);
}

/* Parameters by slots, rows that do not live, tokens that are given. */
static void slots_and_given_tokens(void **state)
{
    gumbel_device *cpu = open_device(GUMBEL_ISA_AUTO, 1, 0);
    uint64_t random = 73;
    (void)state;
    for (int i = 0; i < how_many(24); i++) {
        request_plan plan = request_plan_at_random(i * 3 + 1, i % 2);
        plan.given_noise = 0;
        plan.vocab += 10;
        plan.batch += i == 0 ? 300 : 1;
        request *req = request_make(&plan, cpu);
        int32_t *of_row = make_zeroed((size_t)plan.batch, sizeof *of_row);
        int32_t *given = make_zeroed((size_t)(plan.batch * plan.samples), sizeof *given);
        int32_t live = (int32_t)(plan.batch - i % 2);
        for (int64_t b = 0; b < plan.batch; b++)
            of_row[b] = (int32_t)(plan.batch - 1 - b);
        for (int64_t at = 0; at < plan.batch * plan.samples; at++)
            given[at] =
                (int32_t)(plan.first_token + (int64_t)random_below(&random, (uint32_t)plan.vocab));
        req->sampling.slots = (gumbel_slots){of_row, plan.batch};
        req->sampling.live_rows = &live;
        if (i % 3)
            req->sampling.given = (gumbel_row_i32){given, 0};
        check(cpu, req, 3, 1 + (uint32_t)i % 7, i % 2, 1, &random);
        free(of_row);
        free(given);
        request_free(req);
    }
    gumbel_close(cpu);
}

/* A call that comes to nothing. */
typedef struct failure {
    const char *field, *words; /* that every rank's error has; words NULL: any */
    void (*spoil)(request *odd);
    int hangs;
    int64_t spare;
} failure;

static void spoil_temperature(request *odd)
{
    static const float cold = -1;
    odd->sampling.temperature = (gumbel_row_f32){&cold, GUMBEL_SAME};
}

static void spoil_seed(request *odd)
{
    static const uint64_t other = 12345;
    odd->sampling.seed = (gumbel_row_u64){&other, GUMBEL_SAME};
}

static void spoil_top_k(request *odd)
{
    static const int32_t k = 3;
    odd->truncation =
        (gumbel_truncation){.struct_size = sizeof odd->truncation, .top_k = {&k, GUMBEL_SAME}};
    odd->sampling.truncation = &odd->truncation;
}

static void spoil_ids(request *odd)
{
    static const int64_t offsets[] = {0, -1, 0, 0};
    static const int32_t ids[] = {0};
    odd->transforms = (gumbel_transforms){.struct_size = sizeof odd->transforms,
                                          .banned = {.offsets = offsets, .ids = ids}};
    odd->sampling.transforms = &odd->transforms;
}

static void errors_have_a_name(void **state)
{
    static const failure failures[] = {
        {"sampling.temperature[0]", NULL, spoil_temperature, 0, 0},
        {"sampling.seed", "different", spoil_seed, 0, 0},
        {"sampling.truncation", "different", spoil_top_k, 0, 0},
        {"sampling.transforms.banned", NULL, spoil_ids, 0, 0},
        {"workspace_bytes", NULL, NULL, 0, -1},
        {"group", NULL, NULL, 1, 0},
    };
    gumbel_device *cpu = open_device(GUMBEL_ISA_AUTO, 1, 0);
    uint64_t random = 74;
    (void)state;
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        const failure *f = &failures[i];
        request_plan plan = {.batch = 3, .vocab = 700, .samples = 1, .usual = 1, .seed = 8};
        request *req = request_make(&plan, cpu);
        shard_cut cut = shards_cut_tokens(&plan, 3, 1, &random);
        request odd = *req;
        shared_call call = {.place = thread_ranks_make(3),
                            .req = req,
                            .odd = f->spoil ? &odd : NULL,
                            .cut = &cut,
                            .cpu = cpu,
                            .far_one = far_device_make(cpu),
                            .far_ranks = 1,
                            .hangs = f->hangs,
                            .spare = f->spare,
                            .timeout_ms = f->hangs ? SHORT_TIMEOUT : TIMEOUT};
        if (f->spoil)
            f->spoil(&odd);
        thread_ranks_run(3, one_rank, &call);
        assert_false(call.wrong);
        for (int r = 0; r < 3; r++) {
            assert_int_not_equal(call.status[r], GUMBEL_OK);
            assert_true(r == 0 || call.status[r] == GUMBEL_ERROR_GROUP);
            if (strcmp(call.error[r].field, f->field) != 0 ||
                (f->words && !strstr(call.error[r].message, f->words)))
                fail_msg("rank %d: %s: %s", r, call.error[r].field, call.error[r].message);
        }
        thread_ranks_free(call.place);
        far_device_free(call.far_one);
        request_free(req);
    }
    gumbel_close(cpu);
}

/* Mailboxes need a GPU on every rank. */
static void require_peers(void *argument, int32_t rank)
{
    shared_call *c = argument;
    gumbel_group *group = NULL;
    gumbel_transport transport = thread_ranks_transport(c->place, rank);
    const gumbel_group_options options = {.struct_size = sizeof options,
                                          .first_token = 64 * rank,
                                          .rows = 64,
                                          .timeout_ms = TIMEOUT,
                                          .peer_memory = GUMBEL_PEERS_REQUIRE};
    gumbel_device *device = rank ? c->cpu : far_device_of(c->far_one);
    c->status[rank] = gumbel_group_open(&transport, device, &options, &group, &c->error[rank]);
    gumbel_group_close(group);
}

static void mailboxes_are_refused_beside_a_cpu(void **state)
{
    gumbel_device *cpu = open_device(GUMBEL_ISA_AUTO, 1, 0);
    shared_call call = {.place = thread_ranks_make(2), .cpu = cpu, .far_one = far_device_make(cpu)};
    (void)state;
    thread_ranks_run(2, require_peers, &call);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(call.status[r], GUMBEL_ERROR_UNSUPPORTED);
        assert_string_equal(call.error[r].field, "options.peer_memory");
    }
    thread_ranks_free(call.place);
    far_device_free(call.far_one);
    gumbel_close(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_draws),
        cmocka_unit_test(every_request),
        cmocka_unit_test(slots_and_given_tokens),
        cmocka_unit_test(errors_have_a_name),
        cmocka_unit_test(mailboxes_are_refused_beside_a_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

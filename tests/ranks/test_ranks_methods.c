/* SPDX-License-Identifier: Apache-2.0
 *
 * The method that serves a call of a group, as gumbel_group_explain() reports it: on CPUs, and on a
 * stand-in for a GPU that reports workspace sizes and draws nothing. A group that cannot exchange
 * device memory is an error on every rank.
 */
#include "core/backend.h"
#include "thread_ranks.h"

#include <gumbel/dist.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2, VOCAB = 1024, TEXT_BYTES = 2048 };

/* ------------------------------------------------------------------- a stand-in for a GPU ---- */

static gumbel_status plan_call(const gumbel_device *device, const gumbel_problem *problem,
                               uint64_t purpose, gumbel_plan *plan, gumbel_error *error)
{
    (void)device, (void)problem, (void)purpose, (void)error;
    *plan = (gumbel_plan){.workspace_bytes = 64};
    return GUMBEL_OK;
}

static gumbel_status count_list(const gumbel_device *device, const gumbel_problem *rows,
                                size_t *bytes, gumbel_error *error)
{
    (void)device, (void)rows, (void)error;
    *bytes = 64;
    return GUMBEL_OK;
}

static gumbel_status make_collective(gumbel_device *device, gumbel_host_collective **here,
                                     gumbel_host_collective **there, gumbel_error *error)
{
    static _Thread_local gumbel_host_collective memory;
    (void)device, (void)error;
    memory = (gumbel_host_collective){0};
    *here = *there = &memory;
    return GUMBEL_OK;
}

static void free_collective(gumbel_device *device, gumbel_host_collective *here)
{
    (void)device, (void)here;
}

static const gumbel_rank_calls rank_calls = {.create_host_collective = make_collective,
                                             .free_host_collective = free_collective,
                                             .top64_size = count_list};
static const gumbel_backend gpu_table = {
    .supports = GUMBEL_FEATURE_END - 1, .plan = plan_call, .ranks = &rank_calls};
static gumbel_device gpu = {.backend = &gpu_table};

static int queue_nothing(void *context, void *stream, const void *send, void *receive, size_t bytes,
                         int64_t timeout_ms, char *why)
{
    (void)context, (void)stream, (void)send, (void)receive, (void)bytes, (void)timeout_ms;
    (void)why;
    return 1;
}

static int wait_for_nothing(void *context, void *stream, int64_t timeout_ms, char *why)
{
    (void)context, (void)stream, (void)timeout_ms, (void)why;
    return 0;
}

/* --------------------------------------------------------------------------- explanations ---- */

typedef struct group_case {
    const char *name;
    int on_gpu, collective; /* `collective`: the transport runs host collectives */
    int64_t batch, border;  /* `border`: the second rank's first token */
    int truncated, given, logprobs;
    const char *chosen, *refusal; /* lines of the explanation; `refusal` NULL: none */
} group_case;

typedef struct shared_case {
    const group_case *of;
    thread_ranks *place;
    gumbel_device *cpu;
    char text[RANKS][TEXT_BYTES];
} shared_case;

static void explain_on_rank(void *argument, int32_t rank)
{
    static const float logits[16 * VOCAB];
    static const int32_t k[1] = {20}, given[16];
    shared_case *shared = argument;
    const group_case *c = shared->of;
    char *text = shared->text[rank];
    int32_t tokens[16];
    float logprobs[16];
    gumbel_group *group = NULL;
    gumbel_error error = {"", ""};
    gumbel_transport transport = thread_ranks_transport(shared->place, rank);
    const int64_t first = rank ? c->border : 0, end = rank ? VOCAB : c->border;
    const gumbel_group_options options = {.struct_size = sizeof options,
                                          .first_token = first,
                                          .rows = end - first,
                                          .timeout_ms = 20000};
    const gumbel_logits of = {
        .struct_size = sizeof of,
        .logits = {logits, GUMBEL_FLOAT32, c->batch, end - first, VOCAB, {0, 0}},
        .first_token = first};
    const gumbel_truncation truncation = {.struct_size = sizeof truncation,
                                          .top_k = {k, GUMBEL_SAME}};
    const gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                      .num_samples = 1,
                                      .truncation = c->truncated ? &truncation : NULL,
                                      .given = {c->given ? given : NULL, 0}};
    const gumbel_output output = {
        .struct_size = sizeof output, .tokens = tokens, .logprobs = c->logprobs ? logprobs : NULL};
    if (c->on_gpu) {
        transport.stream_all_gather = queue_nothing;
        transport.wait = wait_for_nothing;
        transport.blocking_all_gather = c->collective ? queue_nothing : NULL;
    }
    gumbel_status status =
        gumbel_group_open(&transport, c->on_gpu ? &gpu : shared->cpu, &options, &group, &error);
    if (status == GUMBEL_OK)
        status =
            gumbel_group_explain(group, NULL, &of, &sampling, &output, text, TEXT_BYTES, &error);
    if (status != GUMBEL_OK)
        snprintf(text, TEXT_BYTES, "%s: %s", error.field, error.message);
    gumbel_group_close(group);
}

static void cheapest_method_is_chosen(void **state)
{
    static const group_case cases[] = {
        {"plain", 0, 0, 2, 512, 0, 0, 1, "ranks: plain: ", NULL},
        {"plain, a block split", 0, 0, 2, 500, 0, 0, 0, "ranks: plain: ", NULL},
        {"masses, a block split", 0, 0, 2, 500, 0, 0, 1,
         "ranks: candidates: ", "  not plain: a boundary between shards is not a multiple of 64"},
        {"top_k", 0, 0, 2, 512, 1, 0, 0,
         "ranks: candidates: ", "  not plain: does not support truncation, top_k"},
        {"given tokens", 0, 0, 2, 512, 0, 1, 0,
         "ranks: whole rows: ", "  not candidates: does not support given tokens"},
        {"GPU: plain", 1, 0, 2, 512, 0, 0, 0, "ranks: plain: ", NULL},
        {"GPU: top_k", 1, 1, 8, 512, 1, 0, 0, "ranks: top64: ", "  not plain: does not support "},
        {"GPU: a row", 1, 1, 1, 512, 1, 0, 0,
         "ranks: whole rows: ", "  not top64: fewer than 8 rows"},
        {"GPU: a short shard", 1, 1, 8, 32, 1, 0, 0,
         "ranks: whole rows: ", "  not top64: a shard has fewer than 64 tokens"},
        {"GPU: no side channel", 1, 0, 8, 512, 1, 0, 0, "ranks: whole rows: ",
         "  not top64: there is neither peer memory nor a transport with blocking_all_gather"},
    };
    shared_case shared = {.place = NULL};
    (void)state;
    assert_int_equal(gumbel_open(NULL, &shared.cpu, NULL), GUMBEL_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const group_case *c = shared.of = &cases[i];
        shared.place = thread_ranks_make(RANKS);
        thread_ranks_run(RANKS, explain_on_rank, &shared);
        thread_ranks_free(shared.place);
        for (int r = 0; r < RANKS; r++)
            if (strncmp(shared.text[r], c->chosen, strlen(c->chosen)) != 0 ||
                !strstr(shared.text[r], c->refusal ? c->refusal : "") ||
                (!c->refusal && strstr(shared.text[r], "  not ")) ||
                !strstr(shared.text[r], "\nworkspace: "))
                fail_msg("%s, rank %d:\n%s", c->name, r, shared.text[r]);
    }
    gumbel_close(shared.cpu);
}

/* ------------------------------------------------------------------------- refused groups ---- */

typedef struct shared_group {
    thread_ranks *place;
    gumbel_device *device[RANKS];
    gumbel_status status[RANKS];
    gumbel_error error[RANKS];
} shared_group;

static void open_on_rank(void *argument, int32_t rank)
{
    shared_group *c = argument;
    gumbel_group *group = NULL;
    gumbel_transport transport = thread_ranks_transport(c->place, rank);
    const gumbel_group_options options = {.struct_size = sizeof options,
                                          .first_token = rank * VOCAB,
                                          .rows = VOCAB,
                                          .timeout_ms = 20000};
    c->status[rank] =
        gumbel_group_open(&transport, c->device[rank], &options, &group, &c->error[rank]);
    gumbel_group_close(group);
}

static void check_refusal(gumbel_device *first, gumbel_device *second, const char *field,
                          const char *words)
{
    shared_group c = {.place = thread_ranks_make(RANKS), .device = {first, second}};
    thread_ranks_run(RANKS, open_on_rank, &c);
    thread_ranks_free(c.place);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(c.status[r], GUMBEL_ERROR_UNSUPPORTED);
        assert_string_equal(c.error[r].field, field);
        if (!strstr(c.error[r].message, words))
            fail_msg("rank %d: %s", r, c.error[r].message);
    }
}

static void groups_without_an_exchange_return_an_error(void **state)
{
    gumbel_device *cpu;
    (void)state;
    assert_int_equal(gumbel_open(NULL, &cpu, NULL), GUMBEL_OK);
    check_refusal(cpu, &gpu, "device", "1 of 2 ranks are on CPUs");
    check_refusal(&gpu, &gpu, "transport", "gumbel_nccl_transport()");
    gumbel_close(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cheapest_method_is_chosen),
        cmocka_unit_test(groups_without_an_exchange_return_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

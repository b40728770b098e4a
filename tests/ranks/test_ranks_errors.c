/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors of a group: ranks that pass different or invalid parameters, or make no call. Every rank
 * returns an error that names the field, in time. The group remains usable if all ranks know of the
 * error.
 */
#define _POSIX_C_SOURCE 200809L
#include "shards.h"
#include "thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { RANKS = 3, DEVIATING = 1, VOCAB = 300, BATCH = 4, WORKSPACE = 1 << 20 };

/* How the deviating rank's call differs from the others'. */
typedef struct fault {
    const char *field; /* named by the error of every rank */
    void (*apply)(gumbel_logits *logits, gumbel_sampling *sampling, gumbel_output *output);
} fault;

static const float warm[BATCH] = {1, 1, 2, 1};
static const uint64_t places[BATCH] = {7, 8, 9, 11};
static const uint64_t seeds[BATCH] = {1, 2, 3, 5};
static const int32_t given[BATCH] = {1, 2, 3, 4};
static const float cold = -1;
static gumbel_truncation other_truncation = {.struct_size = sizeof other_truncation,
                                             .ties = GUMBEL_TIES_EXACT};
static int32_t top_ids[RANKS][BATCH * 2];
static float req[RANKS][BATCH];

static void change_temperature(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)o;
    s->temperature = (gumbel_row_f32){warm, 0};
}

static void change_seed(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)o;
    s->seed = (gumbel_row_u64){seeds, 0};
}

static void change_position(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)o;
    s->position = (gumbel_row_u64){places, 0};
}

static void change_first_sample(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    static const uint32_t counters[BATCH] = {0, 0, 3, 0};
    (void)l, (void)o;
    s->first_sample = (gumbel_row_u32){counters, 0};
}

static void change_num_samples(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)o;
    s->num_samples = 2;
}

static void change_domain(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)o;
    s->domain = GUMBEL_DOMAIN_DRAFT;
}

static void drop_row(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)s, (void)o;
    l->logits.rows--;
}

static void drop_all_rows(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)s, (void)o;
    l->logits.rows = 0;
}

static void change_soft_cap(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)s, (void)o;
    l->soft_cap = 30;
}

static void change_vocab_size(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)s, (void)o;
    l->vocab_size = VOCAB - 1;
}

static void add_truncation(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    static const int32_t k = 5;
    (void)l, (void)o;
    other_truncation.top_k = (gumbel_row_i32){&k, GUMBEL_SAME};
    s->truncation = &other_truncation;
}

static void add_given_tokens(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)o;
    s->given = (gumbel_row_i32){given, 0};
}

static void add_top_ids(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)s;
    o->num_top = 2;
    o->top_ids = top_ids[DEVIATING];
}

/* Without these outputs the other ranks sum no masses. */
static void add_logprobs(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)s;
    o->logprobs = req[DEVIATING];
}

static void add_lse(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)s;
    o->lse = req[DEVIATING];
}

static void add_raw_kept_logprobs(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    static int32_t kept[BATCH];
    (void)l, (void)s;
    o->kept = kept;
    o->kept_capacity = 1;
    o->kept_ids = top_ids[DEVIATING];
    o->kept_logprobs = req[DEVIATING];
    o->logprobs_of = GUMBEL_RAW;
}

static void add_raw_entropy(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)s;
    o->entropy = req[DEVIATING];
    o->logprobs_of = GUMBEL_RAW;
}

static void set_negative_temperature(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)o;
    s->temperature = (gumbel_row_f32){&cold, GUMBEL_SAME};
}

static void add_token_ids(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    static const int32_t ids[1];
    (void)l, (void)o;
    s->token_ids = ids;
}

static void shift_first_token(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)s, (void)o;
    l->first_token++;
}

static void drop_tokens(gumbel_logits *l, gumbel_sampling *s, gumbel_output *o)
{
    (void)l, (void)s;
    o->tokens = NULL;
}

static const fault faults[] = {
    {"sampling.temperature", change_temperature},
    {"sampling.seed", change_seed},
    {"sampling.position", change_position},
    {"sampling.first_sample", change_first_sample},
    {"sampling.num_samples", change_num_samples},
    {"sampling.domain", change_domain},
    {"batch", drop_row},
    {"batch", drop_all_rows},
    {"head", change_soft_cap},
    {"vocab_size", change_vocab_size},
    {"sampling.truncation", add_truncation},
    {"sampling.given", add_given_tokens},
    {"output", add_top_ids},
    {"output", add_logprobs},
    {"output", add_lse},
    {"output", add_raw_kept_logprobs},
    {"output", add_raw_entropy},
    {"sampling.temperature[0]", set_negative_temperature},
    {"sampling.token_ids", add_token_ids},
    {"logits.first_token", shift_first_token},
    {"output.tokens", drop_tokens},
};
enum { FAULTS = sizeof faults / sizeof *faults };

/* The calls of all ranks, and their results. */
typedef struct scene {
    thread_ranks *place;
    gumbel_device *device[RANKS];
    gumbel_group *group[RANKS];
    const float *logits;       /* [BATCH, VOCAB] */
    unsigned char *workspaces; /* [RANKS, WORKSPACE] */
    const fault *deviation;    /* NULL: all ranks pass equal parameters */
    int absent;                /* the deviating rank makes no call */
    int64_t timeout_ms;
    int32_t tokens[RANKS][2 * BATCH]; /* the deviating rank may request two samples */
    gumbel_status status[RANKS];
    gumbel_error error[RANKS];
} scene;

static void open_rank(void *argument, int32_t r)
{
    scene *s = argument;
    gumbel_transport transport = thread_ranks_transport(s->place, r);
    const gumbel_group_options options = {.struct_size = sizeof options,
                                          .first_token = r * VOCAB / RANKS,
                                          .rows = VOCAB / RANKS,
                                          .timeout_ms = s->timeout_ms};
    s->status[r] =
        gumbel_group_open(&transport, s->device[r], &options, &s->group[r], &s->error[r]);
}

static void draw_rank(void *argument, int32_t r)
{
    scene *s = argument;
    static const float temperatures[BATCH] = {1, 1, 1, 1};
    static const uint64_t drawn_at[BATCH] = {7, 8, 9, 10}, drawn_by[BATCH] = {1, 2, 3, 4};
    gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                .temperature = {temperatures, 0},
                                .seed = {drawn_by, 0},
                                .position = {drawn_at, 0}};
    gumbel_output output = {.struct_size = sizeof output, .tokens = s->tokens[r]};
    gumbel_logits logits = {.struct_size = sizeof logits,
                            .logits = {.data = s->logits + r * VOCAB / RANKS,
                                       .dtype = GUMBEL_FLOAT32,
                                       .rows = BATCH,
                                       .cols = VOCAB / RANKS,
                                       .stride = VOCAB},
                            .first_token = r * VOCAB / RANKS};
    unsigned char *workspace = s->workspaces + (size_t)r * WORKSPACE;
    if (r == DEVIATING && s->absent)
        return;
    if (r == DEVIATING && s->deviation)
        s->deviation->apply(&logits, &sampling, &output);
    s->error[r] = (gumbel_error){"", ""};
    s->status[r] = gumbel_group_sample_logits(s->group[r], NULL, &logits, &sampling, &output,
                                              workspace, WORKSPACE, &s->error[r]);
}

static void begin_scene(scene *s, int64_t timeout_ms)
{
    uint64_t random = 5;
    float *logits = make_zeroed(BATCH * VOCAB, sizeof *logits);
    for (int i = 0; i < BATCH * VOCAB; i++)
        logits[i] = 2 * random_normal(&random);
    *s = (scene){.place = thread_ranks_make(RANKS), .logits = logits, .timeout_ms = timeout_ms};
    s->workspaces = poisoned_workspace((size_t)RANKS * WORKSPACE);
    for (int r = 0; r < RANKS; r++)
        s->device[r] = open_device(GUMBEL_ISA_AUTO, 1, 0);
    thread_ranks_run(RANKS, open_rank, s);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(s->status[r], GUMBEL_OK);
}

static void end_scene(scene *s)
{
    for (int r = 0; r < RANKS; r++) {
        gumbel_group_close(s->group[r]);
        gumbel_close(s->device[r]);
    }
    thread_ranks_free(s->place);
    free((void *)(uintptr_t)s->logits);
    free(s->workspaces);
}

static void assert_all_agree(scene *s)
{
    s->deviation = NULL;
    s->absent = 0;
    thread_ranks_run(RANKS, draw_rank, s);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(s->status[r], GUMBEL_OK);
        assert_memory_equal(s->tokens[r], s->tokens[0], sizeof s->tokens[0]);
    }
}

/* Every rank's error names the field, and the next call succeeds. */
static void different_parameters_are_named_on_all_ranks(void **state)
{
    scene s;
    int32_t expected[BATCH];
    (void)state;
    begin_scene(&s, 20000);
    assert_all_agree(&s);
    memcpy(expected, s.tokens[0], sizeof expected);
    for (int i = 0; i < FAULTS; i++) {
        s.deviation = &faults[i];
        thread_ranks_run(RANKS, draw_rank, &s);
        for (int r = 0; r < RANKS; r++) {
            if (strcmp(s.error[r].field, faults[i].field) != 0)
                fail_msg("fault %d, rank %d: %s: %s, not %s", i, r, s.error[r].field,
                         s.error[r].message, faults[i].field);
            assert_int_not_equal(s.status[r], GUMBEL_OK);
            assert_true(r == DEVIATING || s.status[r] == GUMBEL_ERROR_GROUP);
        }
        assert_all_agree(&s);
        assert_memory_equal(s.tokens[0], expected, sizeof expected);
    }
    end_scene(&s);
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* If a rank makes no call, the others return an error within the time-out, also at later calls. */
static void absent_rank_is_an_error_in_time(void **state)
{
    enum { TIMEOUT = 200 };
    scene s;
    (void)state;
    begin_scene(&s, TIMEOUT);
    assert_all_agree(&s);
    s.absent = 1;
    for (int call = 0; call < 2; call++) {
        int64_t start = now_ms();
        thread_ranks_run(RANKS, draw_rank, &s);
        assert_true(now_ms() - start < 50 * TIMEOUT);
        assert_true(call == 0 || now_ms() - start < TIMEOUT);
        for (int r = 0; r < RANKS; r++)
            if (r != DEVIATING) {
                assert_int_equal(s.status[r], GUMBEL_ERROR_GROUP);
                assert_string_equal(s.error[r].field, "group");
            }
    }
    end_scene(&s);
}

/* Two groups of the same ranks, whose calls alternate on each rank; some ranks are late. */
typedef struct pair {
    scene *scenes[2];
    int turns;
} pair;

static void draw_in_turns(void *argument, int32_t r)
{
    pair *p = argument;
    const struct timespec late = {0, 1000000 * (RANKS - r)};
    for (int turn = 0; turn < p->turns; turn++) {
        if (turn % RANKS == r)
            nanosleep(&late, NULL);
        draw_rank(p->scenes[turn % 2], r);
        if (p->scenes[turn % 2]->status[r] != GUMBEL_OK)
            return;
    }
}

/* Runs one group of the pair on threads of its own, so that both run at once. */
static void draw_both(void *argument, int32_t which)
{
    pair *p = argument;
    for (int turn = 0; turn < p->turns; turn++)
        thread_ranks_run(RANKS, draw_rank, p->scenes[which]);
}

static void two_groups_draw_concurrently(void **state)
{
    scene one, other;
    int32_t expected[BATCH];
    (void)state;
    begin_scene(&one, 20000);
    begin_scene(&other, 20000);
    assert_all_agree(&one);
    memcpy(expected, one.tokens[0], sizeof expected);
    pair p = {.scenes = {&one, &other}, .turns = 20};
    for (int way = 0; way < 2; way++) {
        for (int r = 0; r < RANKS; r++) {
            memset(one.tokens[r], 0x5A, sizeof expected);
            memset(other.tokens[r], 0x5A, sizeof expected);
        }
        thread_ranks_run(way == 0 ? RANKS : 2, way == 0 ? draw_in_turns : draw_both, &p);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(one.status[r], GUMBEL_OK);
            assert_int_equal(other.status[r], GUMBEL_OK);
            assert_memory_equal(one.tokens[r], expected, sizeof expected);
            assert_memory_equal(other.tokens[r], expected, sizeof expected);
        }
    }
    end_scene(&one);
    end_scene(&other);
}

/* Options with which ranks open a group. */
typedef struct opening {
    thread_ranks *place;
    gumbel_device *device;
    gumbel_group_options options[RANKS];
    gumbel_status status[RANKS];
    gumbel_error error[RANKS];
} opening;

static void try_open(void *argument, int32_t r)
{
    opening *o = argument;
    gumbel_group *group;
    gumbel_transport transport = thread_ranks_transport(o->place, r);
    o->status[r] = gumbel_group_open(&transport, o->device, &o->options[r], &group, &o->error[r]);
    if (o->status[r] == GUMBEL_OK)
        gumbel_group_close(group);
}

static void shards_must_cover_the_vocabulary(void **state)
{
    static const struct {
        int64_t first[RANKS], rows[RANKS];
        size_t frame;
        const char *field; /* NULL: no error */
    } tries[] = {
        {{0, 10, 20}, {10, 10, 5}, 0, NULL},
        {{20, 0, 10}, {5, 10, 10}, 0, NULL},
        {{7, 7, 7}, {0, 0, 3}, 0, NULL},
        {{0, 10, 21}, {10, 10, 5}, 0, "options.first_token"}, /* a gap */
        {{0, 9, 20}, {10, 11, 5}, 0, "options.first_token"},  /* an overlap */
        {{0, 0, 0}, {0, 0, 0}, 0, "options.rows"},
        {{0, 10, 20}, {10, 10, 5}, 300, "options.frame_bytes"},
        {{0, 10, 20}, {10, -1, 5}, 0, "group"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        opening o = {.place = thread_ranks_make(RANKS), .device = open_device(0, 1, 0)};
        for (int r = 0; r < RANKS; r++)
            o.options[r] = (gumbel_group_options){.struct_size = sizeof o.options[r],
                                                  .first_token = tries[i].first[r],
                                                  .rows = tries[i].rows[r],
                                                  .frame_bytes = r == 1 ? tries[i].frame : 0,
                                                  .timeout_ms = 20000};
        thread_ranks_run(RANKS, try_open, &o);
        for (int r = 0; r < RANKS; r++) {
            assert_true((o.status[r] == GUMBEL_OK) == (tries[i].field == NULL));
            if (tries[i].field && tries[i].rows[r] >= 0)
                assert_string_equal(o.error[r].field, tries[i].field);
        }
        gumbel_close(o.device);
        thread_ranks_free(o.place);
    }
}

/* The all-gather of a group of one. */
static int gather_alone(void *context, void *stream, const void *send, void *receive, size_t bytes,
                        int64_t timeout_ms, char *why)
{
    (void)context, (void)stream, (void)timeout_ms, (void)why;
    memcpy(receive, send, bytes);
    return 0;
}

static void invalid_group_options_are_named(void **state)
{
    scene s;
    gumbel_group *group;
    gumbel_error error;
    gumbel_traffic traffic = {0};
    (void)state;
    begin_scene(&s, 20000);
    gumbel_transport t = thread_ranks_transport(s.place, 0);
    const gumbel_group_options options = {.struct_size = sizeof options, .rows = 5};
    assert_int_equal(gumbel_group_open(NULL, s.device[0], &options, &group, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "transport");
    t.rank = t.ranks;
    assert_int_equal(gumbel_group_open(&t, s.device[0], &options, &group, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "transport.rank");
    t.rank = 0;
    t.all_gather = NULL;
    assert_int_equal(gumbel_group_open(&t, s.device[0], &options, &group, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "transport.all_gather");
    t = thread_ranks_transport(s.place, 0);
    t.ranks = 1;
    gumbel_group_options deviation = options;
    deviation.reserved = 1;
    t.all_gather = gather_alone;
    assert_int_equal(gumbel_group_open(&t, s.device[0], &deviation, &group, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "options.reserved");
    assert_int_equal(gumbel_group_traffic(s.group[0], &traffic), GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(gumbel_group_traffic(NULL, &traffic), GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(gumbel_group_has_peer_memory(NULL), 0);
    assert_int_equal(gumbel_group_has_peer_memory(s.group[0]), 0);
    assert_int_equal(gumbel_group_sample(NULL, NULL, NULL, NULL, NULL, NULL, 0, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "group");
    gumbel_group_close(NULL);
    end_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(different_parameters_are_named_on_all_ranks),
        cmocka_unit_test(absent_rank_is_an_error_in_time),
        cmocka_unit_test(two_groups_draw_concurrently),
        cmocka_unit_test(shards_must_cover_the_vocabulary),
        cmocka_unit_test(invalid_group_options_are_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

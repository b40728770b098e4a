/* SPDX-License-Identifier: Apache-2.0
 *
 * Options with which ranks open a group: shards that cover the vocabulary, and an error for each
 * invalid option.
 */
#include "rank_calls.h"
#include "thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Options with which ranks open a group. */
typedef struct opening {
    thread_ranks *place;
    gumbel_device *device;
    gumbel_group_options options[CALLS_RANKS];
    gumbel_status status[CALLS_RANKS];
    gumbel_error error[CALLS_RANKS];
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
        int64_t first[CALLS_RANKS], rows[CALLS_RANKS];
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
        opening o = {.place = thread_ranks_make(CALLS_RANKS), .device = open_device(0, 1, 0)};
        for (int r = 0; r < CALLS_RANKS; r++)
            o.options[r] = (gumbel_group_options){.struct_size = sizeof o.options[r],
                                                  .first_token = tries[i].first[r],
                                                  .rows = tries[i].rows[r],
                                                  .frame_bytes = r == 1 ? tries[i].frame : 0,
                                                  .timeout_ms = 20000};
        thread_ranks_run(CALLS_RANKS, try_open, &o);
        for (int r = 0; r < CALLS_RANKS; r++) {
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
    rank_calls s;
    gumbel_group *group;
    gumbel_error error;
    gumbel_traffic traffic = {0};
    (void)state;
    rank_calls_open(&s, 20000);
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
    rank_calls_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_must_cover_the_vocabulary),
        cmocka_unit_test(invalid_group_options_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

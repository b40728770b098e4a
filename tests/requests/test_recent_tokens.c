/* SPDX-License-Identifier: Apache-2.0
 *
 * Rings of recent tokens: thousands of appends against the whole text, with the counts of windows
 * recounted; llama.cpp's published cases of penalties over a window; errors.
 */
#include "inputs.h"
#include "requests.h"
#include <gumbel/recent.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixtures.h"

enum { SLOTS = 6, VOCAB = 70, WORDS = (VOCAB + 31) / 32, CAPACITY_MAX = 40, TEXT_MAX = 4000 };

/* Rings with a window, and all tokens that were appended to each slot. */
typedef struct ring_log {
    gumbel_recent recent;
    gumbel_history history;
    int32_t window[SLOTS];
    int32_t tokens[SLOTS * CAPACITY_MAX];
    uint64_t count[SLOTS];
    uint32_t prompt[SLOTS * WORDS], output[SLOTS * WORDS];
    int32_t counts[SLOTS * VOCAB]; /* or 16-bit counts */
    int32_t text[SLOTS][TEXT_MAX];
    int64_t length[SLOTS];
} ring_log;

static ring_log *make_log(uint64_t *random)
{
    ring_log *log = make_zeroed(1, sizeof *log);
    memset(log->tokens, 0x5a, sizeof log->tokens);
    memset(log->count, 0x5a, sizeof log->count);
    memset(log->prompt, 0x5a, sizeof log->prompt);
    memset(log->output, 0x5a, sizeof log->output);
    memset(log->counts, 0x5a, sizeof log->counts);
    log->history = (gumbel_history){.struct_size = sizeof log->history,
                                    .vocab_size = VOCAB,
                                    .prompt = log->prompt,
                                    .output = log->output,
                                    .counts = log->counts};
    log->history.count_bits = random_below(random, 2) ? 16 : 32;
    log->recent = (gumbel_recent){.struct_size = sizeof log->recent,
                                  .tokens = log->tokens,
                                  .count = log->count,
                                  .history = &log->history};
    log->recent.capacity = 1 + random_below(random, CAPACITY_MAX);
    if (random_below(random, 4))
        log->recent.window.data = log->window;
    for (int s = 0; s < SLOTS; s++) {
        log->window[s] = (int32_t)random_below(random, (uint32_t)log->recent.capacity + 1);
        if (!log->recent.window.data)
            log->window[s] = log->recent.capacity < 64 ? (int32_t)log->recent.capacity : 64;
    }
    return log;
}

static int64_t count_of(const ring_log *log, int64_t slot, int64_t token)
{
    const int64_t at = slot * VOCAB + token;
    return log->history.count_bits == 16 ? ((const uint16_t *)(const void *)log->counts)[at]
                                         : log->counts[at];
}

static void assert_slot(const ring_log *log, int64_t slot)
{
    const int64_t length = log->length[slot], capacity = log->recent.capacity;
    int64_t recount[VOCAB] = {0};
    assert_int_equal(log->count[slot], length);
    for (int64_t i = length < capacity ? 0 : length - capacity; i < length; i++)
        assert_int_equal(log->tokens[slot * capacity + i % capacity], log->text[slot][i]);
    for (int64_t i = length < log->window[slot] ? 0 : length - log->window[slot]; i < length; i++)
        if (log->text[slot][i] < VOCAB)
            recount[log->text[slot][i]]++;
    for (int64_t token = 0; token < VOCAB; token++) {
        const uint32_t bit = log->output[slot * WORDS + token / 32] >> token % 32 & 1;
        assert_int_equal(count_of(log, slot, token), recount[token]);
        assert_int_equal(bit, recount[token] > 0);
    }
    for (int64_t word = 0; word < WORDS; word++)
        assert_int_equal(log->prompt[slot * WORDS + word], 0);
}

static void remember(ring_log *log, int64_t slot, int32_t token)
{
    if (token >= 0)
        log->text[slot][log->length[slot]++] = token;
}

/* Some of the slots, each at most once. */
static int64_t choose_slots(uint64_t *random, int32_t of_row[SLOTS])
{
    int64_t batch = 0;
    for (int32_t s = SLOTS - 1; s >= 0; s--)
        if (random_below(random, 2))
            of_row[batch++] = s;
    return batch;
}

static void start_rows(gumbel_device *device, ring_log *log, const int32_t *of_row, int64_t batch,
                       uint64_t *random)
{
    int64_t offsets[2][SLOTS + 1] = {{0}, {0}};
    int32_t ids[2][SLOTS * 60];
    const gumbel_slots slots = {of_row, SLOTS};
    for (int64_t b = 0; b < batch; b++) {
        log->length[of_row[b]] = 0;
        for (int k = 0; k < 2; k++) {
            offsets[k][b + 1] = offsets[k][b] + random_below(random, 60);
            for (int64_t i = offsets[k][b]; i < offsets[k][b + 1]; i++) {
                ids[k][i] = (int32_t)random_below(random, VOCAB + 3);
                remember(log, of_row[b], ids[k][i]);
            }
        }
    }
    const gumbel_token_lists prompts = {.offsets = offsets[0], .ids = ids[0]},
                             outputs = {.offsets = offsets[1], .ids = ids[1]};
    assert_int_equal(
        gumbel_recent_start(device, NULL, &log->recent, batch, &slots, &prompts, &outputs, NULL),
        GUMBEL_OK);
}

static void append_rows(gumbel_device *device, ring_log *log, const int32_t *of_row, int64_t batch,
                        uint64_t *random)
{
    enum { WIDTH = 5 };
    int32_t tokens[SLOTS * WIDTH], counts[SLOTS];
    const int one_each = random_below(random, 2) == 0;
    const gumbel_slots slots = {of_row, SLOTS};
    for (int64_t b = 0; b < batch; b++) {
        counts[b] = one_each ? 1 : (int32_t)random_below(random, WIDTH + 1);
        for (int i = 0; i < WIDTH; i++) {
            tokens[b * WIDTH + i] = (int32_t)random_below(random, VOCAB / 4) - 2;
            if (random_below(random, 9) == 0)
                tokens[b * WIDTH + i] = (int32_t)random_below(random, VOCAB + 2);
            if (i < counts[b])
                remember(log, of_row[b], tokens[b * WIDTH + i]);
        }
    }
    assert_int_equal(gumbel_recent_append(device, NULL, &log->recent, batch, &slots, tokens, WIDTH,
                                          one_each ? NULL : counts, NULL),
                     GUMBEL_OK);
}

static void appends_by_recount(void **state)
{
    uint64_t random = 77;
    for (int round = 0; round < 40; round++) {
        ring_log *log = make_log(&random);
        int32_t of_row[SLOTS] = {0, 1, 2, 3, 4, 5};
        start_rows(*state, log, of_row, SLOTS, &random);
        for (int step = 0; step < 300; step++) {
            const int64_t batch = choose_slots(&random, of_row);
            if (step % 50 == 49)
                start_rows(*state, log, of_row, batch, &random);
            else
                append_rows(*state, log, of_row, batch, &random);
            for (int64_t slot = 0; slot < SLOTS && step % 5 == 0; slot++)
                assert_slot(log, slot);
        }
        for (int64_t slot = 0; slot < SLOTS; slot++)
            assert_slot(log, slot);
        free(log);
    }
}

/* The cases of llama.cpp's tests/test-sampling.cpp (commit 07e4038f): five equal tokens. */
static void published_cases_of_penalties(void **state)
{
    static const struct {
        int32_t last[5];
        int count;
        float r, f, p;
        double expected[5];
    } cases[] = {
        {{0}, 1, 50, 0, 0, {0, .25, .25, .25, .25}},
        {{0, 1, 2}, 3, 50, 0, 0, {0, 0, 0, .5, .5}},
        {{0, 1, 2, 0, 0}, 5, 50, 0, 0, {0, 0, 0, .5, .5}},
        {{0}, 1, 1, 5, 5, {.000011, .249997, .249997, .249997, .249997}},
        {{0, 1, 2}, 3, 1, 5, 5, {.000023, .000023, .000023, .499966, .499966}},
        {{0, 1, 2, 0, 0}, 5, 1, 5, 5, {0, .000023, .000023, .499977, .499977}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float logits[5], found[5];
        uint32_t prompt, output;
        uint16_t counts[5];
        int32_t ring[7];
        uint64_t count;
        /* Older tokens, which have left the window. */
        const int32_t older[] = {3, 4, 3, 1, 3};
        const int64_t offsets[] = {0, 5};
        const int32_t window = cases[i].count;
        const gumbel_token_lists prompts = {.offsets = offsets, .ids = older};
        gumbel_history h = {.struct_size = sizeof h,
                            .vocab_size = 5,
                            .prompt = &prompt,
                            .output = &output,
                            .counts = counts};
        gumbel_recent recent = {.struct_size = sizeof recent,
                                .capacity = 7,
                                .tokens = ring,
                                .count = &count,
                                .history = &h,
                                .window = {&window, 0}};
        assert_int_equal(gumbel_recent_start(*state, NULL, &recent, 1, NULL, &prompts, NULL, NULL),
                         GUMBEL_OK);
        assert_int_equal(
            gumbel_recent_append(*state, NULL, &recent, 1, NULL, cases[i].last, 5, &window, NULL),
            GUMBEL_OK);
        for (int t = 0; t < 5; t++)
            logits[t] = logf(0.2f);
        gumbel_transforms t = {.struct_size = sizeof t, .history = &h};
        t.repetition = (gumbel_row_f32){&cases[i].r, 0};
        t.frequency = (gumbel_row_f32){&cases[i].f, 0};
        t.presence = (gumbel_row_f32){&cases[i].p, 0};
        const gumbel_sampling sampling = {.struct_size = sizeof sampling, .transforms = &t};
        const gumbel_logits input = {.struct_size = sizeof input,
                                     .logits = tensor_of(logits, GUMBEL_FLOAT32, 1, 5, 0)};
        double mass = 0;
        assert_int_equal(request_process(*state, &input, &sampling, found), GUMBEL_OK);
        for (int k = 0; k < 5; k++)
            mass += exp((double)found[k]);
        for (int k = 0; k < 5; k++)
            assert_true(fabs(exp((double)found[k]) / mass - cases[i].expected[k]) < 1e-5);
    }
}

/* ----------------------------------------------------------------------------- arguments ---- */

static void assert_refused(gumbel_device *device, const gumbel_recent *recent, const char *field)
{
    const int32_t token = 1;
    gumbel_error error = {"", ""};
    assert_int_equal(gumbel_recent_start(device, NULL, recent, 2, NULL, NULL, NULL, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, field);
    error.field[0] = 0;
    assert_int_equal(gumbel_recent_append(device, NULL, recent, 2, NULL, &token, 0, NULL, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, field);
}

static void wrong_arguments(void **state)
{
    uint64_t random = 1;
    ring_log *log = make_log(&random);
    const int32_t negative[SLOTS] = {0, -1}, wide[SLOTS] = {(int32_t)log->recent.capacity + 1};
    gumbel_history other = log->history;
    gumbel_recent r = log->recent;
    log->window[0] = 0;
    assert_refused(*state, NULL, "recent");
    r.capacity = 0;
    assert_refused(*state, &r, "recent.capacity");
    r.capacity = INT64_MAX;
    assert_refused(*state, &r, "recent.capacity");
    r = log->recent, r.tokens = NULL;
    assert_refused(*state, &r, "recent.tokens");
    r = log->recent, r.tokens = (int32_t *)((char *)r.tokens + 2);
    assert_refused(*state, &r, "recent.tokens");
    r = log->recent, r.count = NULL;
    assert_refused(*state, &r, "recent.count");
    r = log->recent, r.struct_size = 7;
    assert_refused(*state, &r, "recent");
    r = log->recent, r.window = (gumbel_row_i32){negative, 0};
    assert_refused(*state, &r, "recent.window[1]");
    r = log->recent, r.window = (gumbel_row_i32){wide, GUMBEL_SAME};
    assert_refused(*state, &r, "recent.window[0]");
    r = log->recent, r.window = (gumbel_row_i32){wide, -3};
    assert_refused(*state, &r, "recent.window.stride");
    r = log->recent, r.window = (gumbel_row_i32){wide, 0}, r.history = NULL;
    assert_refused(*state, &r, "recent.window");
    r = log->recent, r.history = &other, other.counts = NULL;
    assert_refused(*state, &r, "recent.history.counts");
    other = log->history, other.vocab_size = 0;
    assert_refused(*state, &r, "recent.history.vocab_size");
    free(log);
}

static void wrong_tokens(void **state)
{
    uint64_t random = 1;
    ring_log *log = make_log(&random);
    const int32_t tokens[4] = {1, 2, 3, 4}, counts[2] = {1, 3}, minus[2] = {-1, 1};
    const int32_t of_row[2] = {1, SLOTS}, id = -1;
    const int64_t offsets[3] = {0, 1, 1};
    const gumbel_slots slots = {of_row, SLOTS};
    const gumbel_token_lists lists = {.offsets = offsets, .ids = &id};
    gumbel_error error;
    const struct {
        const int32_t *tokens, *counts;
        int64_t stride;
        const char *field;
    } appends[] = {{NULL, NULL, 1, "tokens"},
                   {(const int32_t *)((const char *)tokens + 1), NULL, 1, "tokens"},
                   {tokens, NULL, -1, "token_stride"},
                   {tokens, NULL, INT64_MAX, "token_stride"},
                   {tokens, counts, 2, "counts"},
                   {tokens, minus, 2, "counts"}};
    memset(log->window, 0, sizeof log->window);
    for (size_t i = 0; i < sizeof appends / sizeof *appends; i++) {
        assert_int_equal(gumbel_recent_append(*state, NULL, &log->recent, 2, NULL,
                                              appends[i].tokens, appends[i].stride,
                                              appends[i].counts, &error),
                         GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, appends[i].field);
    }
    assert_int_equal(gumbel_recent_start(*state, NULL, &log->recent, 2, &slots, NULL, NULL, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "slots");
    assert_int_equal(gumbel_recent_start(*state, NULL, &log->recent, 2, NULL, &lists, NULL, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "prompts");
    assert_int_equal(gumbel_recent_start(*state, NULL, &log->recent, 2, NULL, NULL, &lists, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "outputs");
    assert_int_equal(
        gumbel_recent_append(*state, NULL, &log->recent, -1, NULL, tokens, 1, NULL, &error),
        GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "batch");
    assert_int_equal(
        gumbel_recent_append(*state, log, &log->recent, 1, NULL, tokens, 1, NULL, &error),
        GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "stream");
    assert_int_equal(
        gumbel_recent_append(*state, NULL, &log->recent, 0, NULL, NULL, 1, NULL, &error),
        GUMBEL_OK);
    free(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends_by_recount),
        cmocka_unit_test(published_cases_of_penalties),
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(wrong_tokens),
    };
    return cmocka_run_group_tests(tests, open_two_threads, close_device);
}

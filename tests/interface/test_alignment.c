/* SPDX-License-Identifier: Apache-2.0
 *
 * Every call returns an error that names the field if a pointer is not aligned to its element type,
 * and writes no output.
 */
#include "fixtures.h"
#include "inputs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { B = 2, V = 40, D = 8, TOP = 3, RING = 4 };

/* All functions of the library that take arrays. */
typedef enum call_name {
    SAMPLE = 1 << 0,
    SAMPLE_LOGITS = 1 << 1,
    PROCESS = 1 << 2,
    SOFTMAX = 1 << 3,
    PARTIAL = 1 << 4,
    PARTIAL_LOGITS = 1 << 5,
    PREPARE_NOISE = 1 << 6,
    ADVANCE = 1 << 7,
    HISTORY_START = 1 << 8,
    HISTORY_UPDATE = 1 << 9,
    FINISH = 1 << 10,
    NOISE = 1 << 11,
    CALLS = 12,
    DRAWS = SAMPLE | SAMPLE_LOGITS,
    REQUESTS = DRAWS | PROCESS | SOFTMAX,
    TRANSFORMED = REQUESTS | PARTIAL | PARTIAL_LOGITS,
    SAMPLED = TRANSFORMED | PREPARE_NOISE,
} call_name;

/* The arguments of all calls. Each pointer is valid at first. */
typedef struct arguments {
    gumbel_head head;
    gumbel_logits logits;
    gumbel_sampling sampling;
    gumbel_transforms transforms;
    gumbel_truncation truncation;
    gumbel_output output, finished;
    gumbel_step step;
    gumbel_history history;
    gumbel_token_lists prompts, outputs;
    gumbel_summary *summaries, *found;
    float *processed, *noise, *out;
    const int32_t *tokens;
} arguments;

typedef struct pointer_field {
    const char *field;
    size_t at, size; /* of the pointer in `arguments`; of its elements */
    int calls;
} pointer_field;

#define AT(member, field, calls)                                                                   \
    {                                                                                              \
        field, offsetof(arguments, member), sizeof *((arguments *)NULL)->member, calls             \
    }

static const pointer_field pointer_fields[] = {
    AT(sampling.temperature.data, "sampling.temperature", SAMPLED),
    AT(sampling.seed.data, "sampling.seed", SAMPLED),
    AT(sampling.position.data, "sampling.position", SAMPLED),
    AT(sampling.first_sample.data, "sampling.first_sample", SAMPLED),
    AT(sampling.slots.of_row, "sampling.slots", SAMPLED),
    AT(sampling.live_rows, "sampling.live_rows", SAMPLED),
    AT(sampling.noise, "sampling.noise", TRANSFORMED),
    AT(sampling.token_ids, "sampling.token_ids", SAMPLED),
    AT(transforms.allowed.offsets, "sampling.transforms.allowed", TRANSFORMED),
    AT(transforms.allowed.ids, "sampling.transforms.allowed", TRANSFORMED),
    AT(transforms.mask.data, "sampling.transforms.mask", TRANSFORMED),
    AT(transforms.banned.offsets, "sampling.transforms.banned", TRANSFORMED),
    AT(transforms.banned.ids, "sampling.transforms.banned", TRANSFORMED),
    AT(transforms.bias.offsets, "sampling.transforms.bias", TRANSFORMED),
    AT(transforms.bias.ids, "sampling.transforms.bias", TRANSFORMED),
    AT(transforms.bias.values, "sampling.transforms.bias", TRANSFORMED),
    AT(transforms.late_bias.offsets, "sampling.transforms.late_bias", TRANSFORMED),
    AT(transforms.late_bias.ids, "sampling.transforms.late_bias", TRANSFORMED),
    AT(transforms.late_bias.values, "sampling.transforms.late_bias", TRANSFORMED),
    AT(transforms.list_status, "sampling.transforms.list_status", TRANSFORMED),
    AT(transforms.repetition.data, "sampling.transforms.repetition", TRANSFORMED),
    AT(transforms.frequency.data, "sampling.transforms.frequency", TRANSFORMED),
    AT(transforms.presence.data, "sampling.transforms.presence", TRANSFORMED),
    AT(transforms.prompt_tokens.offsets, "sampling.transforms.prompt_tokens", TRANSFORMED),
    AT(transforms.prompt_tokens.ids, "sampling.transforms.prompt_tokens", TRANSFORMED),
    AT(transforms.output_tokens.offsets, "sampling.transforms.output_tokens", TRANSFORMED),
    AT(transforms.output_tokens.ids, "sampling.transforms.output_tokens", TRANSFORMED),
    AT(truncation.min_p.data, "sampling.truncation.min_p", REQUESTS),
    AT(truncation.top_k.data, "sampling.truncation.top_k", REQUESTS),
    AT(truncation.top_p.data, "sampling.truncation.top_p", REQUESTS),
    AT(output.tokens, "output.tokens", DRAWS),
    AT(output.logprobs, "output.logprobs", DRAWS),
    AT(output.scores, "output.scores", DRAWS),
    AT(output.lse, "output.lse", DRAWS),
    AT(output.status, "output.status", DRAWS),
    AT(output.ranks, "output.ranks", DRAWS),
    AT(output.kept, "output.kept", DRAWS),
    AT(output.top_ids, "output.top_ids", DRAWS),
    AT(output.top_logprobs, "output.top_logprobs", DRAWS),
    AT(output.top_logits, "output.top_logits", DRAWS),
    AT(finished.tokens, "output.tokens", FINISH),
    AT(finished.logprobs, "output.logprobs", FINISH),
    AT(finished.scores, "output.scores", FINISH),
    AT(finished.lse, "output.lse", FINISH),
    AT(finished.status, "output.status", FINISH),
    AT(found, "summaries", FINISH),
    AT(summaries, "summaries", PARTIAL | PARTIAL_LOGITS),
    AT(processed, "processed", PROCESS),
    AT(processed, "probabilities", SOFTMAX),
    AT(step.tokens, "step.tokens", ADVANCE),
    AT(step.position, "step.position", ADVANCE),
    AT(step.slots.of_row, "step.slots", ADVANCE),
    AT(step.live_rows, "step.live_rows", ADVANCE),
    AT(step.ring, "step.ring", ADVANCE),
    AT(history.prompt, "history.prompt", HISTORY_START | HISTORY_UPDATE),
    AT(history.output, "history.output", HISTORY_START | HISTORY_UPDATE),
    {"history.counts", offsetof(arguments, history.counts), sizeof(uint16_t),
     HISTORY_START | HISTORY_UPDATE},
    AT(prompts.offsets, "prompts", HISTORY_START),
    AT(prompts.ids, "prompts", HISTORY_START),
    AT(outputs.offsets, "outputs", HISTORY_START),
    AT(outputs.ids, "outputs", HISTORY_START),
    AT(tokens, "tokens", HISTORY_UPDATE),
    AT(noise, "noise", PREPARE_NOISE),
    AT(out, "out", NOISE),
};

/* ------------------------------------------------------------------------- valid arguments ---- */

/* Memory that arguments point at: zeros, which are valid for all fields except those that use
 * `ones`. */
enum { ROOM = 1 << 14 };
static _Alignas(64) unsigned char inputs[ROOM], outputs[32][1024];
static _Alignas(64) unsigned char workspace[1 << 22];
static const float ones[B + 1] = {1, 1, 1};
static const int32_t own_slots[B] = {1, 0}, all_rows = B;

static void *output_at(int which) { return outputs[which]; }

static gumbel_token_lists make_lists(const float *values)
{
    return (gumbel_token_lists){
        .offsets = (const int64_t *)inputs, .ids = (const int32_t *)inputs, .values = values};
}

static gumbel_output make_output(int first)
{
    return (gumbel_output){.struct_size = sizeof(gumbel_output),
                           .tokens = output_at(first),
                           .logprobs = output_at(first + 1),
                           .scores = output_at(first + 2),
                           .lse = output_at(first + 3),
                           .status = output_at(first + 4)};
}

static void make_request(arguments *a)
{
    a->transforms = (gumbel_transforms){.struct_size = sizeof a->transforms,
                                        .allowed = make_lists(NULL),
                                        .banned = make_lists(NULL),
                                        .bias = make_lists(ones),
                                        .repetition = {ones, 0},
                                        .frequency = {ones, 0},
                                        .presence = {ones, 0},
                                        .prompt_tokens = make_lists(NULL),
                                        .output_tokens = make_lists(NULL),
                                        .late_bias = make_lists(ones),
                                        .list_status = (const int32_t *)inputs};
    int32_t *mask = make_zeroed(2, sizeof *mask);
    memset(mask, 0xFF, 2 * sizeof *mask);
    a->transforms.mask = (gumbel_row_i32){mask, GUMBEL_SAME};
    a->truncation = (gumbel_truncation){.struct_size = sizeof a->truncation,
                                        .min_p = {(const float *)inputs, 0},
                                        .top_k = {(const int32_t *)inputs, 0},
                                        .top_p = {ones, 0}};
    a->output = make_output(0);
    a->output.ranks = output_at(5);
    a->output.kept = output_at(6);
    a->output.top_ids = output_at(7);
    a->output.top_logprobs = output_at(8);
    a->output.top_logits = output_at(9);
    a->output.num_top = TOP;
}

static void make_arguments(arguments *a)
{
    *a = (arguments){0};
    make_request(a);
    a->head = (gumbel_head){.struct_size = sizeof a->head,
                            .hidden = tensor_of(inputs, GUMBEL_FLOAT32, B, D, 0),
                            .weight = tensor_of(inputs, GUMBEL_FLOAT32, V, D, 0)};
    a->logits = (gumbel_logits){.struct_size = sizeof a->logits,
                                .logits = tensor_of(inputs, GUMBEL_FLOAT32, B, V, 0)};
    a->sampling = (gumbel_sampling){.struct_size = sizeof a->sampling,
                                    .temperature = {ones, 0},
                                    .seed = {(const uint64_t *)inputs, 0},
                                    .position = {(const uint64_t *)inputs, 0},
                                    .first_sample = {(const uint32_t *)inputs, 0},
                                    .slots = {own_slots, B},
                                    .live_rows = &all_rows,
                                    .noise = (const float *)inputs};
    a->finished = make_output(11);
    a->summaries = output_at(16);
    a->found = (gumbel_summary *)inputs;
    a->processed = output_at(17);
    a->noise = output_at(18);
    a->out = output_at(19);
    a->step = (gumbel_step){.struct_size = sizeof a->step,
                            .batch = B,
                            .tokens = (const int32_t *)inputs,
                            .position = output_at(20),
                            .ring = output_at(21),
                            .ring_length = RING,
                            .slots = {own_slots, B},
                            .live_rows = &all_rows};
    a->history = (gumbel_history){.struct_size = sizeof a->history,
                                  .vocab_size = V,
                                  .prompt = output_at(22),
                                  .output = output_at(23),
                                  .counts = output_at(24)};
    a->prompts = a->outputs = make_lists(NULL);
    a->tokens = (const int32_t *)inputs;
}

static gumbel_status make_call(gumbel_device *device, arguments *a, call_name name, gumbel_error *e)
{
    size_t bytes = sizeof workspace;
    gumbel_sampling sampling = a->sampling;
    sampling.transforms = name & TRANSFORMED ? &a->transforms : NULL;
    sampling.truncation = name & REQUESTS ? &a->truncation : NULL;
    if (name == PREPARE_NOISE)
        sampling.noise = NULL;
    switch (name) {
    case SAMPLE:
        return gumbel_sample(device, NULL, &a->head, &sampling, &a->output, workspace, bytes, e);
    case SAMPLE_LOGITS:
        return gumbel_sample_logits(device, NULL, &a->logits, &sampling, &a->output, workspace,
                                    bytes, e);
    case PROCESS:
        return gumbel_process_logits(device, NULL, &a->logits, &sampling, a->processed, 0,
                                     workspace, bytes, e);
    case SOFTMAX:
        return gumbel_softmax(device, NULL, &a->logits, &sampling, a->processed, 0, workspace,
                              bytes, e);
    case PARTIAL:
        return gumbel_partial(device, NULL, &a->head, &sampling, a->summaries, workspace, bytes, e);
    case PARTIAL_LOGITS:
        return gumbel_partial_logits(device, NULL, &a->logits, &sampling, a->summaries, workspace,
                                     bytes, e);
    case PREPARE_NOISE:
        return gumbel_prepare_noise(device, NULL, &sampling, B, 0, V, a->noise, 0, e);
    case ADVANCE:
        return gumbel_advance(device, NULL, &a->step, e);
    case HISTORY_START:
        return gumbel_history_start(device, NULL, &a->history, B, NULL, &a->prompts, &a->outputs,
                                    e);
    case HISTORY_UPDATE:
        return gumbel_history_update(device, NULL, &a->history, B, NULL, a->tokens, 0, NULL, e);
    case FINISH:
        return gumbel_finish(NULL, NULL, a->found, 1, B, 1, &a->finished, e);
    default:
        return gumbel_noise(0, 0, 0, 0, 0, V, a->out, e);
    }
}

/* ---------------------------------------------------------------------------------- tests ---- */

static void valid_calls_succeed(void **state)
{
    for (int name = 1; name < 1 << CALLS; name *= 2) {
        arguments a;
        gumbel_error error = {"", ""};
        make_arguments(&a);
        if (make_call(*state, &a, (call_name)name, &error) != GUMBEL_OK)
            fail_msg("call %x: %s: %s", (unsigned)name, error.field, error.message);
        free((void *)a.transforms.mask.data);
    }
}

static void check_misaligned(gumbel_device *device, const pointer_field *p, call_name name,
                             size_t shift)
{
    static unsigned char before[sizeof outputs];
    arguments a;
    char *pointer;
    gumbel_error error = {"", ""};
    make_arguments(&a);
    const void *mask = a.transforms.mask.data;
    memcpy(&pointer, (char *)&a + p->at, sizeof pointer);
    pointer += shift;
    memcpy((char *)&a + p->at, &pointer, sizeof pointer);
    memset(outputs, 0xA7, sizeof outputs);
    memcpy(before, outputs, sizeof before);
    gumbel_status status = make_call(device, &a, name, &error);
    if (status != GUMBEL_ERROR_ARGUMENT || strcmp(error.field, p->field) != 0)
        fail_msg("%s %zu bytes off in call %x: status %d, field %s", p->field, shift,
                 (unsigned)name, (int)status, error.field);
    assert_non_null(strstr(error.message, "aligned"));
    assert_memory_equal(outputs, before, sizeof before);
    free((void *)mask);
}

static void every_misaligned_pointer_is_named(void **state)
{
    for (size_t i = 0; i < sizeof pointer_fields / sizeof *pointer_fields; i++)
        for (int name = 1; name < 1 << CALLS; name *= 2)
            if (pointer_fields[i].calls & name) {
                size_t size = pointer_fields[i].size > 8 ? 8 : pointer_fields[i].size;
                check_misaligned(*state, &pointer_fields[i], (call_name)name, 1);
                check_misaligned(*state, &pointer_fields[i], (call_name)name, size / 2);
            }
}

static void misaligned_philox_words_are_named(void **state)
{
    uint32_t words[8] = {0};
    uint32_t *off = (uint32_t *)((char *)words + 2);
    (void)state;
    assert_int_equal(gumbel_philox4x32(words, words, 10, words), GUMBEL_OK);
    assert_int_equal(gumbel_philox4x32(off, words, 10, words), GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(gumbel_philox4x32(words, off, 10, words), GUMBEL_ERROR_ARGUMENT);
    assert_int_equal(gumbel_philox4x32(words, words, 10, off), GUMBEL_ERROR_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_calls_succeed),
        cmocka_unit_test(every_misaligned_pointer_is_named),
        cmocka_unit_test(misaligned_philox_words_are_named),
    };
    return cmocka_run_group_tests(tests, open_two_threads, close_device);
}

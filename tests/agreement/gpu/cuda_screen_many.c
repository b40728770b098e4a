/* SPDX-License-Identifier: Apache-2.0
 *
 * 10^5 draws with a screen on a GPU and without, compared bit by bit. Each run queues a chain of
 * steps of 64 draws, whose outputs stay on the GPU until the last step has ended.
 */
#include "cuda_screens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Draws a step (rows times samples); batches of hidden states that the steps take in turns. */
enum { ROWS = 64, HIDDEN_SETS = 4 };
#define DRAWS_MIN 100000

static gumbel_error error;

/* A chain of steps and its outputs on the GPU. */
typedef struct chain {
    int64_t steps, rows; /* rows of a step */
    int32_t *tokens, *status;
    float *scores;
    uint64_t *position;
    void *workspace;
    size_t bytes;
} chain;

static void queue_chain(const chain *c, const gumbel_head *head, const gumbel_sampling *how,
                        int64_t element_bytes)
{
    gumbel_step step = {.struct_size = sizeof step,
                        .batch = c->rows,
                        .num_samples = how->num_samples,
                        .position = c->position};
    for (int64_t i = 0; i < c->steps; i++) {
        gumbel_head step_head = *head;
        gumbel_output out = {.struct_size = sizeof out,
                             .tokens = c->tokens + i * ROWS,
                             .scores = c->scores + i * ROWS,
                             .status = c->status + i * c->rows};
        step_head.hidden.data =
            (const char *)head->hidden.data +
            (size_t)(i % HIDDEN_SETS * c->rows * head->hidden.cols * element_bytes);
        step_head.hidden.rows = c->rows;
        if (gumbel_sample(gpu, NULL, &step_head, how, &out, c->workspace, c->bytes, &error) ||
            gumbel_advance(gpu, NULL, &step, &error))
            die("%s: %s", error.field, error.message);
    }
    GPU(cuCtxSynchronize);
}

/* Runs a chain; returns its tokens, then scores, then statuses, on the heap. */
static uint32_t *draw_chain(chain *c, const gumbel_head *head, const gumbel_sampling *how,
                            int64_t element_bytes)
{
    const size_t draws = (size_t)c->steps * ROWS, rows = (size_t)(c->steps * c->rows);
    uint64_t first[ROWS];
    uint32_t *all = make_zeroed(2 * draws + rows, sizeof *all);
    for (int b = 0; b < ROWS; b++)
        first[b] = (uint64_t)b * 1000003;
    gpu_put(c->position, first, sizeof first);
    gpu_poison(c->tokens, draws * 4);
    gpu_poison(c->scores, draws * 4);
    gpu_poison(c->status, rows * 4);
    queue_chain(c, head, how, element_bytes);
    gpu_fetch(all, c->tokens, draws * 4);
    gpu_fetch(all + draws, c->scores, draws * 4);
    gpu_fetch(all + 2 * draws, c->status, rows * 4);
    return all;
}

/* Lists of allowed tokens on the GPU. Every fourth row has an empty list, which allows all. */
static gumbel_token_lists make_lists(int64_t vocab)
{
    static const int64_t sizes[4] = {0, 1, 40, 2000};
    int64_t offsets[ROWS + 1] = {0};
    for (int b = 0; b < ROWS; b++)
        offsets[b + 1] = offsets[b] + sizes[b % 4];
    int32_t *ids = make_zeroed((size_t)offsets[ROWS], sizeof *ids);
    uint64_t state = 7;
    for (int64_t i = 0; i < offsets[ROWS]; i++)
        ids[i] = (int32_t)(random_bits(&state) % (uint64_t)vocab);
    const gumbel_token_lists generated = {.offsets = gpu_copy(offsets, sizeof offsets),
                                          .ids =
                                              gpu_copy(ids, (size_t)offsets[ROWS] * sizeof *ids)};
    free(ids);
    return generated;
}

typedef enum exclusion_kind { EXCLUDE_NONE, EXCLUDE_BY_MASK, EXCLUDE_BY_LIST } exclusion_kind;

/* Compares at least `draws_min` draws with the screen and without. */
static void compare_chains(const gpu_head *h, int64_t draws_min, int32_t samples,
                           exclusion_kind exclusion, const char *what)
{
    static const char *const exclusion_names[] = {"", ", masks", ", allowed tokens"};
    static const float temperatures[] = {0.8f, 0, 1, 0.3f, 0.7f, 1.3f, 0, 3, 10, 100, 0.05f, 1};
    const int64_t element_bytes = (int64_t)dtype_size(h->head.weight.dtype);
    float temperature[ROWS];
    uint64_t seed[ROWS], state = 17;
    for (int b = 0; b < ROWS; b++) {
        temperature[b] = temperatures[b % 12];
        seed[b] = random_bits(&state);
    }
    chain c = {.steps = (draws_min + ROWS - 1) / ROWS, .rows = ROWS / samples};
    const size_t draws = (size_t)c.steps * ROWS, rows = (size_t)(c.steps * c.rows);
    c.tokens = gpu_make(draws * 4);
    c.scores = gpu_make(draws * 4);
    c.status = gpu_make(rows * 4);
    c.position = gpu_make(sizeof seed);
    float *temperature_on_gpu = gpu_copy(temperature, sizeof temperature);
    uint64_t *seed_on_gpu = gpu_copy(seed, sizeof seed);
    gumbel_transforms transforms = {.struct_size = sizeof transforms};
    const int64_t words = (h->head.weight.rows + 31) / 32;
    if (exclusion == EXCLUDE_BY_MASK)
        transforms.mask = (gumbel_row_i32){copy_masks_to_gpu(ROWS, words, -1), words};
    else if (exclusion == EXCLUDE_BY_LIST)
        transforms.allowed = make_lists(h->head.weight.rows);
    const gumbel_sampling how = {.struct_size = sizeof how,
                                 .temperature = {temperature_on_gpu, 0},
                                 .seed = {seed_on_gpu, 0},
                                 .position = {c.position, 0},
                                 .num_samples = samples,
                                 .transforms = exclusion ? &transforms : NULL};
    gumbel_head head = h->head;
    gumbel_output out = {
        .struct_size = sizeof out, .tokens = c.tokens, .scores = c.scores, .status = c.status};
    head.hidden.rows = c.rows;
    gumbel_head plain = head;
    size_t bytes;
    plain.screen = (gumbel_screen){NULL, 0, 0};
    if (gumbel_workspace_size(gpu, &head, NULL, &how, &out, &bytes, &error) ||
        gumbel_workspace_size(gpu, &plain, NULL, &how, &out, &c.bytes, &error))
        die("%s: %s", error.field, error.message);
    c.bytes = bytes > c.bytes ? bytes : c.bytes;
    c.workspace = gpu_hostile(c.bytes);
    CHECK(is_screened(&head, &how), "%s", what);
    uint32_t *screened = draw_chain(&c, &head, &how, element_bytes);
    uint32_t *without = draw_chain(&c, &plain, &how, element_bytes);
    int64_t differ = 0, outside = 0;
    for (size_t i = 0; i < draws; i++) {
        differ += screened[i] != without[i] || screened[draws + i] != without[draws + i];
        outside += screened[i] >= (uint64_t)head.weight.rows;
    }
    CHECK(outside == 0, "%s: %lld of %zu draws have no token", what, (long long)outside, draws);
    differ += memcmp(screened + 2 * draws, without + 2 * draws, rows * 4) != 0;
    CHECK(differ == 0, "%s: %lld of %zu draws differ", what, (long long)differ, draws);
    printf("  %s, S = %d%s: %zu draws, %lld differ\n", what, samples, exclusion_names[exclusion],
           draws, (long long)differ);
    free(screened);
    free(without);
    gpu_free(c.tokens);
    gpu_free(c.scores);
    gpu_free(c.status);
    gpu_free(c.position);
    gpu_free(c.workspace);
    gpu_free(temperature_on_gpu);
    gpu_free(seed_on_gpu);
    gpu_free((void *)(uintptr_t)transforms.mask.data);
    gpu_free((void *)(uintptr_t)transforms.allowed.offsets);
    gpu_free((void *)(uintptr_t)transforms.allowed.ids);
}

/* The LM head of the bundled model, which is its embedding; 256 embeddings are the hidden states.
 */
static generated_head load_bundled_head(void)
{
    enum { V = 8192, D = 256, FIRST = 700 };
    static const char expected_entry[] = "\"model.embed_tokens.weight\":{\"dtype\":\"BF16\","
                                         "\"shape\":[8192,256],\"data_offsets\":[0,";
    FILE *file = fopen(TEST_MODELS "/kjv-target/model.safetensors", "rb");
    uint64_t header = 0;
    if (!file || fread(&header, 1, sizeof header, file) != sizeof header || header > 1 << 20)
        die(TEST_MODELS "/kjv-target/model.safetensors cannot be read");
    char *text = make_zeroed(header + 1, 1);
    uint16_t *weight = make_zeroed((size_t)V * D, sizeof *weight);
    uint16_t *hidden = make_zeroed((size_t)HIDDEN_SETS * ROWS * D, sizeof *hidden);
    if (fread(text, 1, header, file) != header || !strstr(text, expected_entry) ||
        fread(weight, sizeof *weight, (size_t)V * D, file) != (size_t)V * D)
        die("the bundled model has no such head");
    fclose(file);
    free(text);
    memcpy(hidden, weight + FIRST * D, (size_t)HIDDEN_SETS * ROWS * D * sizeof *hidden);
    return (generated_head){tensor_of(weight, GUMBEL_BFLOAT16, V, D, 0),
                            tensor_of(hidden, GUMBEL_BFLOAT16, HIDDEN_SETS * ROWS, D, 0)};
}

void screen_many_draws(void)
{
    static const int64_t columns[HEAD_KINDS] = {512, 1024, 384, 256};
    for (int kind = 0; kind < HEAD_KINDS + 1; kind++) {
        const int is_model = kind == HEAD_KINDS;
        const gumbel_dtype dtype = kind == HEAD_STRUCTURED ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16;
        generated_head generated = is_model
                                       ? load_bundled_head()
                                       : generate_head((head_kind)kind, dtype, 24000 + 16 * kind,
                                                       columns[kind], HIDDEN_SETS * ROWS, 3);
        gpu_head h = copy_head_to_gpu(&generated, SCREEN_PROBABLE);
        gpu_head certain = copy_head_to_gpu(&generated, SCREEN_CERTAIN);
        gpu_head nibbles = copy_head_to_gpu(&generated, SCREEN_NIBBLES);
        const char *what = is_model ? "the bundled model" : head_kind_names[kind];
        compare_chains(&h, DRAWS_MIN / (HEAD_KINDS + 1), 1, EXCLUDE_NONE, what);
        compare_chains(&h, DRAWS_MIN / 20, kind % 2 ? 8 : 4, EXCLUDE_NONE, what);
        compare_chains(&h, DRAWS_MIN / 20, kind % 2 ? 1 : 2, EXCLUDE_BY_MASK, what);
        compare_chains(&h, DRAWS_MIN / 50, kind % 2 ? 2 : 1, EXCLUDE_BY_LIST, what);
        compare_chains(&certain, DRAWS_MIN / 20, 1, EXCLUDE_NONE, what);
        if (!draws_bytes_alone()) {
            compare_chains(&nibbles, DRAWS_MIN / (HEAD_KINDS + 1), 1, EXCLUDE_NONE, what);
            compare_chains(&nibbles, DRAWS_MIN / 20, kind % 2 ? 8 : 4, EXCLUDE_NONE, what);
            compare_chains(&nibbles, DRAWS_MIN / 20, kind % 2 ? 1 : 2, EXCLUDE_BY_MASK, what);
        }
        free_gpu_head(&h);
        free_gpu_head(&certain);
        free_gpu_head(&nibbles);
        free_generated_head(&generated);
    }
}

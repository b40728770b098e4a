/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws with a screen on a GPU have the bits of draws without one: heads of all kinds, candidate
 * lists that overflow, rows that are not finite, ties, shards, replays. Large numbers of draws are
 * in cuda_screen_many.c, truncated rows in cuda_screen_truncated.c, stale weights in
 * cuda_screen_stale.c, error bounds and rounding errors in cuda_screen_numbers.c.
 */
#define _POSIX_C_SOURCE 200112L

#include "cuda_screens.h"
#include "test_scale.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gumbel_error error;

/* Counts since the last printed line. The last two leave out calls that the full pass drew. */
static int64_t calls, fallback_calls, candidates, rows_drawn;

/* Prints the listed candidates of a row that differs, and whether the expected token is one. */
static void print_row_candidates(const screened_draw *d, int64_t row, int32_t token)
{
    const int64_t group = row / CUDA_SCREEN_GROUP;
    uint32_t listed = d->state.listed[group], entries_max = CUDA_SCREEN_GROUP_CANDIDATES_MAX;
    cuda_screen_entry *entries = make_zeroed(entries_max, sizeof *entries);
    gumbel_screen_hidden_error hidden_error;
    int row_candidates = 0, found = 0;
    gpu_fetch(&hidden_error, d->arrays.screen.hidden_errors + row, sizeof hidden_error);
    gpu_fetch(entries, d->arrays.screen.entries + group * entries_max,
              entries_max * sizeof *entries);
    for (uint32_t i = 0; i < listed && i < entries_max; i++)
        if (entries[i].row == (uint32_t)row) {
            row_candidates++;
            if (row_candidates <= 3 || entries[i].token == (uint32_t)token)
                printf("  candidate %u: token %u, upper %.6f\n", i, entries[i].token,
                       (double)entries[i].upper);
            found |= entries[i].token == (uint32_t)token;
        }
    printf("  row %lld: %d candidates of %u listed, the token is %s; again %u, ended %llu; "
           "hidden error: "
           "unit %g, outlier_sum %g, inlier_norm %g, residual %g, rounding %g\n",
           (long long)row, row_candidates, listed, found ? "among them" : "NOT among them",
           d->state.again, (unsigned long long)d->state.ended, (double)hidden_error.unit,
           (double)hidden_error.outlier_sum, (double)hidden_error.inlier_norm,
           (double)hidden_error.residual, (double)hidden_error.rounding);
    free(entries);
}

static int same_bits(const float *a, const float *b)
{
    return memcmp(a, b, sizeof *a) == 0 || (isnan(*a) && isnan(*b));
}

/* Draws with the screen and without; returns whether all bits agree. */
static int compare_draws(const gumbel_head *head, const gumbel_sampling *sampling, const char *what)
{
    gumbel_head without = *head;
    screened_draw plain = {0}, screened = {0};
    outcome *a = outcome_make(head->hidden.rows, 1), *b = outcome_make(head->hidden.rows, 1);
    int same = 1;
    without.screen = (gumbel_screen){NULL, 0, 0};
    draw_rows_once(&without, sampling, a, &plain);
    draw_rows_once(head, sampling, b, &screened);
    for (int64_t row = 0; row < a->batch && same; row++) {
        same =
            CHECK(a->tokens[row] == b->tokens[row] && a->status[row] == b->status[row] &&
                      same_bits(&a->scores[row], &b->scores[row]),
                  "%s: row %lld of %lld: token %d, score %a, status %d with the screen; %d, %a, "
                  "%d without",
                  what, (long long)row, (long long)a->batch, b->tokens[row], (double)b->scores[row],
                  b->status[row], a->tokens[row], (double)a->scores[row], a->status[row]);
        if (!same)
            print_row_candidates(&screened, row, a->tokens[row]);
    }
    calls++;
    fallback_calls += screened.state.again != 0;
    for (int i = 0; i < CUDA_SCREEN_GROUPS && !screened.state.again; i++)
        candidates += screened.state.listed[i];
    rows_drawn += screened.state.again ? 0 : a->batch;
    gpu_free(plain.workspace);
    gpu_free(screened.workspace);
    outcome_free(a);
    outcome_free(b);
    return same;
}

static void print_counts(const char *what)
{
    printf("  %s: %lld calls, %lld by the full pass, %.1f candidates a row\n", what,
           (long long)calls, (long long)fallback_calls,
           rows_drawn ? (double)candidates / (double)rows_drawn : 0.0);
    calls = fallback_calls = candidates = rows_drawn = 0;
}

/* --------------------------------------------------------------------------- many draws ---- */

static const float temperatures[] = {0.8f, 0.0f, 0.3f, 1.0f, 3.0f, 100.0f};
#define TEMPERATURES 6

/* Compares `count` calls of all rows at consecutive positions. Rows take the first
 * `temperature_count` temperatures in turns. */
static void compare_calls(const gpu_head *h, int count, int temperature_count, const char *what)
{
    const int64_t batch = h->head.hidden.rows;
    float *temperature = make_zeroed((size_t)batch, sizeof *temperature);
    float *on_gpu = gpu_make((size_t)batch * sizeof *temperature);
    uint64_t seed = 7, *seed_on_gpu = gpu_copy(&seed, sizeof seed),
             *position_on_gpu = gpu_copy(&seed, sizeof seed);
    gumbel_sampling how = {.struct_size = sizeof how,
                           .temperature = {on_gpu, 0},
                           .seed = {seed_on_gpu, GUMBEL_SAME},
                           .position = {position_on_gpu, GUMBEL_SAME}};
    if (!CHECK(is_screened(&h->head, &how), "%s", what))
        return;
    for (uint64_t position = 0; position < (uint64_t)count; position++) {
        for (int64_t b = 0; b < batch; b++)
            temperature[b] = temperatures[((uint64_t)b + position) % (uint64_t)temperature_count];
        gpu_put(on_gpu, temperature, (size_t)batch * sizeof *temperature);
        gpu_put(position_on_gpu, &position, sizeof position);
        if (!compare_draws(&h->head, &how, what))
            break;
    }
    free(temperature);
    gpu_free(on_gpu);
    gpu_free(seed_on_gpu);
    gpu_free(position_on_gpu);
}

/* With this many tokens, and few rows, the screen determines most calls. With fewer tokens, most of
 * a tile's may win by coarse bounds. */
#define MANY_TOKENS 50000

static void compare_screen(const generated_head *generated, const char *name, screen_kind screen,
                           int count, int temperature_count, int list_max)
{
    gpu_head h = copy_head_to_gpu(generated, screen);
    char what[96];
    snprintf(what, sizeof what, "%s %s, %s, V = %lld, D = %lld, B = %lld%s", name,
             dtype_name(generated->weight.dtype), screen_kind_names[screen],
             (long long)generated->weight.rows, (long long)generated->weight.cols,
             (long long)generated->hidden.rows, list_max ? ", short lists" : "");
    if (list_max) {
        gumbel_screen_header header;
        gpu_fetch(&header, h.screen.data, sizeof header);
        header.list_max = list_max;
        header.check = gumbel_screen_checksum(&header);
        gpu_put(h.screen.data, &header, sizeof header);
    }
    compare_calls(&h, count, temperature_count, what);
    if (generated->weight.rows >= MANY_TOKENS && generated->hidden.rows <= 16)
        CHECK(2 * fallback_calls <= calls, "%s: the full pass drew %lld of %lld calls", what,
              (long long)fallback_calls, (long long)calls);
    print_counts(what);
    free_gpu_head(&h);
}

/* Compares calls of a generated head, with each kind of screen. A nonzero `list_max` replaces the
 * screen's own. */
static void compare_generated_head(head_kind kind, gumbel_dtype dtype, int64_t vocab,
                                   int64_t columns, int64_t batch, int count, int temperature_count,
                                   int list_max)
{
    generated_head generated =
        generate_head(kind, dtype, vocab, columns, batch, 21 + (uint64_t)batch);
    for (int screen = 0; screen < count_screen_kinds(); screen++)
        compare_screen(&generated, head_kind_names[kind], (screen_kind)screen, count,
                       temperature_count, list_max);
    free_generated_head(&generated);
}

static const int64_t batches[] = {1, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64};
#define BATCHES 11

static void screen_batches(void)
{
    for (int i = 0; i < BATCHES; i++)
        compare_generated_head(HEAD_GAUSSIAN, i % 2 ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16, 20000, 256,
                               batches[i], 20, 4, 0);
}

static void screen_kinds(void)
{
    for (int kind = 0; kind < HEAD_KINDS; kind++)
        for (int i = 0; i < 3; i++)
            compare_generated_head((head_kind)kind, i % 2 ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16,
                                   20000 + 16 * kind, 192 + 8 * i, 1 + 7 * i,
                                   is_nightly() ? 2000 : 30, TEMPERATURES, 0);
}

/* Column and token counts that are not multiples of a tile, and large ones. */
static void screen_shapes(void)
{
    static const int64_t columns[] = {8, 56, 64, 120, 128, 136, 264, 1032, 2048, 4104};
    for (int i = 0; i < 10; i++)
        compare_generated_head(HEAD_STRUCTURED, GUMBEL_BFLOAT16,
                               16 * (1 + 37 * i) + (draws_bytes_alone() ? i : 0), columns[i], 1 + i,
                               6, 4, 0);
    compare_generated_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 16, 64, 2, 6, 4, 0);
    compare_generated_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 128 * 140, 64, 2, 6, 4, 0);
}

static void screen_lists(void)
{
    compare_generated_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 20000, 256, 1, 10, TEMPERATURES, 1);
    compare_generated_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 20000, 256, 8, 10, TEMPERATURES, 1);
    compare_generated_head(HEAD_STRUCTURED, GUMBEL_FLOAT16, 20000, 256, 40, 10, TEMPERATURES, 2);
}

/* Zeros, equal rows, and weights or hidden states that are not finite or very small. */
static void screen_odd(void)
{
    static const char *const names[] = {
        "NaN in a row of weights", "inf in a row of weights", "NaN in h", "inf in h", "h of zeros",
        "equal weights",           "small weights",           "small h"};
    const gumbel_dtype dtype = GUMBEL_BFLOAT16;
    for (int odd = 0; odd < 8; odd++) {
        generated_head generated = generate_head(HEAD_GAUSSIAN, dtype, 4000, 128, 6, 5);
        void *weight = (void *)(uintptr_t)generated.weight.data,
             *hidden = (void *)(uintptr_t)generated.hidden.data;
        for (int64_t i = 0; i < 4000 * 128 && odd >= 5 && odd < 7; i++)
            dtype_store(weight, dtype, i,
                        odd == 5 ? 0.25f : dtype_load(weight, dtype, i) * 0x1p-120f);
        for (int64_t i = 0; i < 6 * 128 && (odd == 4 || odd == 7); i++)
            dtype_store(hidden, dtype, i,
                        odd == 4 ? 0.0f : dtype_load(hidden, dtype, i) * 0x1p-120f);
        if (odd == 0)
            dtype_store_nan(weight, dtype, 777 * 128 + 5);
        if (odd == 1)
            dtype_store_infinite(weight, dtype, 777 * 128 + 5, 1);
        if (odd == 2)
            dtype_store_nan(hidden, dtype, 3 * 128 + 5);
        if (odd == 3)
            dtype_store_infinite(hidden, dtype, 3 * 128 + 5, -1);
        for (int screen = 0; screen < count_screen_kinds(); screen++) {
            gpu_head h = copy_head_to_gpu(&generated, (screen_kind)screen);
            compare_calls(&h, 6, TEMPERATURES, names[odd]);
            print_counts(names[odd]);
            free_gpu_head(&h);
        }
        free_generated_head(&generated);
    }
}

/* A shard, then one whose last rows are past the end of the vocabulary. */
static void screen_shard(void)
{
    generated_head generated = generate_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 5008, 128, 5, 5);
    for (int screen = 0; screen < count_screen_kinds(); screen++) {
        gpu_head h = copy_head_to_gpu(&generated, (screen_kind)screen);
        h.head.first_token = 192;
        compare_calls(&h, 8, 4, "shard");
        h.head.vocab_size = 192 + 4001;
        compare_calls(&h, 8, 4, "shard that ends early");
        print_counts("shards");
        free_gpu_head(&h);
    }
    free_generated_head(&generated);
}

static void screen_large(void)
{
    compare_generated_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 60000, 512, 16, is_nightly() ? 4000 : 40,
                           4, 0);
    compare_generated_head(HEAD_OUTLIERS, GUMBEL_BFLOAT16, 30000, 1024, 64,
                           is_nightly() ? 1000 : 20, 4, 0);
    compare_generated_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 20000, 8192, 64, 10, 4, 0);
}

/* ---------------------------------------------------------------------------- replays ---- */

static void replay_draws(const generated_head *generated, screen_kind screen)
{
    gpu_head h = copy_head_to_gpu(generated, screen);
    gumbel_head without = h.head;
    uint64_t seed = 7, position = 0, *seed_on_gpu = gpu_copy(&seed, sizeof seed),
             *position_on_gpu = gpu_copy(&seed, sizeof seed);
    gumbel_sampling how = {.struct_size = sizeof how,
                           .seed = {seed_on_gpu, GUMBEL_SAME},
                           .position = {position_on_gpu, GUMBEL_SAME}};
    int32_t tokens[12], expected[12];
    gumbel_output out = {.struct_size = sizeof out, .tokens = gpu_make(sizeof tokens)};
    size_t bytes;
    if (gumbel_workspace_size(gpu, &h.head, NULL, &how, &out, &bytes, &error))
        die("%s", error.message);
    void *workspace = gpu_hostile(bytes);
    without.screen = (gumbel_screen){NULL, 0, 0};
    gpu_graph graph = gpu_graph_begin();
    if (gumbel_sample(gpu, graph.stream, &h.head, &how, &out, workspace, bytes, &error))
        die("%s", error.message);
    gpu_graph_end(&graph);
    for (; position < 20; position++) {
        gpu_put(position_on_gpu, &position, sizeof position);
        if (gumbel_sample(gpu, NULL, &without, &how, &out, workspace, bytes, &error))
            die("%s", error.message);
        GPU(cuCtxSynchronize);
        gpu_fetch(expected, out.tokens, sizeof expected);
        for (int i = 0; i < 2; i++) {
            gpu_poison(out.tokens, sizeof tokens);
            gpu_graph_replay(&graph);
            gpu_fetch(tokens, out.tokens, sizeof tokens);
            CHECK(memcmp(tokens, expected, sizeof tokens) == 0,
                  "position %d: row 0 drew %d, not %d", (int)position, tokens[0], expected[0]);
        }
    }
    gpu_graph_free(&graph);
    gpu_free(workspace);
    gpu_free(out.tokens);
    gpu_free(seed_on_gpu);
    gpu_free(position_on_gpu);
    free_gpu_head(&h);
}

static void screen_replays(void)
{
    generated_head generated = generate_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 9600, 256, 12, 5);
    for (int screen = 0; screen < count_screen_kinds(); screen++)
        replay_draws(&generated, (screen_kind)screen);
    free_generated_head(&generated);
}

/* A few small calls, for tools such as compute-sanitizer that slow each one to seconds. */
static void screen_small(void)
{
    compare_generated_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 2000, 136, 5, 2, 4, 0);
    compare_generated_head(HEAD_STRUCTURED, GUMBEL_FLOAT16, 1040, 64, 12, 1, 4, 1);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"screen_small", screen_small},
        {"screen_certificates", screen_certificates},
        {"screen_dither", screen_dither},
        {"screen_layouts", screen_layouts},
        {"screen_batches", screen_batches},
        {"screen_kinds", screen_kinds},
        {"screen_shapes", screen_shapes},
        {"screen_lists", screen_lists},
        {"screen_odd", screen_odd},
        {"screen_shard", screen_shard},
        {"screen_replays", screen_replays},
        {"screen_roundings", screen_roundings},
        {"screen_large", screen_large},
        {"screen_many_draws", screen_many_draws},
        {"screen_truncated_small", screen_truncated_small},
        {"screen_truncated_rows", screen_truncated_rows},
        {"screen_truncated_large", screen_truncated_large},
        {"screen_truncated_odd", screen_truncated_odd},
        {"screen_truncated_replays", screen_truncated_replays},
        {"screen_stale", screen_stale},
        {"screen_stale_draws", screen_stale_draws},
        {"screen_stale_small", screen_stale_small},
        {NULL, NULL},
    };
    /* Selects the screen even if the full pass is faster. "screen-tensor,-hopper" tests the kernels
     * of other GPUs. */
    setenv("GUMBEL_RUNGS", "screen", 0);
    return cuda_run_tests(argc, argv, tests);
}

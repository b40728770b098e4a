/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights that change in place on a GPU after their screen was made. For any new values, calls end
 * and each draw has a token of the vocabulary or a status. compute-sanitizer finds accesses out of
 * bounds, as weights, outputs and workspace are allocated without padding.
 */
#include "cuda_screens.h"
#include "stale_weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOP = 3 };

static gumbel_error error;

/* Row parameters in device memory; one value for all rows. */
typedef struct row_params {
    float *temperature, *top_p, *min_p;
    int32_t *top_k;
    uint64_t *seed, *position;
} row_params;

static row_params make_params(void)
{
    const float temperature = 0.8f, top_p = 0.9f, min_p = 0.02f;
    const int32_t top_k = 40;
    const uint64_t seed = 7;
    return (row_params){gpu_copy(&temperature, sizeof temperature),
                        gpu_copy(&top_p, sizeof top_p),
                        gpu_copy(&min_p, sizeof min_p),
                        gpu_copy(&top_k, sizeof top_k),
                        gpu_copy(&seed, sizeof seed),
                        gpu_copy(&seed, sizeof seed)};
}

static void free_params(const row_params *v)
{
    gpu_free(v->temperature);
    gpu_free(v->top_p);
    gpu_free(v->min_p);
    gpu_free(v->top_k);
    gpu_free(v->seed);
    gpu_free(v->position);
}

/* Whether each draw has a token in [0, vocab), or none and a status. */
static int check_draws(const outcome *out, int64_t vocab, int all_nan, const char *what)
{
    for (int64_t draw = 0; draw < out->batch * out->samples; draw++) {
        int32_t token = out->tokens[draw], status = out->status[draw / out->samples];
        int sound = status == GUMBEL_ROW_OK ? token >= 0 && token < vocab : token == -1;
        if (!CHECK(sound && (!all_nan || status == GUMBEL_ROW_NAN),
                   "%s: draw %lld has token %d, status %d", what, (long long)draw, token, status))
            return 0;
    }
    return 1;
}

/* Draws with the screen. rules_level 0: plain; 1: top-k; 2: all rules and all outputs. */
static int draw_stale_head(const gumbel_head *head, const row_params *params, int rules_level,
                           int32_t samples, int all_nan, const char *what)
{
    gumbel_truncation rules = {.struct_size = sizeof rules, .top_k = {params->top_k, GUMBEL_SAME}};
    if (rules_level > 1) {
        rules.top_p = (gumbel_row_f32){params->top_p, GUMBEL_SAME};
        rules.min_p = (gumbel_row_f32){params->min_p, GUMBEL_SAME};
        rules.ties = GUMBEL_TIES_EXACT;
    }
    gumbel_sampling how = {.struct_size = sizeof how,
                           .temperature = {params->temperature, GUMBEL_SAME},
                           .seed = {params->seed, GUMBEL_SAME},
                           .position = {params->position, GUMBEL_SAME},
                           .truncation = rules_level ? &rules : NULL,
                           .num_samples = samples};
    outcome *out = outcome_make(head->hidden.rows, samples);
    if (rules_level > 1)
        outcome_widen(out, TOP, GUMBEL_PROCESSED);
    else
        out->output.lse = out->output.logprobs = NULL;
    gumbel_output on_gpu = gpu_output_make(out);
    size_t bytes;
    if (gumbel_workspace_size(gpu, head, NULL, &how, &on_gpu, &bytes, &error))
        die("gumbel_workspace_size: %s: %s", error.field, error.message);
    void *workspace = gpu_hostile(bytes);
    if (gumbel_sample(gpu, NULL, head, &how, &on_gpu, workspace, bytes, &error))
        die("gumbel_sample: %s: %s", error.field, error.message);
    GPU(cuCtxSynchronize);
    gpu_output_fetch(&on_gpu, out);
    int sound = CHECK(is_screened(head, &how), "%s", what) &&
                check_draws(out, head->weight.rows, all_nan, what);
    gpu_output_free(&on_gpu);
    gpu_free(workspace);
    outcome_free(out);
    return sound;
}

/* Draws from one head per kind of change; `kinds` NULL: all kinds. */
static void draw_stale_kinds(const stale_kind *kinds, int count, int64_t vocab, int64_t columns,
                             int64_t batch)
{
    const row_params params = make_params();
    uint64_t random = (uint64_t)vocab;
    for (int i = 0; i < count; i++) {
        const stale_kind kind = kinds ? kinds[i] : (stale_kind)i;
        const gumbel_dtype dtype = i % 2 ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16;
        generated_head generated =
            generate_head((head_kind)(i % HEAD_HOSTILE), dtype, vocab, columns, batch, 21);
        gpu_head h = copy_head_to_gpu(&generated, (screen_kind)(i % count_screen_kinds()));
        spoil_rows(&generated.weight, kind, &random);
        gpu_put(h.weight, generated.weight.data, (size_t)(vocab * columns) * dtype_size(dtype));
        for (int rules_level = 0; rules_level < (draws_bytes_alone() ? 1 : 3); rules_level++)
            if (!draw_stale_head(&h.head, &params, rules_level, 1 + i % 3, kind == STALE_NAN,
                                 stale_names[kind]))
                break;
        free_gpu_head(&h);
        free_generated_head(&generated);
    }
    free_params(&params);
}

void screen_stale_draws(void)
{
    draw_stale_kinds(NULL, STALE_KINDS, 20000, 256, 1);
    draw_stale_kinds(NULL, STALE_KINDS, 30000, 520, 9);
    draw_stale_kinds(NULL, STALE_KINDS, 20000, 256, 20);
}

/* A few small calls, for tools such as compute-sanitizer that slow each one to seconds. */
void screen_stale_small(void)
{
    static const stale_kind kinds[] = {STALE_NAN, STALE_LARGER, STALE_BYTES};
    draw_stale_kinds(kinds, 3, 8000, 136, 3);
}

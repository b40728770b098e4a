/* SPDX-License-Identifier: Apache-2.0 */
#include "draft_chains.h"

#include "inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXTS = 1000, NODES_MAX = CHAIN_DRAFTS_MAX + 1, ROWS = TEXTS * NODES_MAX };

/* Texts in progress; complete ones are removed. */
typedef struct writers {
    const chain_models *models;
    const chain_plan *plan;
    gumbel_device *device;
    int texts;
    uint64_t seed[TEXTS], position[TEXTS];
    int32_t number[TEXTS]; /* index among all texts */
    int32_t text[TEXTS][CHAIN_LENGTH];
    int32_t length[TEXTS];
    int32_t tokens[ROWS]; /* [texts, nodes] */
    float target[ROWS * CHAIN_TOKENS], draft[ROWS * CHAIN_TOKENS];
    int32_t emitted[ROWS], counts[TEXTS], accepted[TEXTS];
    uint64_t random; /* for wrong residuals */
    _Alignas(64) char workspace[64 << 20];
} writers;

static int32_t last_token(const writers *w, int t)
{
    return w->length[t] > 0 ? w->text[t][w->length[t] - 1] : 0;
}

static gumbel_logits logits_of(const float *rows, int64_t count)
{
    return (gumbel_logits){.struct_size = sizeof(gumbel_logits),
                           .logits = tensor_of(rows, GUMBEL_FLOAT32, count, CHAIN_TOKENS, 0)};
}

/* Draws the drafts of a step for all texts, given the tokens before. */
static void draft_step(writers *w, int step)
{
    static float rows[TEXTS * CHAIN_TOKENS];
    static uint64_t position[TEXTS];
    static int32_t drawn[TEXTS];
    int nodes = w->plan->drafts + 1;
    gumbel_logits logits = logits_of(rows, w->texts);
    gumbel_sampling how = {.struct_size = sizeof how,
                           .temperature = {&w->plan->drawn_at, GUMBEL_SAME},
                           .seed = {w->seed, 0},
                           .position = {position, 0},
                           .domain = w->plan->domain |
                                     (w->plan->by_step ? (uint32_t)step << 8 : UINT32_C(0))};
    gumbel_output out = {.struct_size = sizeof out, .tokens = drawn};
    gumbel_truncation cut = {.struct_size = sizeof cut,
                             .top_k = {&w->plan->drawn_top_k, GUMBEL_SAME}};
    gumbel_error error;
    how.truncation = w->plan->drawn_top_k ? &cut : NULL;
    for (int t = 0; t < w->texts; t++) {
        int32_t before = w->tokens[t * nodes + step];
        before = before < 0 ? 0 : before;
        position[t] = w->position[t] + (uint64_t)step;
        memcpy(rows + t * CHAIN_TOKENS, w->models->draft[before], sizeof *w->models->draft);
    }
    if (gumbel_sample_logits(w->device, NULL, &logits, &how, &out, w->workspace,
                             sizeof w->workspace, &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    for (int t = 0; t < w->texts; t++) {
        int lacks = w->plan->missing && (w->number[t] + step) % w->plan->missing == 0;
        w->tokens[t * nodes + step + 1] = lacks ? -1 : drawn[t];
    }
}

static void verify(writers *w)
{
    int nodes = w->plan->drafts + 1;
    gumbel_logits target = logits_of(w->target, (int64_t)w->texts * nodes);
    gumbel_logits draft = logits_of(w->draft, (int64_t)w->texts * nodes);
    gumbel_sampling how = {
        .struct_size = sizeof how, .seed = {w->seed, 0}, .position = {w->position, 0}};
    gumbel_sampling drafted = how;
    gumbel_draft d = {.struct_size = sizeof d,
                      .requests = w->texts,
                      .max_nodes = nodes,
                      .rule = w->plan->rule,
                      .tokens = w->tokens,
                      .logits = &draft,
                      .sampling = &drafted};
    gumbel_verified v = {.struct_size = sizeof v,
                         .tokens = w->emitted,
                         .emitted = w->counts,
                         .accepted = w->accepted,
                         .position = w->position};
    gumbel_error error;
    drafted.temperature = (gumbel_row_f32){&w->plan->supplied_at, GUMBEL_SAME};
    drafted.domain = GUMBEL_DOMAIN_DRAFT;
    for (int i = 0; i < w->texts * nodes; i++) {
        int32_t token = w->tokens[i] < 0 ? 0 : w->tokens[i];
        memcpy(w->target + i * CHAIN_TOKENS, w->models->target[token], sizeof *w->models->target);
        memcpy(w->draft + i * CHAIN_TOKENS, w->models->draft[token], sizeof *w->models->draft);
    }
    if (gumbel_verify_logits(w->device, NULL, &target, &how, &d, &v, w->workspace,
                             sizeof w->workspace, &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
}

/* Draws a token by weights that need not sum to 1. */
static int32_t draw_by_shares(const double *shares, uint64_t *random)
{
    double sum = 0;
    for (int i = 0; i < CHAIN_TOKENS; i++)
        sum += shares[i];
    double left = sum * (double)(random_bits(random) >> 11) * 0x1p-53;
    int32_t last = -1;
    for (int32_t i = 0; i < CHAIN_TOKENS; i++) {
        if (shares[i] <= 0)
            continue;
        last = i;
        left -= shares[i];
        if (left < 0)
            break;
    }
    return last;
}

/* Replaces the token after the last accepted draft of text t, as a wrong engine would. */
static void replace_wrongly(writers *w, int t)
{
    const int nodes = w->plan->drafts + 1, last = w->accepted[t];
    const int32_t *drafted = w->tokens + t * nodes;
    double p[CHAIN_TOKENS], q[CHAIN_TOKENS], shares[CHAIN_TOKENS], left = 0;
    if (last + 1 >= nodes)
        return; /* all drafts were accepted */
    const int lacks = drafted[last + 1] < 0;
    if (lacks != (w->plan->residual == CHAIN_RESIDUAL_OF_NONE))
        return;
    chain_law(w->models->target[drafted[last]], p);
    chain_law(w->models->draft[drafted[last]], q);
    for (int i = 0; i < CHAIN_TOKENS; i++) {
        shares[i] = lacks ? fmax(p[i] - q[i], 0) : i == drafted[last + 1] ? 0 : p[i];
        left += shares[i];
    }
    if (left > 0)
        w->emitted[t * nodes + last] = draw_by_shares(shares, &w->random);
}

/* One cycle of all texts. */
static void run_cycle(writers *w, int first, chain_counts *counts)
{
    int nodes = w->plan->drafts + 1;
    for (int t = 0; t < w->texts; t++)
        w->tokens[t * nodes] = last_token(w, t);
    for (int step = 0; step < w->plan->drafts; step++)
        draft_step(w, step);
    verify(w);
    for (int t = 0; t < w->texts; t++) {
        if (w->plan->residual != CHAIN_RESIDUAL_RIGHT)
            replace_wrongly(w, t);
        for (int i = 0; i < w->counts[t] && w->length[t] < CHAIN_LENGTH; i++)
            w->text[t][w->length[t]++] = w->emitted[t * nodes + i];
        counts->accepted[w->accepted[t]] += first;
    }
}

/* Counts complete texts, and continues with the others. */
static void part_with_finished(writers *w, chain_counts *counts)
{
    int left = 0;
    for (int t = 0; t < w->texts; t++) {
        const int32_t *text = w->text[t];
        if (w->length[t] == CHAIN_LENGTH) {
            counts->laws[text[0] * 16 + text[1] * 4 + text[2]]++;
            continue;
        }
        w->seed[left] = w->seed[t];
        w->position[left] = w->position[t];
        w->number[left] = w->number[t];
        w->length[left] = w->length[t];
        memmove(w->text[left++], text, sizeof w->text[t]);
    }
    w->texts = left;
}

void chains_write(gumbel_device *device, const chain_models *models, const chain_plan *plan,
                  int64_t texts, chain_counts *counts)
{
    writers *w = aligned_alloc(64, sizeof *w);
    if (!w)
        die("out of memory");
    w->device = device;
    w->models = models;
    w->plan = plan;
    w->random = plan->seed;
    *counts = (chain_counts){{0}, {0}};
    for (int64_t begin = 0; begin < texts; begin += TEXTS) {
        w->texts = TEXTS;
        for (int t = 0; t < TEXTS; t++) {
            w->seed[t] = plan->seed * UINT64_C(0x9E3779B97F4A7C15) + (uint64_t)(begin + t);
            w->position[t] = 0;
            w->number[t] = t;
            w->length[t] = 0;
        }
        for (int cycle = 0; w->texts > 0; cycle++) {
            run_cycle(w, cycle == 0, counts);
            part_with_finished(w, counts);
        }
    }
    free(w);
}

void chain_law(const float *logits, double *p)
{
    double sum = 0;
    for (int i = 0; i < CHAIN_TOKENS; i++)
        sum += p[i] = exp((double)logits[i]);
    for (int i = 0; i < CHAIN_TOKENS; i++)
        p[i] /= sum;
}

void chain_laws(const chain_models *models, double *p)
{
    double law[CHAIN_TOKENS][CHAIN_TOKENS];
    for (int i = 0; i < CHAIN_TOKENS; i++)
        chain_law(models->target[i], law[i]);
    for (int i = 0; i < CHAIN_LAWS; i++)
        p[i] = law[0][i / 16] * law[i / 16][i / 4 % 4] * law[i / 4 % 4][i % 4];
}

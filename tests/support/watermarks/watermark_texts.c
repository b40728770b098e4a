/* SPDX-License-Identifier: Apache-2.0 */
#include "watermark_texts.h"

#include "outcome.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = TEXTS_REQUESTS * TEXTS_NODES, WORKSPACE = 1 << 20 };

/* The logits after two tokens: few tokens are likely, so that contexts repeat. */
static void compute_logits(int32_t before, int32_t last, float *logits)
{
    uint64_t random = (uint64_t)before * 1000 + (uint64_t)last;
    for (int i = 0; i < TEXTS_VOCAB; i++)
        logits[i] = 2.5f * random_normal(&random);
}

/* Token i of request r, from its prompt's first token on. */
static int32_t token_at(const watermark_texts *t, int r, int64_t i)
{
    return i < 0 ? 0 : i < t->prompt[r] ? t->prompts[r][i] : t->text[r][i - t->prompt[r]];
}

/* Empties the rings, and appends the prompts. */
static void start_rings(watermark_texts *t, gumbel_device *cpu)
{
    int64_t offsets[TEXTS_REQUESTS + 1] = {0};
    int32_t ids[TEXTS_REQUESTS * TEXTS_PROMPT];
    gumbel_error error = {"", ""};
    for (int r = 0; r < TEXTS_REQUESTS; r++) {
        offsets[r + 1] = offsets[r] + t->prompt[r];
        memcpy(ids + offsets[r], t->prompts[r], (size_t)t->prompt[r] * sizeof *ids);
        t->own_position[t->of_row[r]] = 1000 + (uint64_t)t->prompt[r];
    }
    const gumbel_token_lists prompts = {.offsets = offsets, .ids = ids};
    if (report_call("recent_start",
                    gumbel_recent_start(cpu, NULL, &t->recent, TEXTS_REQUESTS, &t->slots, &prompts,
                                        NULL, &error),
                    &error))
        exit(2);
}

static void append_tokens(watermark_texts *t, gumbel_device *cpu, const int32_t *tokens,
                          int64_t stride, const int32_t *counts)
{
    gumbel_error error = {"", ""};
    if (report_call("recent_append",
                    gumbel_recent_append(cpu, NULL, &t->recent, TEXTS_REQUESTS, &t->slots, tokens,
                                         stride, counts, &error),
                    &error))
        exit(2);
}

static gumbel_sampling sampling_of(const watermark_texts *t, const uint64_t *seeds,
                                   const uint64_t *positions)
{
    return (gumbel_sampling){.struct_size = sizeof(gumbel_sampling),
                             .seed = {seeds, 1},
                             .position = {positions, 1},
                             .slots = t->slots};
}

/* Decodes step i of all texts. */
static void decode_step(watermark_texts *t, gumbel_device *cpu, int64_t i)
{
    static unsigned char workspace[WORKSPACE] __attribute__((aligned(64)));
    float logits[TEXTS_REQUESTS * TEXTS_VOCAB];
    uint64_t seeds[TEXTS_SLOTS], positions[TEXTS_SLOTS];
    int32_t tokens[TEXTS_REQUESTS], watermarked[TEXTS_REQUESTS];
    gumbel_error error = {"", ""};
    for (int r = 0; r < TEXTS_REQUESTS; r++) {
        const int64_t next = t->prompt[r] + i;
        compute_logits(token_at(t, r, next - 2), token_at(t, r, next - 1),
                       logits + r * TEXTS_VOCAB);
    }
    gumbel_watermark_draws draws = {.struct_size = sizeof draws,
                                    .seed = seeds,
                                    .position = positions,
                                    .watermarked = watermarked};
    gumbel_logits in = {.struct_size = sizeof in};
    in.logits = tensor_of(logits, GUMBEL_FLOAT32, TEXTS_REQUESTS, TEXTS_VOCAB, 0);
    const gumbel_sampling how = sampling_of(t, seeds, positions);
    gumbel_output out = {.struct_size = sizeof out, .tokens = tokens};
    if (report_call("watermark_rows",
                    gumbel_watermark_rows(cpu, NULL, &t->watermark, &t->recent, TEXTS_REQUESTS,
                                          &draws, &error),
                    &error) ||
        report_call(
            "sample_logits",
            gumbel_sample_logits(cpu, NULL, &in, &how, &out, workspace, sizeof workspace, &error),
            &error))
        exit(2);
    append_tokens(t, cpu, tokens, 1, NULL);
    for (int r = 0; r < TEXTS_REQUESTS; r++) {
        t->text[r][i] = tokens[r];
        t->watermarked[r][i] = watermarked[r];
        t->own_position[t->of_row[r]]++;
    }
}

void watermark_texts_make(watermark_texts *t, uint64_t index, gumbel_device *cpu)
{
    memset(t, 0, sizeof *t);
    t->random = index;
    for (int32_t r = 0; r < TEXTS_REQUESTS; r++) {
        t->of_row[r] = (r * 2 + 1) % TEXTS_SLOTS;
        t->prompt[r] = 1 + (int32_t)random_below(&t->random, TEXTS_PROMPT);
        for (int32_t i = 0; i < t->prompt[r]; i++)
            t->prompts[r][i] = (int32_t)random_below(&t->random, TEXTS_VOCAB);
        if (random_below(&t->random, 2))
            t->text_start[t->of_row[r]] = (uint64_t)t->prompt[r];
    }
    for (int i = 0; i < TEXTS_SLOTS; i++) {
        t->key[2 * i] = random_bits(&t->random);
        t->key[2 * i + 1] = random_bits(&t->random);
        t->own_seed[i] = random_bits(&t->random);
        t->context[i] = (int32_t)random_below(&t->random, 6);
    }
    t->slots = (gumbel_slots){t->of_row, TEXTS_SLOTS};
    t->recent = (gumbel_recent){.struct_size = sizeof t->recent,
                                .capacity = TEXTS_CAPACITY,
                                .tokens = t->ring,
                                .count = t->count};
    t->watermark = (gumbel_watermark){.struct_size = sizeof t->watermark,
                                      .key = t->key,
                                      .context = {t->context, 0},
                                      .text_start = {t->text_start, 0},
                                      .seed = {t->own_seed, 0},
                                      .position = {t->own_position, 0},
                                      .slots = t->slots};
    start_rings(t, cpu);
    for (int64_t i = 0; i < TEXTS_LENGTH; i++)
        decode_step(t, cpu, i);
}

/* ---------------------------------------------------------------------------- verification ---- */

/* Drafts of one cycle. */
typedef struct texts_cycle {
    int32_t tokens[ROWS], parents[ROWS], depth[ROWS], nodes[TEXTS_REQUESTS];
    int is_right[ROWS]; /* the path to the node is the text's */
    float logits[ROWS * TEXTS_VOCAB];
    uint64_t seeds[TEXTS_SLOTS], positions[ROWS];
    int32_t watermarked[ROWS], emitted[TEXTS_REQUESTS], found[ROWS];
} texts_cycle;

/* Drafts the nodes of a request whose text is known up to token `progress`, which is its root. */
static void draft_nodes(watermark_texts *t, texts_cycle *c, int r, int64_t progress, int is_chain)
{
    const int32_t first = r * TEXTS_NODES;
    const int64_t root = t->prompt[r] + progress - 1;
    c->nodes[r] = 1 + (int32_t)random_below(&t->random, TEXTS_NODES);
    for (int32_t j = 0; j < TEXTS_NODES; j++) {
        const int32_t parent = j == 0     ? 0
                               : is_chain ? j - 1
                                          : (int32_t)random_below(&t->random, (uint32_t)j);
        const int32_t depth = j == 0 ? 0 : c->depth[first + parent] + 1;
        const int64_t at = progress + depth - 1; /* place in the text */
        const int32_t right = at < TEXTS_LENGTH ? token_at(t, r, root + depth) : 0;
        c->parents[first + j] = parent;
        c->depth[first + j] = depth;
        c->tokens[first + j] = random_below(&t->random, 5)
                                   ? right
                                   : (int32_t)random_below(&t->random, TEXTS_VOCAB + 2) - 1;
        if (j == 0)
            c->tokens[first] = token_at(t, r, root);
        int is_first = 1; /* of siblings with this token */
        for (int32_t k = 1; k < j; k++)
            is_first &=
                c->parents[first + k] != parent || c->tokens[first + k] != c->tokens[first + j];
        c->is_right[first + j] = j == 0 || (is_first && c->is_right[first + parent] &&
                                            at < TEXTS_LENGTH && c->tokens[first + j] == right);
        const int32_t before = j == 0 ? token_at(t, r, root - 1) : c->tokens[first + parent];
        compute_logits(before, c->tokens[first + j], c->logits + (first + j) * TEXTS_VOCAB);
    }
}

/* Whether gumbel_watermark_rows() with drafts writes the positions of the nodes of right chains. */
static int drafter_agrees(const watermark_texts *t, gumbel_device *device, const texts_cycle *c)
{
    uint64_t seeds[TEXTS_SLOTS], positions[TEXTS_SLOTS];
    int32_t watermarked[TEXTS_REQUESTS];
    gumbel_watermark w = t->watermark;
    gumbel_error error = {"", ""};
    gumbel_watermark_draws draws = {.struct_size = sizeof draws,
                                    .seed = seeds,
                                    .position = positions,
                                    .watermarked = watermarked};
    w.drafts = c->tokens + 1;
    w.draft_stride = TEXTS_NODES;
    for (w.num_drafts = 0; w.num_drafts < TEXTS_NODES; w.num_drafts++) {
        if (report_call(
                "watermark_rows",
                gumbel_watermark_rows(device, NULL, &w, &t->recent, TEXTS_REQUESTS, &draws, &error),
                &error))
            return 0;
        for (int r = 0; r < TEXTS_REQUESTS; r++) {
            const int32_t row = r * TEXTS_NODES + w.num_drafts;
            if (w.num_drafts < c->nodes[r] && (positions[t->of_row[r]] != c->positions[row] ||
                                               seeds[t->of_row[r]] != c->seeds[t->of_row[r]] ||
                                               watermarked[r] != c->watermarked[row])) {
                printf("request %d: the drafter's draw %d differs\n", r, (int)w.num_drafts);
                return 0;
            }
        }
    }
    return 1;
}

/* Whether the emitted tokens of a request are its text's; advances its progress. */
static int emitted_agrees(const watermark_texts *t, const texts_cycle *c, int r, int64_t *progress)
{
    const int32_t first = r * TEXTS_NODES;
    int32_t deepest = 0;
    for (int32_t j = 0; j < c->nodes[r]; j++)
        if (c->is_right[first + j] && c->depth[first + j] > deepest)
            deepest = c->depth[first + j];
    if (c->emitted[r] < deepest + 1) {
        printf("request %d emitted %d tokens of %d\n", r, (int)c->emitted[r], (int)deepest + 1);
        return 0;
    }
    for (int32_t i = 0; i < c->emitted[r] && *progress < TEXTS_LENGTH; i++, (*progress)++)
        if (c->found[first + i] != t->text[r][*progress]) {
            printf("request %d, token %d: %d, expected %d\n", r, (int)*progress,
                   (int)c->found[first + i], (int)t->text[r][*progress]);
            return 0;
        }
    return 1;
}

/* Watermarks and verifies the drafts of a cycle. */
static int verify_cycle(watermark_texts *t, gumbel_device *device, texts_cycle *c, int is_chain)
{
    static unsigned char workspace[WORKSPACE] __attribute__((aligned(64)));
    gumbel_error error = {"", ""};
    gumbel_watermark_draws draws = {.struct_size = sizeof draws,
                                    .seed = c->seeds,
                                    .position = c->positions,
                                    .watermarked = c->watermarked};
    gumbel_draft draft = {.struct_size = sizeof draft,
                          .requests = TEXTS_REQUESTS,
                          .max_nodes = TEXTS_NODES,
                          .tokens = c->tokens,
                          .nodes = c->nodes,
                          .parents = is_chain ? NULL : c->parents};
    gumbel_logits in = {.struct_size = sizeof in};
    in.logits = tensor_of(c->logits, GUMBEL_FLOAT32, ROWS, TEXTS_VOCAB, 0);
    const gumbel_sampling how = sampling_of(t, c->seeds, t->own_position);
    const gumbel_verified to = {.struct_size = sizeof to,
                                .tokens = c->found,
                                .emitted = c->emitted,
                                .position = t->own_position};
    if (report_call("watermark_nodes",
                    gumbel_watermark_nodes(device, NULL, &t->watermark, &t->recent, &draft, ROWS,
                                           &draws, &error),
                    &error))
        return 0;
    if (is_chain && !drafter_agrees(t, device, c))
        return 0;
    draft.node_position = c->positions;
    return !report_call("verify_logits",
                        gumbel_verify_logits(device, NULL, &in, &how, &draft, &to, workspace,
                                             sizeof workspace, &error),
                        &error);
}

int watermark_texts_verify(watermark_texts *t, gumbel_device *cpu, gumbel_device *device,
                           watermark_texts_counts *counts)
{
    int64_t progress[TEXTS_REQUESTS] = {0};
    texts_cycle *c = make_zeroed(1, sizeof *c);
    int good = 1, more = 1;
    start_rings(t, cpu);
    for (; more && good;) {
        const int is_chain = (int)random_below(&t->random, 2);
        for (int r = 0; r < TEXTS_REQUESTS; r++)
            draft_nodes(t, c, r, progress[r], is_chain);
        good = verify_cycle(t, device, c, is_chain);
        more = 1;
        for (int r = 0; r < TEXTS_REQUESTS && good; r++) {
            counts->cycles++;
            counts->emitted += c->emitted[r];
            good = emitted_agrees(t, c, r, &progress[r]);
            more &= progress[r] < TEXTS_LENGTH;
        }
        if (good && more)
            append_tokens(t, cpu, c->found, TEXTS_NODES, c->emitted);
    }
    free(c);
    return good;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows truncated to few tokens, drawn with screens on a GPU and without: all outputs are compared
 * bit by bit. Heads of all kinds, all orders of truncation, ties, masks, penalties, samples,
 * fallback rows, replays.
 */
#include "cuda_screens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 64, TOP = 5, KEPT = 40 /* places of a row; some rows keep more */ };

static gumbel_error error;

/* Counts since the last printed line. */
static int64_t calls, fallback_calls, draws, listed, scored, rows_listed;

/* Parameters of ROWS rows on the GPU; a call of B rows uses the first B. */
typedef struct row_rules {
    float *temperature, *top_p, *min_p, *some_min_p; /* some_min_p: enabled in all rows */
    float *repetition, *frequency, *presence;
    int32_t *top_k, *mask;
    uint64_t *seed, *position;
    int64_t words;
    gumbel_history history; /* of ROWS rows; has seen some 3/8 of the tokens */
} row_rules;

/* A history that ends a little before the vocabulary. */
static gumbel_history make_history(int64_t vocab)
{
    const int64_t words = (vocab + 31) / 32;
    uint32_t *masks[2] = {make_zeroed((size_t)(ROWS * words), sizeof *masks[0]),
                          make_zeroed((size_t)(ROWS * words), sizeof *masks[0])};
    uint16_t *counts = make_zeroed((size_t)(ROWS * vocab), sizeof *counts);
    uint64_t state = 23;
    for (int64_t i = 0; i < ROWS * words; i++) {
        masks[0][i] = (uint32_t)(random_bits(&state) & random_bits(&state));
        masks[1][i] = (uint32_t)(random_bits(&state) & random_bits(&state) & random_bits(&state));
    }
    for (int64_t i = 0; i < ROWS * vocab; i++)
        if (masks[1][i / vocab * words + i % vocab / 32] >> i % vocab % 32 & 1)
            counts[i] = (uint16_t)(1 + random_below(&state, 3));
    const gumbel_history generated = {
        .struct_size = sizeof generated,
        .vocab_size = vocab,
        .prompt = gpu_copy(masks[0], (size_t)(ROWS * words) * sizeof *masks[0]),
        .output = gpu_copy(masks[1], (size_t)(ROWS * words) * sizeof *masks[1]),
        .counts = gpu_copy(counts, (size_t)(ROWS * vocab) * sizeof *counts)};
    free(masks[0]);
    free(masks[1]);
    free(counts);
    return generated;
}

static row_rules make_rules(int64_t vocab_end)
{
    static const float temperatures[] = {0.8f, 1, 0.3f, 0, 0.7f, 1.3f, 3, 0.05f},
                       top_ps[] = {0.95f, 1, 0.5f, 0.9f, 0.999f, 0.05f},
                       min_ps[] = {0, 0.05f, 0, 0.3f, 1, 0.001f, 0},
                       some_min_ps[] = {0.05f, 0.1f, 1, 0.3f, 0.02f},
                       repetitions[] = {1.3f, 1, 1.01f, 1.1f, 1.0f},
                       frequencies[] = {0, 0.2f, 0, 0, 0.01f, 0},
                       presences[] = {0.02f, 0, 0, 0, 0, 0, 0.3f};
    static const int32_t top_ks[] = {50, 64, 1, 20, 100, 2, 50, 7, 63};
    float temperature[ROWS], top_p[ROWS], min_p[ROWS], some_min_p[ROWS];
    float repetition[ROWS], frequency[ROWS], presence[ROWS];
    int32_t top_k[ROWS];
    uint64_t seed[ROWS], state = 17;
    for (int b = 0; b < ROWS; b++) {
        temperature[b] = temperatures[b % 8];
        top_p[b] = top_ps[b % 6];
        min_p[b] = min_ps[b % 7];
        some_min_p[b] = some_min_ps[b % 5];
        repetition[b] = repetitions[b % 5];
        frequency[b] = frequencies[b % 6];
        presence[b] = presences[b % 7];
        top_k[b] = top_ks[b % 9];
        seed[b] = random_bits(&state);
    }
    row_rules generated = {.words = (vocab_end + 31) / 32};
    generated.temperature = gpu_copy(temperature, sizeof temperature);
    generated.top_p = gpu_copy(top_p, sizeof top_p);
    generated.min_p = gpu_copy(min_p, sizeof min_p);
    generated.some_min_p = gpu_copy(some_min_p, sizeof some_min_p);
    generated.repetition = gpu_copy(repetition, sizeof repetition);
    generated.frequency = gpu_copy(frequency, sizeof frequency);
    generated.presence = gpu_copy(presence, sizeof presence);
    generated.top_k = gpu_copy(top_k, sizeof top_k);
    generated.seed = gpu_copy(seed, sizeof seed);
    generated.position = gpu_copy(seed, sizeof seed);
    generated.mask = copy_masks_to_gpu(ROWS, generated.words, 7);
    generated.history = make_history(vocab_end - 37);
    return generated;
}

static void free_rules(const row_rules *rules)
{
    gpu_free(rules->temperature);
    gpu_free(rules->top_p);
    gpu_free(rules->min_p);
    gpu_free(rules->some_min_p);
    gpu_free(rules->repetition);
    gpu_free(rules->frequency);
    gpu_free(rules->presence);
    gpu_free(rules->history.prompt);
    gpu_free(rules->history.output);
    gpu_free(rules->history.counts);
    gpu_free(rules->top_k);
    gpu_free(rules->seed);
    gpu_free(rules->position);
    gpu_free(rules->mask);
}

typedef struct truncated_call {
    gumbel_truncation truncation;
    gumbel_transforms transforms;
    gumbel_sampling how;
    int with_logprobs; /* log-probabilities; all rows have the first temperature then */
    int with_top;      /* the TOP most likely tokens */
} truncated_call;

/* The index-th call, which selects orders of truncation, rules, ties and outputs by `index`. */
static truncated_call make_call(const row_rules *rules, int index, int32_t samples)
{
    static const gumbel_order orders[] = {
        GUMBEL_ORDER_TOP_K_TOP_P_MIN_P, GUMBEL_ORDER_MIN_P_TOP_K_TOP_P,
        GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE, GUMBEL_ORDER_BEFORE_TEMPERATURE};
    truncated_call call = {
        .truncation = {.struct_size = sizeof call.truncation, .top_k = {rules->top_k, 0}},
        .transforms = {.struct_size = sizeof call.transforms},
        .with_logprobs = index % 5 == 4,
        .with_top = index % 2,
    };
    call.truncation.order = orders[index % 4];
    call.truncation.ties = index / 4 % 2 ? GUMBEL_TIES_EXACT : GUMBEL_TIES_ALL;
    if (index % 3 != 2)
        call.truncation.top_p = (gumbel_row_f32){rules->top_p, 0};
    if (index % 3 != 0)
        call.truncation.min_p = (gumbel_row_f32){rules->min_p, 0};
    if (index % 8 == 5) { /* min_p without top_k */
        call.truncation.top_k = (gumbel_row_i32){NULL, 0};
        call.truncation.min_p = (gumbel_row_f32){rules->some_min_p, 0};
    }
    call.how = (gumbel_sampling){.struct_size = sizeof call.how,
                                 .seed = {rules->seed, 0},
                                 .position = {rules->position, 0},
                                 .num_samples = samples};
    call.how.temperature =
        (gumbel_row_f32){rules->temperature, call.with_logprobs ? GUMBEL_SAME : 0};
    return call;
}

enum { EDIT_MASK = 1, EDIT_PENALTIES = 2, EDITS = 4 };

/* Sets the edits of a call, and its pointers to its own rules; a copied call still points to the
 * original. `edits`: bits of EDIT_MASK, EDIT_PENALTIES. */
static void bind_rules(truncated_call *call, const row_rules *rules, int edits)
{
    if (edits & EDIT_MASK)
        call->transforms.mask = (gumbel_row_i32){rules->mask, rules->words};
    if (edits & EDIT_PENALTIES) {
        call->transforms.history = &rules->history;
        call->transforms.repetition = (gumbel_row_f32){rules->repetition, 0};
        call->transforms.frequency = (gumbel_row_f32){rules->frequency, 0};
        call->transforms.presence = (gumbel_row_f32){rules->presence, 0};
    }
    call->how.truncation = &call->truncation;
    call->how.transforms = edits ? &call->transforms : NULL;
}

/* Outputs of a call with the screen and without. */
typedef struct output_pair {
    outcome *screened, *without;
    gumbel_output out;
    void *workspace;
    size_t bytes;
} output_pair;

static output_pair make_output_pair(const gumbel_head *head, const row_rules *rules,
                                    int32_t samples)
{
    output_pair generated = {.screened = outcome_make(head->hidden.rows, samples),
                             .without = outcome_make(head->hidden.rows, samples)};
    gumbel_head plain = *head;
    outcome_widen(generated.screened, TOP, GUMBEL_PROCESSED);
    outcome_widen(generated.without, TOP, GUMBEL_PROCESSED);
    outcome_list_kept(generated.screened, KEPT);
    outcome_list_kept(generated.without, KEPT);
    generated.out = gpu_output_make(generated.screened);
    plain.screen = (gumbel_screen){NULL, 0, 0};
    for (int edits = 0; edits < EDITS; edits++)
        for (int screened = 0; screened < 2; screened++) {
            truncated_call call = make_call(rules, 4, samples);
            size_t bytes;
            bind_rules(&call, rules, edits);
            if (gumbel_workspace_size(gpu, screened ? head : &plain, NULL, &call.how,
                                      &generated.out, &bytes, &error))
                die("gumbel_workspace_size: %s: %s", error.field, error.message);
            generated.bytes = bytes > generated.bytes ? bytes : generated.bytes;
        }
    generated.workspace = gpu_hostile(generated.bytes);
    return generated;
}

static void free_output_pair(output_pair *generated)
{
    outcome_free(generated->screened);
    outcome_free(generated->without);
    gpu_output_free(&generated->out);
    gpu_free(generated->workspace);
}

/* The outputs that a call requests. */
static gumbel_output select_outputs(const output_pair *pair, const truncated_call *call)
{
    gumbel_output out = pair->out;
    if (!call->with_logprobs) {
        out.lse = out.logprobs = out.top_logprobs = out.kept_logprobs = NULL;
        out.kept = out.kept_ids = NULL;
        out.kept_capacity = 0;
    }
    if (!call->with_top) {
        out.num_top = 0;
        out.top_ids = NULL;
        out.top_logprobs = NULL;
    }
    return out;
}

static void draw_call(const gumbel_head *head, const truncated_call *call, output_pair *pair,
                      outcome *drawn)
{
    gumbel_output out = select_outputs(pair, call);
    void *const of_draws[] = {out.tokens, out.scores, out.ranks, out.logprobs},
                *const of_rows[] = {out.status,       out.lse,      out.kept,         out.top_ids,
                                    out.top_logprobs, out.kept_ids, out.kept_logprobs};
    for (int i = 0; i < 4; i++)
        if (of_draws[i])
            gpu_poison(of_draws[i], (size_t)drawn->batch * (size_t)drawn->samples * 4);
    for (int i = 0; i < 7; i++)
        if (of_rows[i])
            gpu_poison(of_rows[i], (size_t)drawn->batch * (i < 3 ? 1 : i < 5 ? TOP : KEPT) * 4);
    if (gumbel_sample(gpu, NULL, head, &call->how, &out, pair->workspace, pair->bytes, &error))
        die("gumbel_sample: %s: %s", error.field, error.message);
    GPU(cuCtxSynchronize);
    gpu_output_fetch(&pair->out, drawn);
}

/* Counts whether the full pass drew the last call, and otherwise its listed and scored tokens. */
static void count_call(const gumbel_head *head, const truncated_call *call, const output_pair *pair)
{
    const cuda_workspace arrays = find_workspace_arrays(head, &call->how, pair->workspace);
    const int64_t batch = head->hidden.rows;
    uint64_t words[ROWS * CUDA_THRESHOLD_WORDS];
    cuda_screen_state state;
    gpu_fetch(&state, arrays.screen.state, sizeof state);
    gpu_fetch(words, arrays.row_thresholds, (size_t)batch * CUDA_THRESHOLD_WORDS * sizeof *words);
    calls++;
    fallback_calls += state.again != 0;
    for (int64_t b = 0; b < batch && !state.again; b++, rows_listed++)
        listed += (int64_t)(uint32_t)words[b * CUDA_THRESHOLD_WORDS + CUDA_TRUNCATED_COUNTS],
            scored += (int64_t)cuda_count_scored(
                (uint32_t)(words[b * CUDA_THRESHOLD_WORDS + CUDA_TRUNCATED_COUNTS] >> 32));
}

static int compare_draws(const gumbel_head *head, const truncated_call *call, output_pair *pair,
                         const char *what)
{
    gumbel_head without = *head;
    without.screen = (gumbel_screen){NULL, 0, 0};
    draw_call(&without, call, pair, pair->without);
    draw_call(head, call, pair, pair->screened);
    draws += pair->screened->batch * pair->screened->samples;
    count_call(head, call, pair);
    return CHECK(outcome_same(pair->without, 0, pair->screened, OUTCOME_ALL, what), "%s", what);
}

static void print_counts(const char *what)
{
    printf(
        "  %s: %lld calls, %lld by the full pass, %lld draws, %.1f listed and %.1f scored a row\n",
        what, (long long)calls, (long long)fallback_calls, (long long)draws,
        (double)listed / (double)(rows_listed + !rows_listed),
        (double)scored / (double)(rows_listed + !rows_listed));
    calls = fallback_calls = draws = listed = scored = rows_listed = 0;
}

/* Calls of the first rows of a head at different positions, each with other rules and outputs. */
static void compare_calls(const gpu_head *h, const row_rules *rules, int64_t batch, int32_t samples,
                          int count, const char *what)
{
    gumbel_head head = h->head;
    head.hidden.rows = batch;
    output_pair pair = make_output_pair(&head, rules, samples);
    for (int i = 0; i < count; i++) {
        truncated_call call = make_call(rules, i, samples);
        uint64_t position[ROWS];
        for (int b = 0; b < ROWS; b++)
            position[b] = (uint64_t)(b * 1000003 + i);
        gpu_put(rules->position, position, sizeof position);
        bind_rules(&call, rules,
                   (i % 7 == 3 ? EDIT_MASK : 0) | (i % 4 == 1 || i % 5 == 3 ? EDIT_PENALTIES : 0));
        if (!CHECK(is_screened(&head, &call.how), "%s", what) ||
            !compare_draws(&head, &call, &pair, what))
            break;
    }
    free_output_pair(&pair);
}

static void compare_screen(const generated_head *generated, const char *name, screen_kind screen,
                           const int64_t *batches, int count)
{
    gpu_head h = copy_head_to_gpu(generated, screen);
    const row_rules rules = make_rules(generated->weight.rows);
    for (const int64_t *batch = batches; *batch; batch++) {
        char what[96];
        snprintf(what, sizeof what, "%s, %s, V = %lld, D = %lld, B = %lld", name,
                 screen_kind_names[screen], (long long)generated->weight.rows,
                 (long long)generated->weight.cols, (long long)*batch);
        compare_calls(&h, &rules, *batch, *batch % 3 == 1 ? 3 : 1, count, what);
        print_counts(what);
    }
    free_rules(&rules);
    free_gpu_head(&h);
}

static void compare_head_kind(head_kind kind, int64_t vocab, int64_t columns,
                              const int64_t *batches, int count)
{
    const gumbel_dtype dtype = kind == HEAD_STRUCTURED ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16;
    generated_head generated = generate_head(kind, dtype, vocab, columns, ROWS, 3);
    for (int screen = 0; screen < SCREEN_KINDS; screen++)
        compare_screen(&generated, head_kind_names[kind], (screen_kind)screen, batches, count);
    free_generated_head(&generated);
}

void screen_truncated_rows(void)
{
    if (skips_truncated())
        return;
    static const int64_t batches[] = {1, 2, 5, 8, 13, 16, 32, 33, 64, 0};
    static const int64_t columns[HEAD_KINDS] = {512, 1024, 384, 256};
    for (int kind = 0; kind < HEAD_KINDS; kind++)
        compare_head_kind((head_kind)kind, 50000 + 16 * kind, columns[kind], batches, 36);
}

/* The largest hidden size and batch that are planned for a screen. */
void screen_truncated_large(void)
{
    if (skips_truncated())
        return;
    static const int64_t batches[] = {1, 16, 64, 0};
    compare_head_kind(HEAD_GAUSSIAN, 20000, CUDA_SCREEN_TRUNCATED_HIDDEN_MAX, batches, 12);
}

/* A few small calls, for tools such as compute-sanitizer that slow each one to seconds. */
void screen_truncated_small(void)
{
    if (skips_truncated())
        return;
    static const int64_t batches[] = {3, 0};
    compare_head_kind(HEAD_GAUSSIAN, 10000, 136, batches, 4);
}

/* Fallback rows, candidate lists of few tokens, equal rows of weights, a shard, a NaN, penalties
 * that raise logits. */
void screen_truncated_odd(void)
{
    if (skips_truncated())
        return;
    static const char *const names[] = {"short lists", "ties",  "a shard",     "a NaN",
                                        "any top-k",   "zeros", "min_p alone", "raising penalties"};
    for (int i = 0; i < 16; i++) {
        const int odd = i / 2;
        generated_head generated =
            generate_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 30000, 256, ROWS, 9);
        uint16_t *weight = (void *)(uintptr_t)generated.weight.data;
        const int64_t vocab = generated.weight.rows, columns = generated.weight.cols;
        for (int64_t row = vocab / 9; odd == 1 && row < vocab; row++)
            memcpy(weight + row * columns, weight + row % (vocab / 9) * columns,
                   (size_t)columns * 2);
        if (odd == 5)
            memset(weight, 0, (size_t)(vocab * columns) * sizeof *weight);
        if (odd == 3)
            dtype_store_nan(weight, GUMBEL_BFLOAT16, 777 * columns + 5);
        gpu_head h = copy_head_to_gpu(&generated, (screen_kind)(i % SCREEN_KINDS));
        row_rules rules = make_rules(192 + vocab);
        if (odd == 0) {
            gumbel_screen_header header;
            gpu_fetch(&header, h.screen.data, sizeof header);
            header.list_max = 20;
            header.check = gumbel_screen_checksum(&header);
            gpu_put(h.screen.data, &header, sizeof header);
        }
        if (odd == 2) {
            h.head.first_token = 192;
            h.head.vocab_size = 192 + vocab - 777;
        }
        if (odd == 4) {
            static const int32_t all[] = {50, 0, 101, 30000, 1000};
            gpu_put(rules.top_k + 1, all, sizeof all);
        }
        if (odd == 6) { /* more tokens are kept than outputs list as the most likely ones */
            static const int32_t none[ROWS];
            float min_p[ROWS];
            for (int b = 0; b < ROWS; b++)
                min_p[b] = 0.05f;
            gpu_put(rules.top_k, none, sizeof none);
            gpu_put(rules.min_p, min_p, sizeof min_p);
        }
        if (odd == 7) {
            static const float repetition = 0.9f, presence = -0.5f;
            gpu_put(rules.repetition + 1, &repetition, sizeof repetition);
            gpu_put(rules.presence + 5, &presence, sizeof presence);
        }
        compare_calls(&h, &rules, 9, 1, 24, names[odd]);
        compare_calls(&h, &rules, 3, 2, 24, names[odd]);
        print_counts(names[odd]);
        free_rules(&rules);
        free_gpu_head(&h);
        free_generated_head(&generated);
    }
}

void screen_truncated_replays(void)
{
    if (skips_truncated())
        return;
    generated_head generated = generate_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 40000, 256, ROWS, 5);
    gpu_head h = copy_head_to_gpu(&generated, SCREEN_PROBABLE);
    const row_rules rules = make_rules(generated.weight.rows);
    gumbel_head head = h.head, without = h.head;
    head.hidden.rows = without.hidden.rows = 12;
    output_pair pair = make_output_pair(&head, &rules, 1);
    truncated_call call = make_call(&rules, 0, 1);
    const gumbel_output out = select_outputs(&pair, &call);
    bind_rules(&call, &rules, EDIT_PENALTIES);
    without.screen = (gumbel_screen){NULL, 0, 0};
    gpu_graph graph = gpu_graph_begin();
    if (gumbel_sample(gpu, graph.stream, &head, &call.how, &out, pair.workspace, pair.bytes,
                      &error))
        die("%s", error.message);
    gpu_graph_end(&graph);
    for (uint64_t position = 0; position < 20; position++) {
        uint64_t positions[ROWS];
        for (int b = 0; b < ROWS; b++)
            positions[b] = position;
        gpu_put(rules.position, positions, sizeof positions);
        draw_call(&without, &call, &pair, pair.without);
        for (int i = 0; i < 2; i++) {
            gpu_poison(pair.out.tokens, 12 * 4);
            gpu_graph_replay(&graph);
            gpu_output_fetch(&pair.out, pair.screened);
            CHECK(outcome_same(pair.without, 0, pair.screened, OUTCOME_ALL, "replayed"),
                  "position %d", (int)position);
        }
    }
    gpu_graph_free(&graph);
    free_output_pair(&pair);
    free_rules(&rules);
    free_gpu_head(&h);
    free_generated_head(&generated);
}

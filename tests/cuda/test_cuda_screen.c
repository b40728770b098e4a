/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws by a screen on a GPU have the bits of draws without one: heads of all kinds, lists that
 * overflow, rows that are not finite, ties; a screen's certificate against one computed here; and
 * what the sums of tensor cores lose, on rows made for it.
 */
#define _POSIX_C_SOURCE 200112L

#include "api/call.h"
#include "cuda/plan/cuda_plan.h"
#include "cuda_requests.h"
#include "made_heads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A head in device memory, with its screen. */
typedef struct gpu_head {
    gumbel_head head;
    void *weight, *hidden, *screen;
    size_t screen_bytes;
} gpu_head;

static gumbel_error error;

static gpu_head head_on_gpu(const made_head *made)
{
    size_t element = dtype_size(made->weight.dtype);
    gpu_head h = {
        .head = {.struct_size = sizeof h.head, .hidden = made->hidden, .weight = made->weight}};
    h.weight =
        gpu_copy(made->weight.data, (size_t)(made->weight.rows * made->weight.cols) * element);
    h.hidden =
        gpu_copy(made->hidden.data, (size_t)(made->hidden.rows * made->hidden.cols) * element);
    h.head.weight.data = h.weight;
    h.head.hidden.data = h.hidden;
    if (gumbel_screen_size(gpu, &h.head.weight, &h.screen_bytes, &error))
        die("gumbel_screen_size: %s: %s", error.field, error.message);
    h.screen = gpu_make(h.screen_bytes);
    if (gumbel_screen_prepare(gpu, NULL, &h.head.weight, h.screen, h.screen_bytes, &error))
        die("gumbel_screen_prepare: %s: %s", error.field, error.message);
    h.head.screen = h.screen;
    return h;
}

static void free_gpu_head(gpu_head *h)
{
    gpu_free(h->weight);
    gpu_free(h->hidden);
    gpu_free(h->screen);
}

/* Whether a call is for the GPU's screen at all. */
static int is_screened(const gumbel_head *head, const gumbel_sampling *sampling)
{
    char text[4096];
    gumbel_output output = {.struct_size = sizeof output, .tokens = (int32_t *)64};
    if (gumbel_explain(gpu, head, NULL, sampling, &output, text, sizeof text, &error))
        die("gumbel_explain: %s: %s", error.field, error.message);
    return strstr(text, "draw: screen:") != NULL;
}

/* ---------------------------------------------------------------- what a draw leaves behind ---- */

/* Of all draws: calls, those that the full pass drew, and candidates of the others. */
static int64_t calls, fallen, candidates, rows_drawn;

typedef struct screened_draw {
    void *workspace;
    cuda_workspace pieces;
    cuda_screen_state state;
} screened_draw;

static void find_pieces(screened_draw *d, const gumbel_head *head, const gumbel_sampling *sampling)
{
    gumbel_problem call;
    cuda_plan plan;
    gumbel_cursor cursor = {d->workspace, 0};
    if (gumbel_call_of_head(&call, gpu, NULL, head, sampling, &error) ||
        cuda_plan_call(&plan, (cuda_device *)gpu, &call, 0, &error))
        die("%s: %s", error.field, error.message);
    d->pieces = cuda_plan_carve(&plan, &cursor, (cuda_device *)gpu, &call);
    if (!d->pieces.screen.state)
        die("no screened draw");
    gpu_fetch(&d->state, d->pieces.screen.state, sizeof d->state);
}

static void draw_by(const gumbel_head *head, const gumbel_sampling *sampling, outcome *into,
                    screened_draw *d)
{
    size_t rows = (size_t)into->batch, bytes;
    gumbel_output out = {.struct_size = sizeof out,
                         .tokens = gpu_make(rows * sizeof(int32_t)),
                         .scores = gpu_make(rows * sizeof(float)),
                         .status = gpu_make(rows * sizeof(int32_t))};
    if (gumbel_workspace_size(gpu, head, NULL, sampling, &out, &bytes, &error))
        die("gumbel_workspace_size: %s: %s", error.field, error.message);
    d->workspace = gpu_hostile(bytes);
    if (gumbel_sample(gpu, NULL, head, sampling, &out, d->workspace, bytes, &error))
        die("gumbel_sample: %s: %s", error.field, error.message);
    GPU(cuCtxSynchronize);
    gpu_fetch(into->tokens, out.tokens, rows * sizeof(int32_t));
    gpu_fetch(into->scores, out.scores, rows * sizeof(float));
    gpu_fetch(into->status, out.status, rows * sizeof(int32_t));
    gpu_free(out.tokens);
    gpu_free(out.scores);
    gpu_free(out.status);
    if (head->screen)
        find_pieces(d, head, sampling);
}

/* Of a row that differs, what the screen made of the token that it should have drawn. */
static void tell_row(const screened_draw *d, int64_t row, int32_t token)
{
    const int64_t group = row / CUDA_SCREEN_GROUP;
    uint32_t listed = d->state.listed[group], most = CUDA_SCREEN_LISTED_MOST;
    cuda_screen_entry *entries = make_zeroed(most, sizeof *entries);
    gumbel_screen_reach reach;
    int of_row = 0, found = 0;
    gpu_fetch(&reach, d->pieces.screen.reaches + row, sizeof reach);
    gpu_fetch(entries, d->pieces.screen.entries + group * most, most * sizeof *entries);
    for (uint32_t i = 0; i < listed && i < most; i++)
        if (entries[i].row == (uint32_t)row) {
            of_row++;
            if (of_row <= 3 || entries[i].token == (uint32_t)token)
                printf("  candidate %u: token %u, upper %.6f\n", i, entries[i].token,
                       (double)entries[i].upper);
            found |= entries[i].token == (uint32_t)token;
        }
    printf("  row %lld: %d candidates of %u listed, the token is %s; again %u, ended %llu; reach: "
           "unit %g, outliers %g, rest %g, grain %g, path %g\n",
           (long long)row, of_row, listed, found ? "among them" : "NOT among them", d->state.again,
           (unsigned long long)d->state.ended, (double)reach.unit, (double)reach.outliers,
           (double)reach.rest, (double)reach.grain, (double)reach.path);
    free(entries);
}

static int same_bits(const float *a, const float *b)
{
    return memcmp(a, b, sizeof *a) == 0 || (isnan(*a) && isnan(*b));
}

/* Draw with the screen and without; 1 where all is the same. */
static int draws_same(const gumbel_head *head, const gumbel_sampling *sampling, const char *what)
{
    gumbel_head without = *head;
    screened_draw plain = {0}, by = {0};
    outcome *a = outcome_make(head->hidden.rows, 1), *b = outcome_make(head->hidden.rows, 1);
    int same = 1;
    without.screen = NULL;
    draw_by(&without, sampling, a, &plain);
    draw_by(head, sampling, b, &by);
    for (int64_t row = 0; row < a->batch && same; row++) {
        same =
            CHECK(a->tokens[row] == b->tokens[row] && a->status[row] == b->status[row] &&
                      same_bits(&a->scores[row], &b->scores[row]),
                  "%s: row %lld of %lld: token %d, score %a, status %d by the screen; %d, %a, %d "
                  "without",
                  what, (long long)row, (long long)a->batch, b->tokens[row], (double)b->scores[row],
                  b->status[row], a->tokens[row], (double)a->scores[row], a->status[row]);
        if (!same)
            tell_row(&by, row, a->tokens[row]);
    }
    calls++;
    fallen += by.state.again != 0;
    for (int i = 0; i < CUDA_SCREEN_GROUPS && !by.state.again; i++)
        candidates += by.state.listed[i];
    rows_drawn += by.state.again ? 0 : a->batch;
    gpu_free(plain.workspace);
    gpu_free(by.workspace);
    outcome_free(a);
    outcome_free(b);
    return same;
}

static void tell_counts(const char *what)
{
    printf("  %s: %lld calls, %lld by the full pass, %.1f candidates a row\n", what,
           (long long)calls, (long long)fallen,
           rows_drawn ? (double)candidates / (double)rows_drawn : 0.0);
    calls = fallen = candidates = rows_drawn = 0;
}

/* --------------------------------------------------------------------------- many draws ---- */

static const float temperatures[] = {0.8f, 0.0f, 0.3f, 1.0f, 3.0f, 100.0f};
#define TEMPERATURES 6

static int nightly(void) { return getenv("GUMBEL_NIGHTLY") != NULL; }

/* So many calls of all rows, each at another position; the first `hot` temperatures in turns. */
static void draw_many(const gpu_head *h, int count, int hot, const char *what)
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
            temperature[b] = temperatures[((uint64_t)b + position) % (uint64_t)hot];
        gpu_put(on_gpu, temperature, (size_t)batch * sizeof *temperature);
        gpu_put(position_on_gpu, &position, sizeof position);
        if (!draws_same(&h->head, &how, what))
            break;
    }
    free(temperature);
    gpu_free(on_gpu);
    gpu_free(seed_on_gpu);
    gpu_free(position_on_gpu);
}

/* Draw from a made head; `list_most` 0: as it is. */
static void draw_made(made_kind kind, gumbel_dtype dtype, int64_t vocab, int64_t columns,
                      int64_t batch, int count, int hot, int list_most)
{
    made_head made = make_made_head(kind, dtype, vocab, columns, batch, 21 + (uint64_t)batch);
    gpu_head h = head_on_gpu(&made);
    char what[96];
    snprintf(what, sizeof what, "%s %s, V = %lld, D = %lld, B = %lld%s", made_names[kind],
             dtype_name(dtype), (long long)vocab, (long long)columns, (long long)batch,
             list_most ? ", short lists" : "");
    if (list_most) {
        gumbel_screen_header header;
        gpu_fetch(&header, h.screen, sizeof header);
        header.list_most = list_most;
        header.check = gumbel_screen_check_of(&header);
        gpu_put(h.screen, &header, sizeof header);
    }
    draw_many(&h, count, hot, what);
    tell_counts(what);
    free_gpu_head(&h);
    free_made_head(&made);
}

static const int64_t batches[] = {1, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64};
#define BATCHES 11

static void screen_batches(void)
{
    for (int i = 0; i < BATCHES; i++)
        draw_made(MADE_GAUSSIAN, i % 2 ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16, 20000, 256, batches[i],
                  20, 4, 0);
}

static void screen_kinds(void)
{
    for (int kind = 0; kind < MADE_KINDS; kind++)
        for (int i = 0; i < 3; i++)
            draw_made((made_kind)kind, i % 2 ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16, 20000 + 16 * kind,
                      192 + 8 * i, 1 + 7 * i, nightly() ? 2000 : 30, TEMPERATURES, 0);
}

/* Columns that fill no tile, and many; tokens that do not. */
static void screen_shapes(void)
{
    static const int64_t columns[] = {8, 56, 64, 120, 128, 136, 264, 1032, 2048, 4104};
    for (int i = 0; i < 10; i++)
        draw_made(MADE_STRUCTURED, GUMBEL_BFLOAT16, 16 * (1 + 37 * i), columns[i], 1 + i, 6, 4, 0);
    draw_made(MADE_GAUSSIAN, GUMBEL_BFLOAT16, 16, 64, 2, 6, 4, 0);
    draw_made(MADE_GAUSSIAN, GUMBEL_BFLOAT16, 128 * 140, 64, 2, 6, 4, 0);
}

static void screen_lists(void)
{
    draw_made(MADE_GAUSSIAN, GUMBEL_BFLOAT16, 20000, 256, 1, 10, TEMPERATURES, 1);
    draw_made(MADE_GAUSSIAN, GUMBEL_BFLOAT16, 20000, 256, 8, 10, TEMPERATURES, 1);
    draw_made(MADE_STRUCTURED, GUMBEL_FLOAT16, 20000, 256, 40, 10, TEMPERATURES, 2);
}

/* Rows of zeros, equal rows, weights and hidden states that are not finite or very small. */
static void screen_odd(void)
{
    static const char *const names[] = {
        "NaN in a row of weights", "inf in one",    "NaN in h", "inf in h", "h of zeros",
        "equal weights",           "small weights", "small h"};
    const gumbel_dtype dtype = GUMBEL_BFLOAT16;
    for (int odd = 0; odd < 8; odd++) {
        made_head made = make_made_head(MADE_GAUSSIAN, dtype, 4000, 128, 6, 5);
        void *weight = (void *)(uintptr_t)made.weight.data,
             *hidden = (void *)(uintptr_t)made.hidden.data;
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
        gpu_head h = head_on_gpu(&made);
        draw_many(&h, 6, TEMPERATURES, names[odd]);
        tell_counts(names[odd]);
        free_gpu_head(&h);
        free_made_head(&made);
    }
}

/* A shard, and tokens behind its end. */
static void screen_shard(void)
{
    made_head made = make_made_head(MADE_GAUSSIAN, GUMBEL_BFLOAT16, 5008, 128, 5, 5);
    gpu_head h = head_on_gpu(&made);
    h.head.first_token = 192;
    draw_many(&h, 8, 4, "shard");
    h.head.vocab_size = 192 + 4001;
    draw_many(&h, 8, 4, "shard that ends early");
    tell_counts("shards");
    free_gpu_head(&h);
    free_made_head(&made);
}

static void screen_large(void)
{
    draw_made(MADE_GAUSSIAN, GUMBEL_BFLOAT16, 60000, 512, 16, nightly() ? 4000 : 40, 4, 0);
    draw_made(MADE_OUTLIERS, GUMBEL_BFLOAT16, 30000, 1024, 64, nightly() ? 1000 : 20, 4, 0);
}

/* ---------------------------------------------------------------------------- replays ---- */

static void screen_replays(void)
{
    made_head made = make_made_head(MADE_GAUSSIAN, GUMBEL_BFLOAT16, 9600, 256, 12, 5);
    gpu_head h = head_on_gpu(&made);
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
    without.screen = NULL;
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
    free_made_head(&made);
}

/* -------------------------------------------------------------------------- certificates ---- */

/* Of a row, by the bytes of the copy as they lie: what the header's text says of places. */
static int8_t byte_of(const int8_t *copy, int64_t depths, int64_t row, int64_t column)
{
    int64_t in = row % 128, half = in / 64, warp = in % 64 / 16, g = in % 16 / 2, f = in % 2;
    int64_t at = 64 * half + 16 * warp + 8 * f + g;
    int64_t unit = (column % 128 / 16) ^ (at % 8);
    return copy[((row / 128 * depths + column / 128) * 128 + at) * 128 + unit * 16 + column % 16];
}

static int is_finite_row(const made_head *made, int64_t row)
{
    for (int64_t i = 0; i < made->weight.cols; i++)
        if (!isfinite(dtype_load(made->weight.data, made->weight.dtype,
                                 row * made->weight.cols + i)))
            return 0;
    return 1;
}

static void check_row(const made_head *made, const char *screen, const gumbel_screen_parts *parts,
                      int64_t row)
{
    const gumbel_screen_header *header = (const void *)screen;
    const gumbel_screen_block *block =
        (const gumbel_screen_block *)(const void *)(screen + parts->bounds) + row / 64;
    const int64_t columns = made->weight.cols;
    double step = (double)((const float *)(const void *)(screen + parts->steps))[row];
    double error_sum = 0, size = 0, weight = 0, most = 0;
    if (!is_finite_row(made, row)) {
        int bytes = 0;
        for (int64_t i = 0; i < columns; i++)
            bytes |= byte_of((const int8_t *)screen + parts->copy, parts->columns / 128, row, i);
        CHECK(isnan(step) && bytes == 0, "row %lld is not finite: step %g, bytes %d",
              (long long)row, step, bytes);
        return;
    }
    for (int64_t i = 0; i < columns; i++) {
        double w = (double)dtype_load(made->weight.data, made->weight.dtype, row * columns + i);
        double q = byte_of((const int8_t *)screen + parts->copy, parts->columns / 128, row, i);
        error_sum += (w / step - q) * (w / step - q);
        size += q * q;
        weight += w * w;
        most = fmax(most, fabs(w / step - q));
    }
    CHECK(most <= (double)GUMBEL_SCREEN_ENTRY && sqrt(error_sum) <= (double)block->error &&
              sqrt(size) <= (double)block->size && block->error <= header->error &&
              sqrt(weight) <= (double)header->weight,
          "%s, row %lld: an entry is %g off, all %g of %g, size %g of %g, weight %g of %g",
          dtype_name(made->weight.dtype), (long long)row, most, sqrt(error_sum),
          (double)block->error, sqrt(size), (double)block->size, sqrt(weight),
          (double)header->weight);
}

static void screen_certificates(void)
{
    for (int kind = 0; kind < MADE_KINDS; kind++) {
        made_head made =
            make_made_head((made_kind)kind, kind % 2 ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16,
                           1000 + kind, 200 + 7 * kind, 1, 5);
        gpu_head h = head_on_gpu(&made);
        char *screen = make_zeroed(h.screen_bytes, 1);
        gumbel_screen_parts parts;
        gpu_fetch(screen, h.screen, h.screen_bytes);
        const gumbel_screen_header *header = (const void *)screen;
        CHECK(gumbel_screen_lay_out_as(GUMBEL_SCREEN_LAYOUT_TILES, made.weight.rows,
                                       made.weight.cols, &parts) &&
                  parts.bytes == h.screen_bytes,
              "%s", made_names[kind]);
        CHECK(header->check == gumbel_screen_check_of(header), "%s", made_names[kind]);
        for (int64_t row = 0; row < made.weight.rows && !checks_failed(); row++)
            check_row(&made, screen, &parts, row);
        free(screen);
        free_gpu_head(&h);
        free_made_head(&made);
    }
}

/* What gumbel_screen_verify() says of a head's screen: the row at fault, -1 for none, -2 for a
 * screen of another head. */
static int64_t verify(const gpu_head *h)
{
    const char *row;
    switch (gumbel_screen_verify(gpu, NULL, &h->head.weight, h->screen, &error)) {
    case GUMBEL_OK:
        return -1;
    case GUMBEL_ERROR_ARGUMENT:
        row = strstr(error.message, "of row ");
        return row ? strtoll(row + strlen("of row "), NULL, 10) : -2;
    default:
        die("gumbel_screen_verify: %s: %s", error.field, error.message);
    }
}

/* Weights that change behind a screen's back, one of them, far and near; and bounds that do. */
static void screen_stale(void)
{
    for (int kind = 0; kind < MADE_KINDS; kind++) {
        made_head made =
            make_made_head((made_kind)kind, kind % 2 ? GUMBEL_FLOAT16 : GUMBEL_BFLOAT16, 1000, 200,
                           1, 5);
        void *weight = (void *)(uintptr_t)made.weight.data;
        const size_t bytes = 1000 * 200 * dtype_size(made.weight.dtype);
        gpu_head h = head_on_gpu(&made);
        gumbel_screen_header header;
        CHECK(verify(&h) == -1, "%s: %s", made_names[kind], error.message);
        for (int64_t row = 12; row < 1000; row += 12 * 27) { /* rows of no odd kind */
            float was = dtype_load(weight, made.weight.dtype, row * 200 + 199);
            dtype_store(weight, made.weight.dtype, row * 200 + 199, was + 3.0f);
            gpu_put(h.weight, weight, bytes);
            int64_t found = verify(&h);
            CHECK(found == row, "%s: row %lld has changed, it found %lld", made_names[kind],
                  (long long)row, (long long)found);
            dtype_store(weight, made.weight.dtype, row * 200 + 199, was);
        }
        gpu_put(h.weight, weight, bytes);
        gpu_fetch(&header, h.screen, sizeof header);
        header.error *= 0.5f;
        header.check = gumbel_screen_check_of(&header);
        gpu_put(h.screen, &header, sizeof header);
        CHECK(verify(&h) >= 0, "%s: half the error", made_names[kind]);
        header.columns = 192;
        header.check = gumbel_screen_check_of(&header);
        gpu_put(h.screen, &header, sizeof header);
        CHECK(verify(&h) == -2, "%s: other columns", made_names[kind]);
        free_gpu_head(&h);
        free_made_head(&made);
    }
}

/* ------------------------------------------------------------------------------- roundings ---- */

/* Products that cancel, one large among small ones, growing and falling sums, equal ones that all
 * round alike, subnormal ones, random ones: weight i, and what h has there in row b. */
static float rounding_weight(int kind, int64_t i, uint64_t *state)
{
    switch (kind) {
    case 0:
        return i % 2 ? 1.0078125f : 1.0f;
    case 1:
        return i == 0 ? 1.0f : 0x1.fep-13f;
    case 2:
        return 1.9921875f;
    case 3:
        return ldexpf(1.0f + (float)(i % 128) / 128, -(int)(i % 24));
    case 4:
        return i % 16 == 0 ? 1.0f : 0x1.fep-24f;
    case 5:
        return 0x1.fep-70f;
    default:
        return random_normal(state);
    }
}

static float rounding_hidden(int kind, int64_t row, int64_t i, int64_t columns, uint64_t *state)
{
    switch (kind) {
    case 0: /* pairs that cancel all but the last bits */
        return i % 2 ? -1.0f + (float)row / 128 : 1.0f + (float)row / 128;
    case 1:
        return i == 0 ? 1.0f + (float)row / 128 : 1.9921875f;
    case 2: /* all round alike, row after row at another size */
        return 1.0f + (float)row / 128;
    case 3:
        return i < columns / 2 ? 1.0f : -1.0f - (float)row / 128;
    case 4:
        return 1.0f + (float)row / 128;
    case 5:
        return (1.0f + (float)row / 128) * 0x1p-60f;
    default:
        return random_normal(state) * expf(0.1f * (float)row * random_normal(state));
    }
}

/* The largest |score - exact| / (gamma sum |w h|) of greedy draws over 16 equal tokens. */
static double measure_roundings(int kind, int64_t columns, gumbel_dtype dtype)
{
    const int64_t batch = 64;
    size_t element = dtype_size(dtype);
    uint64_t state = 3 + (uint64_t)kind;
    double worst = 0;
    made_head made = {
        .weight = {make_zeroed((size_t)(16 * columns), element), dtype, 16, columns, 0, {0}},
        .hidden = {make_zeroed((size_t)(batch * columns), element), dtype, batch, columns, 0, {0}}};
    void *weight = (void *)(uintptr_t)made.weight.data,
         *hidden = (void *)(uintptr_t)made.hidden.data;
    for (int64_t i = 0; i < columns; i++)
        for (int64_t row = 0; row < 16; row++)
            dtype_store(weight, dtype, row * columns + i,
                        row ? dtype_load(weight, dtype, i) : rounding_weight(kind, i, &state));
    for (int64_t i = 0; i < batch * columns; i++)
        dtype_store(hidden, dtype, i,
                    rounding_hidden(kind, i / columns, i % columns, columns, &state));
    gpu_head h = head_on_gpu(&made);
    float zero = 0, *temperature = gpu_copy(&zero, sizeof zero);
    gumbel_sampling how = {.struct_size = sizeof how, .temperature = {temperature, GUMBEL_SAME}};
    outcome *out = outcome_make(batch, 1);
    screened_draw d = {0};
    h.head.screen = NULL;
    draw_by(&h.head, &how, out, &d);
    for (int64_t b = 0; b < batch; b++) {
        double exact = 0, size = 0;
        for (int64_t i = 0; i < columns; i++) {
            double product = (double)dtype_load(weight, dtype, i) *
                             (double)dtype_load(hidden, dtype, b * columns + i);
            exact += product;
            size += fabs(product);
        }
        double off = fabs((double)out->scores[b] - exact) - (double)CUDA_SCREEN_TINY;
        worst = fmax(worst, off / (CUDA_SCREEN_GAMMA(columns) * size));
    }
    gpu_free(d.workspace);
    gpu_free(temperature);
    outcome_free(out);
    free_gpu_head(&h);
    free_made_head(&made);
    return worst;
}

static void screen_roundings(void)
{
    for (int kind = 0; kind < 8; kind++)
        for (int i = 0; i < 6; i++) {
            static const int64_t columns[] = {16, 64, 512, 4096, 8192, 32768};
            double bf16 = measure_roundings(kind, columns[i], GUMBEL_BFLOAT16);
            CHECK(bf16 <= 1, "kind %d, D = %lld: %g of what is allowed", kind,
                  (long long)columns[i], bf16);
            if (i >= 3)
                printf("  roundings, kind %d, D = %lld: %.4f of gamma\n", kind,
                       (long long)columns[i], bf16);
        }
}

/* Some of it, for tools that take seconds a call. */
static void screen_small(void)
{
    draw_made(MADE_GAUSSIAN, GUMBEL_BFLOAT16, 2000, 136, 5, 2, 4, 0);
    draw_made(MADE_STRUCTURED, GUMBEL_FLOAT16, 1040, 64, 12, 1, 4, 1);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"screen_small", screen_small},     {"screen_certificates", screen_certificates},
        {"screen_batches", screen_batches}, {"screen_kinds", screen_kinds},
        {"screen_shapes", screen_shapes},   {"screen_lists", screen_lists},
        {"screen_odd", screen_odd},         {"screen_shard", screen_shard},
        {"screen_replays", screen_replays}, {"screen_roundings", screen_roundings},
        {"screen_large", screen_large},     {"screen_stale", screen_stale},
        {NULL, NULL},
    };
    /* Also where the full pass is faster. */
    setenv("GUMBEL_RUNGS", "screen", 1);
    return cuda_run_tests(argc, argv, tests);
}

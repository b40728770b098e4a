/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast is a draw with a screen of each format, with truncation and without, compared with the
 * full pass and with a read of the weights?
 *
 *     cmake --preset release && cmake --build --preset release
 *     cc -std=c17 -O2 -D_GNU_SOURCE -Iinclude bench/cpu/bench_screen_truncation.c \
 *        build/release/src/libgumbel.a -lm -lpthread -ldl -o build/bench_screen_truncation
 *     build/bench_screen_truncation D [rounds [threads [commit, for JSON]]]
 *
 * V = 151936, bfloat16, fused, all of the machine's threads, two heads: a Gaussian one, and one
 * with the structure of a real head, whose entropy is a few nats. Each round has its own hidden
 * states, reads the weights, and draws each variant without a screen and then with each. Tokens and
 * scores are compared before times are measured. Times are wall clock: medians, and p10..p90 of the
 * ratios.
 *
 * Another call counts the rows that take the full pass. For this call, one token's weights become
 * NaN after the screen is made, and a bias prevents the token from winning. A full pass then
 * reports a NaN; a draw with the screen does not read these weights.
 */
#define GUMBEL_UNSTABLE 1
#include <gumbel/screen.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define V          151936
#define BATCH_MAX  16
#define ROUNDS_MAX 101
#define SPOILT     5
#define TABLE      65536

typedef struct variant {
    const char *name;
    int32_t top_k;
    float top_p, min_p;
    int outputs; /* also log-probabilities and the TOP likeliest tokens */
} variant;

enum { TOP = 5 };
static const variant variants[] = {
    {"none", 0, 1, 0, 0},
    {"k 50", 50, 1, 0, 0},
    {"p .95", 0, .95f, 0, 0},
    {"min_p .05", 0, 1, .05f, 0},
    {"k 50, p .95", 50, .95f, 0, 0},
    {"all three", 50, .95f, .05f, 0},
    {"k 50, p .95, log-probabilities", 50, .95f, 0, 1},
    {"min_p .05, log-probabilities", 0, 1, .05f, 1},
};
#define VARIANTS ((int)(sizeof variants / sizeof variants[0]))
static const int64_t batches[] = {1, 4, 8, 16};

/* The full pass, and a screen of each format. */
enum { FULL, BYTES, NIBBLES, WAYS };
static const char *const way_names[WAYS] = {"full", "bytes", "nibbles"};

static struct {
    int64_t columns;
    int rounds;
    const char *commit; /* NULL: a table for people */
    gumbel_device *device;
    int threads;
    uint16_t *weight, *hidden; /* [V, D], [rounds + 1, BATCH_MAX, D] */
    gumbel_screen screens[WAYS];
    float table[TABLE]; /* of normal numbers */
    int printed;
} bench;

static uint64_t random_state = 1;

static uint64_t next_random(void)
{
    uint64_t x = random_state += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static double next_uniform(void) { return ((double)(next_random() >> 11) + 0.5) * 0x1p-53; }

static float next_normal(void) { return bench.table[next_random() % TABLE]; }

static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void check(gumbel_status status, const gumbel_error *error)
{
    if (status == GUMBEL_OK)
        return;
    fprintf(stderr, "bench_screen_truncation: %s: %s\n", error->field, error->message);
    exit(1);
}

static void *make_room(size_t bytes)
{
    void *room = aligned_alloc(GUMBEL_WORKSPACE_ALIGNMENT, (bytes + 63) / 64 * 64);
    if (!room) {
        fprintf(stderr, "bench_screen_truncation: no %zu bytes of memory\n", bytes);
        exit(1);
    }
    memset(room, 0, bytes);
    return room;
}

/* ---------------------------------------------------------------------------------- heads ---- */

/* Rows of 1/sqrt(D) normal weights; structured ones have norms of their own and columns', and lean
 * in a common direction. */
static void fill_weights(int structured)
{
    float *common = make_room((size_t)bench.columns * sizeof *common);
    float size = 1.0f / sqrtf((float)bench.columns);
    for (int64_t i = 0; i < bench.columns; i++)
        common[i] = next_normal();
    for (int64_t row = 0; row < V; row++) {
        uint64_t at = next_random();
        float own = structured ? size * expf(0.25f * next_normal()) : size;
        for (int64_t i = 0; i < bench.columns; i++, at = at * 6364136223846793005u + 1) {
            float x = bench.table[at >> 48];
            if (structured)
                x = (0.8f * x + 0.5f * common[i]) * expf(0.3f * common[i]);
            bench.weight[row * bench.columns + i] = to_bf16(own * x);
        }
    }
    free(common);
}

/* Hidden states whose logits have a standard deviation of some 3, leaning to a token each. */
static void fill_hidden(int structured)
{
    int64_t rows = (int64_t)(bench.rounds + 1) * BATCH_MAX;
    for (int64_t b = 0; b < rows; b++) {
        const uint16_t *token = bench.weight + (int64_t)(next_random() % V) * bench.columns;
        for (int64_t i = 0; i < bench.columns; i++) {
            float x = 3.2f * next_normal();
            x += structured ? 9.0f * from_bf16(token[i]) : 0.0f;
            bench.hidden[b * bench.columns + i] = to_bf16(x);
        }
    }
}

static gumbel_head head_of(int64_t batch, int round, int way)
{
    gumbel_head head = {
        .struct_size = sizeof head,
        .hidden = {.data = bench.hidden + round * BATCH_MAX * bench.columns,
                   .dtype = GUMBEL_BFLOAT16,
                   .rows = batch,
                   .cols = bench.columns},
        .weight = {
            .data = bench.weight, .dtype = GUMBEL_BFLOAT16, .rows = V, .cols = bench.columns}};
    head.screen = bench.screens[way];
    return head;
}

/* ---------------------------------------------------------------------------------- calls ---- */

typedef struct result {
    int32_t tokens[BATCH_MAX], status[BATCH_MAX];
    float scores[BATCH_MAX], logprobs[BATCH_MAX], top_logprobs[BATCH_MAX * TOP];
    int32_t top_ids[BATCH_MAX * TOP];
} result;

/* Draws, and returns the milliseconds. `workspace` is large enough for every variant. */
static double draw_rows(const gumbel_head *head, const variant *v, uint64_t position,
                        void *workspace, size_t bytes, result *into)
{
    static const float temperature = 0.8f;
    gumbel_error error;
    gumbel_truncation truncation = {.struct_size = sizeof truncation};
    if (v->top_k > 0)
        truncation.top_k = (gumbel_row_i32){&v->top_k, GUMBEL_SAME};
    if (v->top_p < 1)
        truncation.top_p = (gumbel_row_f32){&v->top_p, GUMBEL_SAME};
    if (v->min_p > 0)
        truncation.min_p = (gumbel_row_f32){&v->min_p, GUMBEL_SAME};
    gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                .temperature = {&temperature, GUMBEL_SAME},
                                .position = {&position, GUMBEL_SAME},
                                .truncation = &truncation};
    gumbel_output output = {.struct_size = sizeof output,
                            .tokens = into->tokens,
                            .scores = into->scores,
                            .status = into->status};
    if (v->outputs) {
        output.logprobs = into->logprobs;
        output.top_logprobs = into->top_logprobs;
        output.top_ids = into->top_ids;
        output.num_top = TOP;
    }
    double start = seconds_now();
    check(gumbel_sample(bench.device, NULL, head, &sampling, &output, workspace, bytes, &error),
          &error);
    return seconds_now() - start;
}

static void *workspace_of(int64_t batch, size_t *bytes)
{
    gumbel_limits limits = {.struct_size = sizeof limits,
                            .batch = batch,
                            .vocab_size = V,
                            .hidden_size = bench.columns,
                            .num_samples = 1,
                            .requests = 1,
                            .screens = 1};
    gumbel_error error;
    check(gumbel_workspace_most(bench.device, &limits, bytes, &error), &error);
    return make_room(*bytes);
}

/* Mean surprise of tokens that are drawn, in nats. */
static double find_entropy(void)
{
    enum { SAMPLES = 64 };
    static const float temperature = 0.8f;
    int32_t tokens[BATCH_MAX * SAMPLES];
    float logprobs[BATCH_MAX * SAMPLES];
    gumbel_head head = head_of(BATCH_MAX, 0, FULL);
    gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                .temperature = {&temperature, GUMBEL_SAME},
                                .num_samples = SAMPLES};
    gumbel_output output = {.struct_size = sizeof output, .tokens = tokens, .logprobs = logprobs};
    gumbel_error error;
    size_t bytes;
    double sum = 0;
    check(gumbel_workspace_size(bench.device, &head, NULL, &sampling, &output, &bytes, &error),
          &error);
    void *workspace = make_room(bytes);
    check(gumbel_sample(bench.device, NULL, &head, &sampling, &output, workspace, bytes, &error),
          &error);
    for (int i = 0; i < BATCH_MAX * SAMPLES; i++)
        sum -= (double)logprobs[i];
    free(workspace);
    return sum / (BATCH_MAX * SAMPLES);
}

/* The share of rows that take the full pass. */
static double full_passes(int64_t batch, int way, const variant *v, void *workspace, size_t bytes)
{
    uint16_t *row = bench.weight + SPOILT * bench.columns, kept = row[0];
    float *bias = make_room(V * sizeof *bias);
    result r;
    int64_t full = 0;
    bias[SPOILT] = -1e30f;
    row[0] = to_bf16(NAN);
    for (int round = 1; round <= bench.rounds; round++) {
        gumbel_head head = head_of(batch, round, way);
        head.bias = (gumbel_tensor){.data = bias, .dtype = GUMBEL_FLOAT32, .rows = 1, .cols = V};
        draw_rows(&head, v, (uint64_t)round, workspace, bytes, &r);
        for (int64_t b = 0; b < batch; b++)
            full += r.status[b] != GUMBEL_ROW_OK;
    }
    row[0] = kept;
    free(bias);
    return (double)full / (double)(batch * bench.rounds);
}

/* ----------------------------------------------------------------------------------- read ---- */

typedef uint64_t vector __attribute__((vector_size(64)));

/* Reads the weights of one of bench.threads threads. */
static void *read_part(void *argument)
{
    const size_t vectors = (size_t)(V * bench.columns) / 32, part = *(const size_t *)argument;
    const vector *at = (const vector *)(const void *)bench.weight;
    vector sums[4] = {{0}};
    size_t i = vectors * part / (size_t)bench.threads / 4 * 4;
    for (; i + 4 <= vectors * (part + 1) / (size_t)bench.threads; i += 4)
        for (int j = 0; j < 4; j++)
            sums[j] ^= at[i + (size_t)j];
    sums[0] ^= sums[1] ^ sums[2] ^ sums[3];
    return sums[0][0] == 1 ? argument : NULL;
}

/* The milliseconds of a read of all weights. */
static double time_read(void)
{
    pthread_t threads[64];
    size_t parts[64];
    double start = seconds_now();
    for (int i = 0; i < bench.threads; i++) {
        parts[i] = (size_t)i;
        pthread_create(&threads[i], NULL, read_part, &parts[i]);
    }
    for (int i = 0; i < bench.threads; i++)
        pthread_join(threads[i], NULL);
    return seconds_now() - start;
}

/* --------------------------------------------------------------------------------- rounds ---- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double find_quantile(const double *of, double q)
{
    double sorted[ROUNDS_MAX];
    memcpy(sorted, of, (size_t)bench.rounds * sizeof *sorted);
    qsort(sorted, (size_t)bench.rounds, sizeof *sorted, compare_doubles);
    return sorted[(int)(q * (bench.rounds - 1) + 0.5)];
}

/* Times of the rounds of one head and batch. */
static struct {
    double read[ROUNDS_MAX], draws[WAYS][VARIANTS][ROUNDS_MAX];
} times;

static void print_line(const char *name, int64_t batch, int way, int v, double passes)
{
    double ratios[ROUNDS_MAX], of_read[ROUNDS_MAX];
    const double *full = times.draws[FULL][v], *screened = times.draws[way][v];
    for (int i = 0; i < bench.rounds; i++) {
        ratios[i] = full[i] / screened[i];
        of_read[i] = screened[i] / times.read[i];
    }
    printf(
        bench.commit
            ? "%s    {\"head\": \"%s\", \"batch\": %d, \"truncation\": \"%s\", \"format\": "
              "\"%s\", \"full_ms\": %.2f, \"screened_ms\": %.2f, \"ratio\": %.2f, \"ratio_p10\": "
              "%.2f, \"ratio_p90\": %.2f, \"of_read\": %.3f, \"of_read_p10\": %.3f, "
              "\"of_read_p90\": %.3f, \"full_passes\": %.4f}"
            : "%s%-11s B = %2d  %-30s %-8s full %7.2f ms  screened %7.2f ms  ratio %.2f "
              "(%.2f .. %.2f)  of the read %.3f (%.3f .. %.3f)  full passes %.4f of rows\n",
        bench.commit && bench.printed++ ? ",\n" : "", name, (int)batch, variants[v].name,
        way_names[way], find_quantile(full, 0.5), find_quantile(screened, 0.5),
        find_quantile(ratios, 0.5), find_quantile(ratios, 0.1), find_quantile(ratios, 0.9),
        find_quantile(of_read, 0.5), find_quantile(of_read, 0.1), find_quantile(of_read, 0.9),
        passes);
    fflush(stdout);
}

/* Draws a variant of a round in each way; round 0 is not timed. */
static void measure_round(int64_t batch, int round, int v, void *workspace, size_t bytes)
{
    result r[WAYS];
    for (int way = 0; way < WAYS; way++) {
        gumbel_head head = head_of(batch, round, way);
        double ms = draw_rows(&head, &variants[v], (uint64_t)round, workspace, bytes, &r[way]);
        if (round > 0)
            times.draws[way][v][round - 1] = ms;
        if (memcmp(r[0].tokens, r[way].tokens, (size_t)batch * 4) ||
            memcmp(r[0].scores, r[way].scores, (size_t)batch * 4) ||
            (variants[v].outputs &&
             memcmp(r[0].logprobs, r[way].logprobs, (size_t)batch * sizeof *r[0].logprobs))) {
            fprintf(stderr, "bench_screen_truncation: %s: results differ\n", variants[v].name);
            exit(1);
        }
    }
}

static void measure_calls(const char *name, int64_t batch)
{
    size_t bytes;
    void *workspace = workspace_of(batch, &bytes);
    for (int round = 0; round <= bench.rounds; round++) {
        double ms = time_read();
        if (round > 0)
            times.read[round - 1] = ms;
        for (int v = 0; v < VARIANTS; v++)
            measure_round(batch, round, v, workspace, bytes);
    }
    for (int v = 0; v < VARIANTS; v++)
        for (int way = BYTES; way < WAYS; way++)
            print_line(name, batch, way, v,
                       full_passes(batch, way, &variants[v], workspace, bytes));
    free(workspace);
}

static void make_screens(void)
{
    gumbel_tensor weight = {
        .data = bench.weight, .dtype = GUMBEL_BFLOAT16, .rows = V, .cols = bench.columns};
    gumbel_error error;
    for (int way = BYTES; way < WAYS; way++) {
        const gumbel_screen_options options = {.struct_size = sizeof options,
                                               .format = way == NIBBLES ? GUMBEL_SCREEN_NIBBLES
                                                                        : GUMBEL_SCREEN_BYTES};
        gumbel_screen *screen = &bench.screens[way];
        check(gumbel_screen_size(bench.device, &weight, &screen->bytes, &error), &error);
        screen->data = make_room(screen->bytes);
        check(gumbel_screen_prepare(bench.device, NULL, &weight, &options, screen, &error), &error);
    }
}

static void measure_head(const char *name, int structured)
{
    fill_weights(structured);
    fill_hidden(structured);
    make_screens();
    if (!bench.commit)
        printf("%s: %.1f nats\n", name, find_entropy());
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++)
        measure_calls(name, batches[i]);
    for (int way = BYTES; way < WAYS; way++)
        free(bench.screens[way].data);
}

int main(int argc, char **argv)
{
    gumbel_device_options options = {.struct_size = sizeof options};
    gumbel_device_info info = {.struct_size = sizeof info};
    gumbel_error error;
    bench.columns = argc > 1 ? atoll(argv[1]) : 0;
    bench.rounds = argc > 2 ? atoi(argv[2]) : 11;
    options.threads = argc > 3 ? atoi(argv[3]) : 0;
    bench.commit = argc > 4 ? argv[4] : NULL;
    if (bench.columns < 1 || bench.columns > 65535 || bench.rounds < 1 ||
        bench.rounds > ROUNDS_MAX) {
        fprintf(stderr, "bench_screen_truncation: D [rounds [threads [commit]]]\n");
        return 1;
    }
    for (int i = 0; i < TABLE; i++)
        bench.table[i] =
            (float)(sqrt(-2 * log(next_uniform())) * cos(6.283185307179586 * next_uniform()));
    check(gumbel_open(&options, &bench.device, &error), &error);
    check(gumbel_describe(bench.device, &info), &error);
    bench.threads = info.threads < 64 ? info.threads : 64;
    bench.weight = make_room((size_t)(V * bench.columns) * 2);
    bench.hidden = make_room((size_t)((bench.rounds + 1) * BATCH_MAX * bench.columns) * 2);
    if (bench.commit)
        printf("{\n  \"commit\": \"%s\",\n  \"isa\": \"%s\",\n  \"threads\": %d,\n  \"shape\": "
               "\"bfloat16, V = %d, D = %d, T = 0.8\",\n  \"rounds\": %d,\n  \"rows\": [\n",
               bench.commit, gumbel_isa_name(info.isa), (int)info.threads, V, (int)bench.columns,
               bench.rounds);
    measure_head("Gaussian", 0);
    measure_head("structured", 1);
    printf("%s", bench.commit ? "\n  ]\n}\n" : "");
    return 0;
}

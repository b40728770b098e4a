/* SPDX-License-Identifier: Apache-2.0
 *
 * How much longer does a draw from logits on the CPU take than reading the row?
 *
 *     cmake --preset release && cmake --build --preset release
 *     cc -std=c17 -O3 -march=native -D_GNU_SOURCE -Iinclude bench/cpu/bench_draw.c \
 *        build/release/src/libgumbel.a -lm -lpthread -ldl -o build/bench_draw
 *     build/bench_draw [--json COMMIT]
 *
 * One thread, float32 rows of V = 151936, Gaussian with standard deviation 2.5, T = 0.8, one row a
 * call: one row that stays in the level-2 cache, 16 rows that stay in a level-3 cache, and 512 rows
 * read from memory. A bare maximum of the row, compiled for this processor, is timed, too. Methods
 * take turns in a rotating order. Printed are the thread's CPU time a row, as median and p10..p90
 * over rounds. Each token is compared with the reference's before anything is timed.
 */
#include <gumbel/gumbel.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define V          151936
#define ROWS_MAX   512
#define ROUNDS_MAX 201

typedef struct route {
    const char *name;
    gumbel_isa isa; /* GUMBEL_ISA_AUTO for the bare maximum */
    int samples;
    int greedy, with_lse;
} route;

typedef struct place {
    const char *name;
    int rows, rounds;
} place;

static const place places[] = {{"L2", 1, 201}, {"L3", 16, 21}, {"memory", ROWS_MAX, 5}};

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* A sum of twelve uniform numbers approximates a Gaussian. */
static float next_normal(uint64_t *state)
{
    float sum = -6;
    for (int i = 0; i < 12; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*state >> 40) * 0x1p-24f;
    }
    return sum;
}

static void fail(const gumbel_error *error)
{
    fprintf(stderr, "bench_draw: %s: %s\n", error->field, error->message);
    exit(1);
}

/* Sixteen independent maxima, so that the latency of instructions does not limit the speed. */
static __attribute__((noinline)) float bare_maximum(const float *y)
{
    float most[64];
    memcpy(most, y, sizeof most);
    for (int i = 64; i < V; i += 64)
        for (int j = 0; j < 64; j++)
            most[j] = y[i + j] > most[j] ? y[i + j] : most[j];
    for (int j = 1; j < 64; j++)
        most[0] = most[j] > most[0] ? most[j] : most[0];
    return most[0];
}

static gumbel_device *open_isa(gumbel_isa isa)
{
    gumbel_device_options options = {.struct_size = sizeof options, .isa = isa, .threads = 1};
    gumbel_device *device = NULL;
    gumbel_error error;
    return gumbel_open(&options, &device, &error) == GUMBEL_OK ? device : NULL;
}

static void draw_row(gumbel_device *device, const route *r, const float *row, uint64_t position,
                     int32_t tokens[8])
{
    static _Alignas(64) char workspace[1 << 20];
    float temperature = r->greedy ? 0.0f : 0.8f, lse;
    gumbel_error error;
    gumbel_logits logits = {.struct_size = sizeof logits, .logits = {row, GUMBEL_FLOAT32, 1, V, 0}};
    gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                .temperature = {&temperature, GUMBEL_SAME},
                                .position = {&position, GUMBEL_SAME},
                                .num_samples = r->samples};
    gumbel_output output = {.struct_size = sizeof output, .tokens = tokens};
    output.lse = r->with_lse ? &lse : NULL;
    if (gumbel_sample_logits(device, NULL, &logits, &sampling, &output, workspace, sizeof workspace,
                             &error) != GUMBEL_OK)
        fail(&error);
}

static void compare_draws(gumbel_device *device, gumbel_device *reference, const route *r,
                          const float *row)
{
    int32_t tokens[8] = {0}, expected[8] = {0};
    for (uint64_t position = 0; position < 3; position++) {
        draw_row(device, r, row, position, tokens);
        draw_row(reference, r, row, position, expected);
        if (memcmp(tokens, expected, sizeof tokens) != 0)
            fail(&(gumbel_error){"token", "it is not the reference's"});
    }
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure_place(const place *at, const route *routes, int count,
                          gumbel_device *const *devices, const float *logits, int json)
{
    static double times[16][ROUNDS_MAX];
    volatile float sink = 0;
    for (int round = -1; round < at->rounds; round++)
        for (int i = 0; i < count; i++) {
            int32_t tokens[8];
            double start = seconds_now();
            for (int row = 0; row < at->rows; row++) {
                const float *y = logits + (size_t)row * V;
                if (routes[i].isa == GUMBEL_ISA_AUTO)
                    sink = bare_maximum(y);
                else
                    draw_row(devices[routes[i].isa], &routes[i], y, (uint64_t)round + 1, tokens);
            }
            if (round >= 0)
                times[i][round] = (seconds_now() - start) / at->rows;
        }
    (void)sink;
    for (int i = 0; i < count; i++) {
        qsort(times[i], (size_t)at->rounds, sizeof **times, compare_doubles);
        double median = times[i][at->rounds / 2], of = median / times[0][at->rounds / 2];
        double low = times[i][at->rounds / 10], high = times[i][at->rounds * 9 / 10];
        const char *isa = routes[i].isa == GUMBEL_ISA_AUTO ? "" : gumbel_isa_name(routes[i].isa);
        if (json)
            printf("%s\n    {\"place\": \"%s\", \"route\": \"%s\", \"isa\": \"%s\", "
                   "\"median_us\": %.2f, \"p10_us\": %.2f, \"p90_us\": %.2f, "
                   "\"of_maximum\": %.3f}",
                   at == places && i == 0 ? "" : ",", at->name, routes[i].name, isa, median, low,
                   high, of);
        else
            printf("%-8s %-9s %-24s %8.1f %7.1f..%-7.1f %6.2f\n", at->name, isa, routes[i].name,
                   median, low, high, of);
    }
}

int main(int argc, char **argv)
{
    int json = argc == 3 && strcmp(argv[1], "--json") == 0, count = 1;
    float *logits = malloc((size_t)ROWS_MAX * V * sizeof *logits);
    gumbel_device *devices[8] = {NULL};
    gumbel_device_info info = {.struct_size = sizeof info};
    route routes[16] = {{"bare maximum", GUMBEL_ISA_AUTO, 1, 0, 0}};
    uint64_t state = 1;
    for (size_t i = 0; i < (size_t)ROWS_MAX * V; i++)
        logits[i] = 2.5f * next_normal(&state);
    for (int isa = GUMBEL_ISA_REFERENCE; isa <= GUMBEL_ISA_NEON; isa++) {
        devices[isa] = open_isa((gumbel_isa)isa);
        if (!devices[isa] || isa == GUMBEL_ISA_REFERENCE)
            continue;
        if (gumbel_describe(devices[isa], &info) != GUMBEL_OK)
            fail(&(gumbel_error){"device", "it cannot be described"});
        routes[count++] = (route){"draw", (gumbel_isa)isa, 1, 0, 0};
        routes[count++] = (route){"draw, 4 samples", (gumbel_isa)isa, 4, 0, 0};
        routes[count++] = (route){"draw, log-normaliser", (gumbel_isa)isa, 1, 0, 1};
        routes[count++] = (route){"greedy", (gumbel_isa)isa, 1, 1, 0};
        for (int i = count - 4; i < count; i++)
            compare_draws(devices[isa], devices[GUMBEL_ISA_REFERENCE], &routes[i], logits);
    }
    if (json)
        printf("{\n  \"commit\": \"%s\",\n  \"machine\": \"%s\",\n"
               "  \"shape\": \"one thread, float32, V = %d, T = 0.8\",\n  \"rows\": [",
               argv[2], info.description, V);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        measure_place(&places[i], routes, count, devices, logits, json);
    if (json)
        printf("\n  ]\n}\n");
    for (int isa = 0; isa < 8; isa++)
        gumbel_close(devices[isa]);
    free(logits);
    return 0;
}

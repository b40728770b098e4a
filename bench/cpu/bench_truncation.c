/* SPDX-License-Identifier: Apache-2.0
 *
 * What does truncation cost on the CPU?
 *
 *     cmake --preset release && cmake --build --preset release
 *     cc -std=c17 -O2 -D_GNU_SOURCE -Iinclude bench/cpu/bench_truncation.c \
 *        build/release/src/libgumbel.a -lm -lpthread -ldl -o build/bench_truncation
 *     build/bench_truncation [rounds [D]]
 *
 * One thread, one row, V = 151936, float32: from logits of a Zipf row with an entropy of 3 nats,
 * and of a Gaussian row with standard deviation 2.5; with D, also fused with bfloat16 weights.
 * Variants take turns, so that disturbances affect all. Printed are the median and p10..p90 of the
 * thread's CPU time. Before it is timed, the kept count of each variant is compared with a sort in
 * double.
 */
#include <gumbel/gumbel.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define V          151936
#define ROUNDS_MAX 1001

typedef struct variant {
    const char *name;
    float min_p, top_p;
    int32_t top_k, num_top;
    gumbel_order order;
    int kept; /* an output: the number of tokens kept */
} variant;

static const variant variants[] = {
    {"plain", 0, 1, 0, 0, 0, 0},
    {"min_p .05", .05f, 1, 0, 0, 0, 0},
    {"top_k 40", 0, 1, 40, 0, 0, 0},
    {"top_k 5000", 0, 1, 5000, 0, 0, 0},
    {"top_p .95", 0, .95f, 0, 0, 0, 0},
    {"top_p 1 - 2^-24", 0, 1 - 0x1p-24f, 0, 0, 0, 0},
    {"k 40, p .95, min_p .05", .05f, .95f, 40, 0, 0, 0},
    {"the same, joint", .05f, .95f, 40, 0, GUMBEL_ORDER_JOINT, 0},
    {"the same, min_p last", .05f, .95f, 40, 0, GUMBEL_ORDER_TOP_K_TOP_P_MIN_P, 0},
    {"the same, then T", .05f, .95f, 40, 0, GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE, 0},
    {"p .95, min_p .05", .05f, .95f, 0, 0, 0, 0},
    {"the same, min_p last", .05f, .95f, 0, 0, GUMBEL_ORDER_TOP_K_TOP_P_MIN_P, 0},
    {"k 40, p .95, min_p .05, 20 listed", .05f, .95f, 40, 20, 0, 1},
};
#define VARIANTS ((int)(sizeof variants / sizeof variants[0]))

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static uint64_t state = 1;

static double next_uniform(void)
{
    uint64_t x = state += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return ((double)((x ^ (x >> 31)) >> 11) + 0.5) * 0x1p-53;
}

static double next_normal(void)
{
    return sqrt(-2 * log(next_uniform())) * cos(6.283185307179586 * next_uniform());
}

static double zipf_entropy(double s)
{
    double mass = 0, energy = 0;
    for (int i = 1; i <= V; i++) {
        double p = pow(i, -s);
        mass += p;
        energy += p * s * log(i);
    }
    return log(mass) + energy / mass;
}

/* Zipf of the exponent that gives 3 nats, its tokens shuffled. */
static void fill_peaked(float *row)
{
    double low = 1, high = 4;
    for (int i = 0; i < 30; i++) {
        double middle = (low + high) / 2;
        *(zipf_entropy(middle) > 3 ? &low : &high) = middle;
    }
    for (int i = 0; i < V; i++)
        row[i] = (float)(-low * log(i + 1));
    for (int i = V - 1; i > 0; i--) {
        int j = (int)(next_uniform() * (i + 1));
        float swapped = row[i];
        row[i] = row[j];
        row[j] = swapped;
    }
}

static void fill_gaussian(float *row)
{
    for (int i = 0; i < V; i++)
        row[i] = (float)(2.5 * next_normal());
}

static void fail(const gumbel_error *error)
{
    fprintf(stderr, "bench_truncation: %s: %s\n", error->field, error->message);
    exit(1);
}

/* A call that can be repeated. */
typedef struct call {
    gumbel_device *device;
    const gumbel_head *head;
    const gumbel_logits *logits;
    gumbel_sampling sampling;
    gumbel_truncation truncation;
    gumbel_output output;
    int32_t token, kept, ids[128];
    uint64_t position;
    void *workspace;
    size_t bytes;
} call;

static void prepare_call(call *c, const variant *v)
{
    gumbel_error error;
    c->truncation = (gumbel_truncation){.struct_size = sizeof c->truncation,
                                        .min_p = {&v->min_p, GUMBEL_SAME},
                                        .top_k = {&v->top_k, GUMBEL_SAME},
                                        .top_p = {&v->top_p, GUMBEL_SAME},
                                        .order = v->order};
    c->sampling = (gumbel_sampling){.struct_size = sizeof c->sampling,
                                    .position = {&c->position, GUMBEL_SAME}};
    if (v->min_p > 0 || v->top_k > 0 || v->top_p < 1)
        c->sampling.truncation = &c->truncation;
    c->output = (gumbel_output){.struct_size = sizeof c->output, .tokens = &c->token};
    c->output.num_top = v->num_top;
    c->output.top_ids = v->num_top > 0 ? c->ids : NULL;
    c->output.kept = v->kept ? &c->kept : NULL;
    if (gumbel_workspace_size(c->device, c->head, c->logits, &c->sampling, &c->output, &c->bytes,
                              &error) != GUMBEL_OK)
        fail(&error);
    c->workspace = aligned_alloc(64, (c->bytes + 63) / 64 * 64);
    memset(c->workspace, 0, c->bytes);
}

static void run_call(call *c)
{
    gumbel_error error;
    gumbel_status status = c->head
                               ? gumbel_sample(c->device, NULL, c->head, &c->sampling, &c->output,
                                               c->workspace, c->bytes, &error)
                               : gumbel_sample_logits(c->device, NULL, c->logits, &c->sampling,
                                                      &c->output, c->workspace, c->bytes, &error);
    if (status != GUMBEL_OK)
        fail(&error);
    c->position++;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Number of tokens of a row without ties that the rules keep, by a sort. */
static int count_kept(const float *row, const variant *v)
{
    static double z[V];
    double mass = 0, above = 0;
    int count = 0, kept = 0, k = v->top_k > 0 ? v->top_k : V, summed;
    for (int i = 0; i < V; i++)
        z[i] = -row[i];
    qsort(z, V, sizeof *z, compare_doubles);
    while (count < V && count < k && (v->min_p == 0 || -z[count] >= -z[0] + log(v->min_p)))
        count++;
    summed = v->order == GUMBEL_ORDER_JOINT               ? V
             : v->order == GUMBEL_ORDER_MIN_P_TOP_K_TOP_P ? count
                                                          : k;
    for (int i = 0; i < summed; i++)
        mass += exp(z[0] - z[i]);
    for (; kept < count && (v->top_p == 1 || above < v->top_p * mass); kept++)
        above += exp(z[0] - z[kept]);
    return kept;
}

static void compare_kept(gumbel_device *device, const gumbel_logits *logits, const variant *v)
{
    variant with_count = *v;
    with_count.kept = 1;
    call c = {.device = device, .logits = logits};
    prepare_call(&c, &with_count);
    run_call(&c);
    int expected = count_kept(logits->logits.data, v);
    if (abs(c.kept - expected) > expected / 10000 + (v->top_p > 0.9999f ? expected : 0))
        fprintf(stderr, "bench_truncation: %s keeps %d, not %d\n", v->name, (int)c.kept, expected);
    free(c.workspace);
}

/* Times all variants in turns. */
static void measure_variants(const char *name, gumbel_device *device, const gumbel_head *head,
                             const gumbel_logits *logits, int rounds)
{
    static double times[VARIANTS][ROUNDS_MAX];
    call calls[VARIANTS];
    memset(calls, 0, sizeof calls);
    for (int v = 0; v < VARIANTS; v++) {
        calls[v].device = device;
        calls[v].head = head;
        calls[v].logits = logits;
        prepare_call(&calls[v], &variants[v]);
        run_call(&calls[v]);
    }
    for (int i = 0; i < rounds; i++)
        for (int v = 0; v < VARIANTS; v++) {
            double start = seconds_now();
            run_call(&calls[v]);
            times[v][i] = seconds_now() - start;
        }
    printf("\n%s\n%-34s %10s %19s %8s\n", name, "", "median us", "p10..p90", "ratio");
    double plain = 0;
    for (int v = 0; v < VARIANTS; v++) {
        qsort(times[v], (size_t)rounds, sizeof **times, compare_doubles);
        double median = times[v][rounds / 2];
        plain = v == 0 ? median : plain;
        printf("%-34s %10.0f %9.0f..%-8.0f %8.3f\n", variants[v].name, median,
               times[v][rounds / 10], times[v][rounds * 9 / 10], median / plain);
        free(calls[v].workspace);
    }
}

static void measure_fused(gumbel_device *device, int64_t hidden_size, int rounds)
{
    uint16_t *weight = malloc((size_t)V * (size_t)hidden_size * sizeof *weight);
    float *hidden = malloc((size_t)hidden_size * sizeof *hidden);
    for (int64_t i = 0; i < V * hidden_size; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        weight[i] = (uint16_t)(0x3c00 | (state >> 48 & 0x807f)); /* +-2^-7 .. 2^-6 */
    }
    for (int64_t i = 0; i < hidden_size; i++)
        hidden[i] = (float)(next_normal() * 220 / sqrt((double)hidden_size));
    gumbel_head head = {.struct_size = sizeof head,
                        .hidden = {hidden, GUMBEL_FLOAT32, 1, hidden_size, 0},
                        .weight = {weight, GUMBEL_BFLOAT16, V, hidden_size, 0}};
    measure_variants("fused, bfloat16", device, &head, NULL, rounds);
    free(weight);
    free(hidden);
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 101;
    rounds = rounds < 1 ? 1 : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
    float *row = malloc(V * sizeof *row);
    gumbel_logits logits = {.struct_size = sizeof logits, .logits = {row, GUMBEL_FLOAT32, 1, V, 0}};
    gumbel_device_options options = {.struct_size = sizeof options, .threads = 1};
    gumbel_device_info info = {.struct_size = sizeof info};
    gumbel_device *device;
    gumbel_error error;
    if (gumbel_open(&options, &device, &error) != GUMBEL_OK)
        fail(&error);
    if (gumbel_describe(device, &info) != GUMBEL_OK)
        fail(&(gumbel_error){"device", "it cannot be described"});
    printf("%s, %s, 1 thread, V = %d, %d rounds\n", info.description, gumbel_isa_name(info.isa), V,
           rounds);
    for (int kind = 0; kind < 2; kind++) {
        kind == 0 ? fill_peaked(row) : fill_gaussian(row);
        for (int v = 0; v < VARIANTS; v++)
            compare_kept(device, &logits, &variants[v]);
        measure_variants(kind == 0 ? "from logits, Zipf of 3 nats" : "from logits, Gaussian of 2.5",
                         device, NULL, &logits, rounds);
    }
    if (argc > 2)
        measure_fused(device, atoll(argv[2]), rounds < 15 ? rounds : 15);
    gumbel_close(device);
    free(row);
    return 0;
}

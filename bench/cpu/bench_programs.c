/* SPDX-License-Identifier: Apache-2.0
 *
 * How long do draws by programs take on the CPU, compared with draws by an order, with reading the
 * row alone, and with llama.cpp's own chain?
 *
 * usage: bench_programs ROUNDS      (bench_programs.py builds it, with llama.cpp or without)
 *
 * One thread, one row a call, float32, V = 151936, Gaussian with standard deviation 2.5: sixteen
 * rows in turn, which are in a level-3 cache, and the same if each is read before it is drawn from,
 * so that it is in a level-2 cache of 1 MiB. Contestants take turns. Prints the thread's CPU time
 * as JSON, in microseconds: median, p10 and p90. Before anything is timed, tokens are compared with
 * those of the reference kernels. The chain of llama.cpp (BENCH_LLAMA) is timed with the list of
 * all tokens that it requires, and without.
 */
#include <gumbel/programs.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef BENCH_LLAMA
#include <llama.h>
#endif

enum { V = 151936, ROWS = 16, ROUNDS_MAX = 1000, WARM_ROUNDS = 16 };

enum {
    T = GUMBEL_PROGRAM_TEMPERATURE,
    M = GUMBEL_PROGRAM_MIN_P,
    K = GUMBEL_PROGRAM_TOP_K,
    P = GUMBEL_PROGRAM_TOP_P,
    Y = GUMBEL_PROGRAM_TYPICAL_P,
    S = GUMBEL_PROGRAM_TOP_N_SIGMA,
    E = GUMBEL_PROGRAM_EPSILON,
    H = GUMBEL_PROGRAM_ETA,
    X = GUMBEL_PROGRAM_XTC,
};

/* A contestant; parameters that are 0 are off. A program without rules is an order: rules apply to
 * z, or if `before` is set before the temperature. */
typedef struct contestant {
    const char *name;
    uint8_t rules[GUMBEL_PROGRAM_LENGTH];
    int before;
    int32_t top_k;
    float top_p, min_p, typical_p, top_n_sigma, epsilon, eta, xtc_probability;
    int llama; /* compared with llama.cpp's chain of these rules */
} contestant;

#define DEFAULT_RULES {S, K, Y, P, M, X, T}, .top_k = 40, .top_p = .95f, .min_p = .05f

/* clang-format off */
static const contestant contestants[] = {
    {"default program: k 40, p .95, min_p .05, T", DEFAULT_RULES, .llama = 1},
    {"the same as an order", {0}, .before = 1, .top_k = 40, .top_p = .95f, .min_p = .05f},
    {"default with top_n_sigma 2, typical .9, XTC .5", DEFAULT_RULES, .top_n_sigma = 2,
     .typical_p = .9f, .xtc_probability = .5f, .llama = 1},
    {"T, p .9, an order", {0}, .top_p = .9f},
    {"T, typical .9", {T, Y}, .typical_p = .9f, .llama = 1},
    {"T, epsilon .0003", {T, E}, .epsilon = 3e-4f},
    {"T, eta .0003", {T, H}, .eta = 3e-4f},
    {"T, top_n_sigma 2", {T, S}, .top_n_sigma = 2},
    {"k 50, p .95, T, an order", {0}, .before = 1, .top_k = 50, .top_p = .95f},
    {"k 50, typical .9, T", {K, Y, T}, .top_k = 50, .typical_p = .9f},
    {"k 50, top_n_sigma 1, T", {K, S, T}, .top_k = 50, .top_n_sigma = 1},
    {"k 50, epsilon .001, T", {K, E, T}, .top_k = 50, .epsilon = 1e-3f},
    {"k 50, eta .001, T", {K, H, T}, .top_k = 50, .eta = 1e-3f},
    {"k 50, XTC .5, T", {K, X, T}, .top_k = 50, .xtc_probability = .5f},
};
/* clang-format on */
#define CONTESTANTS ((int)(sizeof contestants / sizeof *contestants))

static const float temperature = .8f, xtc_threshold = .1f;
static const uint64_t seed = 1;
static float logits[ROWS][V];

static double get_cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void fail(const char *message)
{
    fprintf(stderr, "bench_programs: %s\n", message);
    exit(1);
}

static double next_uniform(void)
{
    static uint64_t state = 1;
    uint64_t x = state += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return ((double)((x ^ (x >> 31)) >> 11) + 0.5) * 0x1p-53;
}

/* Independent maxima, so that the latency of instructions does not limit the speed. */
static __attribute__((noinline)) float find_maximum(const float *row)
{
    float most[64];
    memcpy(most, row, sizeof most);
    for (int i = 64; i < V; i += 64)
        for (int j = 0; j < 64; j++)
            most[j] = row[i + j] > most[j] ? row[i + j] : most[j];
    for (int j = 1; j < 64; j++)
        most[0] = most[j] > most[0] ? most[j] : most[0];
    return most[0];
}

/* ------------------------------------------------------------------------------- draws ---- */

/* A call that can be repeated. */
typedef struct call {
    gumbel_device *device;
    gumbel_programs programs;
    gumbel_truncation truncation;
    gumbel_sampling sampling;
    gumbel_output output;
    uint64_t position;
    int32_t token;
    float logprob;
    void *workspace;
    size_t bytes;
} call;

static gumbel_row_f32 set_value(const float *value, int is_on)
{
    return is_on ? (gumbel_row_f32){value, GUMBEL_SAME} : (gumbel_row_f32){NULL, 0};
}

static gumbel_logits describe_row(int row)
{
    return (gumbel_logits){.struct_size = sizeof(gumbel_logits),
                           .logits = {logits[row], GUMBEL_FLOAT32, 1, V, 0}};
}

/* Every rule that the program lists has a parameter, so that the call must read which are on. */
static void set_program(call *c, const contestant *of)
{
    static const float typical_off = 1;
    c->programs = (gumbel_programs){.struct_size = sizeof c->programs,
                                    .rules = of->rules,
                                    .count = 1,
                                    .top_n_sigma = set_value(&of->top_n_sigma, 1),
                                    .epsilon = set_value(&of->epsilon, 1),
                                    .eta = set_value(&of->eta, 1),
                                    .xtc_probability = set_value(&of->xtc_probability, 1),
                                    .xtc_threshold = set_value(&xtc_threshold, 1)};
    c->programs.typical_p = set_value(of->typical_p > 0 ? &of->typical_p : &typical_off, 1);
    c->truncation.programs = &c->programs;
}

static void prepare_call(call *c, gumbel_device *device, const contestant *of)
{
    gumbel_error error;
    const gumbel_logits row = describe_row(0);
    *c = (call){.device = device};
    c->truncation = (gumbel_truncation){.struct_size = sizeof c->truncation,
                                        .min_p = set_value(&of->min_p, of->min_p > 0),
                                        .top_p = set_value(&of->top_p, of->top_p > 0)};
    if (of->top_k > 0)
        c->truncation.top_k = (gumbel_row_i32){&of->top_k, GUMBEL_SAME};
    if (of->rules[0])
        set_program(c, of);
    else if (of->before)
        c->truncation.order = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE;
    c->sampling = (gumbel_sampling){.struct_size = sizeof c->sampling,
                                    .temperature = set_value(&temperature, 1),
                                    .seed = {&seed, GUMBEL_SAME},
                                    .position = {&c->position, GUMBEL_SAME},
                                    .truncation = &c->truncation};
    c->output = (gumbel_output){
        .struct_size = sizeof c->output, .tokens = &c->token, .logprobs = &c->logprob};
    if (gumbel_workspace_size(device, NULL, &row, &c->sampling, &c->output, &c->bytes, &error))
        fail(error.message);
    c->workspace = aligned_alloc(64, (c->bytes + 63) / 64 * 64);
    if (!c->workspace)
        fail("out of memory");
}

static void run_call(call *c, int row)
{
    gumbel_error error;
    const gumbel_logits from = describe_row(row);
    if (gumbel_sample_logits(c->device, NULL, &from, &c->sampling, &c->output, c->workspace,
                             c->bytes, &error))
        fail(error.message);
}

static gumbel_device *open_device(gumbel_isa isa)
{
    gumbel_device_options options = {.struct_size = sizeof options, .isa = isa, .threads = 1};
    gumbel_device *device;
    gumbel_error error;
    if (gumbel_open(&options, &device, &error))
        fail(error.message);
    return device;
}

static void compare_draws(gumbel_device *device, gumbel_device *reference, const contestant *of)
{
    call own, expected;
    prepare_call(&own, device, of);
    prepare_call(&expected, reference, of);
    for (int row = 0; row < ROWS; row++) {
        own.position = expected.position = (uint64_t)row;
        run_call(&own, row);
        run_call(&expected, row);
        if (own.token != expected.token || memcmp(&own.logprob, &expected.logprob, sizeof(float)))
            fail("the token is not the reference's");
    }
    free(own.workspace);
    free(expected.workspace);
}

/* --------------------------------------------------------------------------- llama.cpp ---- */

#ifdef BENCH_LLAMA
static struct llama_sampler *make_llama_chain(const contestant *of)
{
    struct llama_sampler_chain_params params = llama_sampler_chain_default_params();
    struct llama_sampler *chain = llama_sampler_chain_init(params);
    const float typical_p = of->typical_p > 0 ? of->typical_p : 1;
    for (const uint8_t *rule = of->rules; *rule; rule++) {
        struct llama_sampler *own = NULL;
        if (*rule == S)
            own = llama_sampler_init_top_n_sigma(of->top_n_sigma > 0 ? of->top_n_sigma : -1);
        else if (*rule == K)
            own = llama_sampler_init_top_k(of->top_k);
        else if (*rule == Y)
            own = llama_sampler_init_typical(typical_p, 1);
        else if (*rule == P)
            own = llama_sampler_init_top_p(of->top_p, 1);
        else if (*rule == M)
            own = llama_sampler_init_min_p(of->min_p, 1);
        else if (*rule == X)
            own = llama_sampler_init_xtc(of->xtc_probability, xtc_threshold, 1, 1);
        else if (*rule == T)
            own = llama_sampler_init_temp_ext(temperature, 0, 1);
        if (!own)
            fail("llama.cpp lacks a rule");
        llama_sampler_chain_add(chain, own);
    }
    llama_sampler_chain_add(chain, llama_sampler_init_dist(1));
    return chain;
}

/* Times the list of all tokens, and the chain. */
static void time_llama(struct llama_sampler *chain, const float *row, double *list, double *apply)
{
    static llama_token_data data[V];
    const double start = get_cpu_us();
    for (int i = 0; i < V; i++)
        data[i] = (llama_token_data){i, row[i], 0};
    const double listed = get_cpu_us();
    llama_token_data_array tokens = {data, V, -1, false};
    llama_sampler_apply(chain, &tokens);
    *apply = get_cpu_us() - listed;
    *list = listed - start;
}
#endif

/* ------------------------------------------------------------------------------ rounds ---- */

static double times[CONTESTANTS][ROUNDS_MAX], read_times[ROUNDS_MAX];
static double list_times[CONTESTANTS][ROUNDS_MAX], chain_times[CONTESTANTS][ROUNDS_MAX];
static call calls[CONTESTANTS];
#ifdef BENCH_LLAMA
static struct llama_sampler *chains[CONTESTANTS];
#endif

/* The row of the next call; sixteen in turn, as branches are predicted if one row is repeated.
 * `hot`: the row is read now. */
static int take_row(int hot)
{
    static int count;
    static volatile float sink;
    const int row = count++ % ROWS;
    if (hot)
        sink = sink + find_maximum(logits[row]);
    return row;
}

static void run_round(int round, int hot)
{
    static volatile float sink;
    int row = take_row(hot);
    double start = get_cpu_us();
    sink = sink + find_maximum(logits[row]);
    read_times[round] = get_cpu_us() - start;
    for (int i = 0; i < CONTESTANTS; i++) {
#ifdef BENCH_LLAMA
        if (chains[i])
            time_llama(chains[i], logits[take_row(hot)], &list_times[i][round],
                       &chain_times[i][round]);
#endif
        calls[i].position++;
        row = take_row(hot);
        start = get_cpu_us();
        run_call(&calls[i], row);
        times[i][round] = get_cpu_us() - start;
    }
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_times(const char *name, double *t, int rounds)
{
    qsort(t, (size_t)rounds, sizeof *t, compare_doubles);
    printf("\"%s\": [%.1f, %.1f, %.1f]", name, t[rounds / 2], t[rounds / 10],
           t[rounds - 1 - rounds / 10]);
}

static void print_place(const char *name, int rounds)
{
    printf("\"%s\": {", name);
    print_times("reading the row", read_times, rounds);
    for (int i = 0; i < CONTESTANTS; i++) {
        char label[128];
        printf(", ");
        print_times(contestants[i].name, times[i], rounds);
        if (list_times[i][0] <= 0)
            continue;
        for (int k = 0; k < rounds; k++)
            list_times[i][k] += chain_times[i][k];
        snprintf(label, sizeof label, "llama.cpp: %s", contestants[i].name);
        printf(", ");
        print_times(label, list_times[i], rounds);
        snprintf(label, sizeof label, "llama.cpp without the list: %s", contestants[i].name);
        printf(", ");
        print_times(label, chain_times[i], rounds);
    }
    printf("}");
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 0;
    gumbel_device_info info = {.struct_size = sizeof info};
    if (rounds < 10 || rounds > ROUNDS_MAX)
        fail("usage: bench_programs ROUNDS, 10 to 1000");
    for (int i = 0; i < ROWS * V; i++)
        logits[i / V][i % V] =
            (float)(2.5 * sqrt(-2 * log(next_uniform())) * cos(6.283185307179586 * next_uniform()));
    gumbel_device *device = open_device(GUMBEL_ISA_AUTO);
    gumbel_device *reference = open_device(GUMBEL_ISA_REFERENCE);
    for (int i = 0; i < CONTESTANTS; i++) {
        compare_draws(device, reference, &contestants[i]);
        prepare_call(&calls[i], device, &contestants[i]);
#ifdef BENCH_LLAMA
        chains[i] = contestants[i].llama ? make_llama_chain(&contestants[i]) : NULL;
#endif
    }
    if (gumbel_describe(device, &info))
        fail("the device cannot be described");
    printf("{\"vocab_size\": %d, \"rounds\": %d, \"isa\": \"%s\", ", V, rounds,
           gumbel_isa_name(info.isa));
    for (int hot = 1; hot >= 0; hot--) {
        for (int n = -WARM_ROUNDS; n < rounds; n++)
            run_round(n < 0 ? 0 : n, hot);
        print_place(hot ? "L2" : "L3", rounds);
        printf(hot ? ", " : "}\n");
    }
    return 0;
}

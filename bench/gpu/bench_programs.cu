/* SPDX-License-Identifier: Apache-2.0
 *
 * How long do draws by programs take on an NVIDIA GPU? From float32 logits, compared with draws by
 * an order of top_k and top_p, or by top_p alone; fused with the product of a head with 4096
 * bfloat16 columns, compared with the plain draw.
 *
 * usage: bench_programs [--json FILE] [--commit TEXT]
 *
 * script/bench-gpu --programs builds and runs it. Tokens drawn from logits are compared with the
 * CPU's before anything is timed. Each ratio is of medians of 30 replays in turns, 5 calls each.
 * The rungs that serve a program's rows follow the times. The environment variable GUMBEL_RUNGS
 * selects rungs; this value stands for GPUs without thread-block clusters:
 *
 *     GUMBEL_RUNGS=-hopper,-bounded,-blocks,-cluster,-program-blocks,-program-pivots,-program
 */
#include "bench/request_calls.cuh"

#include "gumbel/programs.h"

#include <string>

static const char QUESTION[] = "how long do draws by programs take, compared with draws by orders?";

/* Values of the row parameters; a rule that the program lacks is not read. */
constexpr float TYPICAL_P = 0.95f, SIGMA = 1, EPSILON = 1e-3f, ETA = 2e-3f;
constexpr float SURPRISE = 9; /* bits */
constexpr float XTC_PROBABILITY = 0.5f, XTC_THRESHOLD = 0.1f, TEMPERATURE = 0.8f;

struct program {
    const char *name;
    uint8_t rules[GUMBEL_PROGRAM_LENGTH];
    enum { OVER_BOTH, OVER_NUCLEUS, OVER_PLAIN } base; /* BASES */
};

/* The draws that programs are compared with, by program.base; the last is fused, as is the draw by
 * the program then. */
static const char *const BASE_NAMES[] = {"k = 50, p = 0.95", "p = 0.95", "the plain draw"};
static const question BASES[] = {
    {BASE_NAMES[0], 50, 0.95f, 0}, {BASE_NAMES[1], 0, 0.95f, 0}, {BASE_NAMES[2], 0, 1, 0}};

enum {
    T = GUMBEL_PROGRAM_TEMPERATURE,
    M = GUMBEL_PROGRAM_MIN_P,
    K = GUMBEL_PROGRAM_TOP_K,
    P = GUMBEL_PROGRAM_TOP_P,
    TYPICAL = GUMBEL_PROGRAM_TYPICAL_P,
    S = GUMBEL_PROGRAM_TOP_N_SIGMA,
    E = GUMBEL_PROGRAM_EPSILON,
    H = GUMBEL_PROGRAM_ETA,
    U = GUMBEL_PROGRAM_SURPRISE,
    X = GUMBEL_PROGRAM_XTC,
};

static const program PROGRAMS[] = {
    {"k 50, p .95, min_p .05, T (an order)", {K, P, M, T}},
    {"k 50, top_n_sigma 1, T", {K, S, T}},
    {"k 50, epsilon .001, T", {K, E, T}},
    {"k 50, XTC .1, T", {K, X, T}},
    {"min_p .05, XTC .1, T", {M, X, T}},
    {"top_n_sigma 1, T", {S, T}, program::OVER_NUCLEUS},
    {"typical .95, T", {TYPICAL, T}, program::OVER_NUCLEUS},
    {"eta .002, T", {H, T}, program::OVER_NUCLEUS},
    {"epsilon .001, T", {E, T}, program::OVER_NUCLEUS},
    {"surprise 9, T", {U, T}, program::OVER_NUCLEUS},
    {"top_n_sigma, k, typical, p, min_p, XTC, T", {S, K, TYPICAL, P, M, X, T}},
    {"fused: k 50, top_n_sigma 1, T", {K, S, T}, program::OVER_PLAIN},
    {"fused: min_p .05, T", {M, T}, program::OVER_PLAIN},
    {"fused: epsilon .001, T", {E, T}, program::OVER_PLAIN},
    {"fused: T, epsilon .001", {T, E}, program::OVER_PLAIN},
    {"fused: surprise 9, T", {U, T}, program::OVER_PLAIN},
    {"fused: typical .95, T", {TYPICAL, T}, program::OVER_PLAIN},
};

static const int64_t BATCHES[] = {1, 8, 64, 256};

struct parameters {
    float *typical_p, *sigma, *epsilon, *eta, *surprise, *xtc_probability, *xtc_threshold,
        *temperature;
};

static parameters PARAMETERS;

static bool has_rule(const program &of, int rule)
{
    return memchr(of.rules, rule, sizeof of.rules) != nullptr;
}

/* A call by a program; `into` has the structs that it points to. */
struct program_call {
    call base;
    gumbel_programs programs;
};

static void fill_program(const bench &b, const program &of, program_call &c)
{
    const parameters &v = PARAMETERS;
    const question q = {of.name, has_rule(of, K) ? 50 : 0, has_rule(of, P) ? 0.95f : 1,
                        has_rule(of, M) ? 0.05f : 0};
    set_parameters(b, q);
    fill_call(b, q, c.base);
    c.programs = {};
    c.programs.struct_size = sizeof c.programs;
    c.programs.rules = of.rules;
    c.programs.count = 1;
    if (has_rule(of, TYPICAL))
        c.programs.typical_p = {v.typical_p, 0};
    if (has_rule(of, S))
        c.programs.top_n_sigma = {v.sigma, 0};
    if (has_rule(of, E))
        c.programs.epsilon = {v.epsilon, 0};
    if (has_rule(of, H))
        c.programs.eta = {v.eta, 0};
    if (has_rule(of, U))
        c.programs.surprise = {v.surprise, 0};
    if (has_rule(of, X)) {
        c.programs.xtc_probability = {v.xtc_probability, 0};
        c.programs.xtc_threshold = {v.xtc_threshold, 0};
    }
    c.base.truncation.programs = &c.programs;
    c.base.sampling.truncation = &c.base.truncation;
    c.base.sampling.temperature = {v.temperature, 0};
}

static void queue_call(const bench &b, const program &of, const call &c, shape s, int64_t B)
{
    if (of.base == program::OVER_PLAIN)
        return queue_fused(b, c, s, B);
    const gumbel_logits logits = describe_logits(b.logits[s], B);
    CHECKED(gumbel_sample_logits, b.rows.gpu, b.rows.stream, &logits, &c.sampling, &c.output,
            b.workspace, WORKSPACE, &error);
}

/* The name of the rung that serves the rows of a call. */
static std::string find_rung(const bench &b, const program &of, const call &c, shape s, int64_t B)
{
    static const char BEGIN[] = "\nrows: ";
    const bool fused = of.base == program::OVER_PLAIN;
    const gumbel_head head = describe_head(b, s, B);
    const gumbel_logits logits = describe_logits(b.logits[s], B);
    char text[4096] = "\n";
    CHECKED(gumbel_explain, b.rows.gpu, fused ? &head : nullptr, fused ? nullptr : &logits,
            &c.sampling, &c.output, text + 1, sizeof text - 1, &error);
    const char *line = strstr(text, BEGIN);
    if (!line)
        die("gumbel_explain() names no rung of rows:%s", text);
    line += strlen(BEGIN);
    return std::string(line, strcspn(line, ":"));
}

/* Ends the program if the GPU's tokens of logits are not the CPU's. */
static void verify_program(const bench &b, const program &of, shape s)
{
    const int64_t B = 4;
    program_call c;
    fill_program(b, of, c);
    queue_call(b, of, c.base, s, B);
    CHECKED(cudaStreamSynchronize, b.rows.stream);
    const auto tokens = copy_out(b.rows.tokens, B);
    const auto values = copy_out(b.logits[s], B * VOCAB);
    const auto seed = copy_out(b.rows.seed, B), position = copy_out(b.rows.position, B);
    const int32_t k = 50;
    const float p = 0.95f, min_p = 0.05f;
    std::vector<int32_t> expected(B);
    gumbel_sampling &how = c.base.sampling;
    gumbel_truncation &cut = c.base.truncation;
    how.seed.data = seed.data();
    how.position.data = position.data();
    how.temperature = {&TEMPERATURE, GUMBEL_SAME};
    c.base.output.tokens = expected.data();
    if (cut.top_k.data)
        cut.top_k = {&k, GUMBEL_SAME};
    if (cut.top_p.data)
        cut.top_p = {&p, GUMBEL_SAME};
    if (cut.min_p.data)
        cut.min_p = {&min_p, GUMBEL_SAME};
    auto set = [](gumbel_row_f32 &rows, const float &value) {
        if (rows.data)
            rows = {&value, GUMBEL_SAME};
    };
    set(c.programs.typical_p, TYPICAL_P);
    set(c.programs.top_n_sigma, SIGMA);
    set(c.programs.epsilon, EPSILON);
    set(c.programs.eta, ETA);
    set(c.programs.surprise, SURPRISE);
    set(c.programs.xtc_probability, XTC_PROBABILITY);
    set(c.programs.xtc_threshold, XTC_THRESHOLD);
    const gumbel_logits logits = describe_logits(values.data(), B);
    gumbel_device *cpu;
    size_t bytes;
    CHECKED(gumbel_open, nullptr, &cpu, &error);
    CHECKED(gumbel_workspace_size, cpu, nullptr, &logits, &how, &c.base.output, &bytes, &error);
    std::vector<char> workspace(bytes + GUMBEL_WORKSPACE_ALIGNMENT);
    void *at = (void *)(((uintptr_t)workspace.data() + GUMBEL_WORKSPACE_ALIGNMENT - 1) /
                        GUMBEL_WORKSPACE_ALIGNMENT * GUMBEL_WORKSPACE_ALIGNMENT);
    CHECKED(gumbel_sample_logits, cpu, nullptr, &logits, &how, &c.base.output, at, bytes, &error);
    gumbel_close(cpu);
    for (int64_t i = 0; i < B; i++)
        if (tokens[i] != expected[i]) {
            printf("%s: row %d has token %d, not %d\n", of.name, (int)i, tokens[i], expected[i]);
            exit(1);
        }
}

struct point {
    const program *of;
    shape rows;
    int64_t B;
    spread drawn, base;
    std::string rung; /* of the program's rows */
};

static std::vector<point> points;

/* Times a program and the draw that it is compared with, in turns. */
static void measure(const bench &b, const program &of, shape s, int64_t B)
{
    program_call c;
    call base;
    fill_program(b, of, c);
    /* Both calls read the same parameters: those of a rule that one of them lacks are not read. */
    std::vector<float> p(MAX_BATCH, 0.95f);
    std::vector<int32_t> k(MAX_BATCH, 50);
    CHECKED(cudaMemcpy, b.p, p.data(), MAX_BATCH * sizeof(float), cudaMemcpyHostToDevice);
    CHECKED(cudaMemcpy, b.k, k.data(), MAX_BATCH * sizeof(int32_t), cudaMemcpyHostToDevice);
    fill_call(b, BASES[of.base], base);
    base.sampling.temperature = {PARAMETERS.temperature, 0};
    const captured drawn(b.rows.stream, [&] { queue_call(b, of, c.base, s, B); });
    const captured ordered(b.rows.stream, [&] { queue_call(b, of, base, s, B); });
    const captured *const ways[] = {&drawn, &ordered};
    const auto times = time_in_turns(b.rows.stream, ways);
    points.push_back({&of, s, B, times[0], times[1], find_rung(b, of, c.base, s, B)});
}

static void write_json(const char *path, const char *commit)
{
    FILE *file = open_results(path, QUESTION, commit);
    fprintf(file, "  \"programs\": [");
    for (size_t i = 0; i < points.size(); i++) {
        const point &at = points[i];
        fprintf(file, "%s\n    {\"program\": \"%s\", \"over\": \"%s\", \"rows\": \"%s\",",
                i ? "," : "", at.of->name, BASE_NAMES[at.of->base], SHAPE_NAMES[at.rows]);
        fprintf(file, " \"batch\": %lld, \"rung\": \"%s\",", (long long)at.B, at.rung.c_str());
        fprintf(file, " \"median_us\": %.3f, \"over_us\": %.3f, \"ratio\": %.3f}", at.drawn.median,
                at.base.median, at.drawn.median / at.base.median);
    }
    fprintf(file, "\n  ]\n}\n");
    close_results(file, path);
}

int main(int argc, char **argv)
{
    const bench_options options = read_options(argc, argv);
    const bench b = open_bench();
    PARAMETERS = {make_constant(TYPICAL_P),     make_constant(SIGMA),
                  make_constant(EPSILON),       make_constant(ETA),
                  make_constant(SURPRISE),      make_constant(XTC_PROBABILITY),
                  make_constant(XTC_THRESHOLD), make_constant(TEMPERATURE)};
    printf(
        "question: %s\nus of a draw (/ k 50, p .95, or / p .95, or / plain) at B = 1, 8, 64, 256\n",
        QUESTION);
    for (int s = 0; s < SHAPES; s++)
        for (const program &of : PROGRAMS) {
            if (of.base != program::OVER_PLAIN)
                verify_program(b, of, shape(s));
            printf("%-44s %-18s", of.name, SHAPE_NAMES[s]);
            std::string rungs;
            for (int64_t B : BATCHES) {
                measure(b, of, shape(s), B);
                const point &at = points.back();
                printf(" %7.1f (%.2f)", at.drawn.median, at.drawn.median / at.base.median);
                if (rungs.find(" " + at.rung + ",") == std::string::npos)
                    rungs += " " + at.rung + ",";
            }
            rungs.pop_back();
            printf("%s\n", rungs.c_str());
            fflush(stdout);
        }
    if (options.json)
        write_json(options.json, options.commit);
    return 0;
}

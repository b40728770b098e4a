/* SPDX-License-Identifier: Apache-2.0
 *
 * How much time does each rung of the CUDA backend save, and how fast are the rungs of GPUs without
 * clusters or without the Hopper kernel?
 *
 * usage: bench_rungs [--json FILE] [--commit TEXT]
 *
 * script/bench-gpu --rungs builds and runs it. A rung takes turns with the rung that serves the
 * same call if the first is disabled. Rungs of other GPUs run on this GPU, with its bandwidth and
 * clocks.
 */
#include "request_calls.cuh"

static const char QUESTION_OF_RUNGS[] = "what is each rung worth on an NVIDIA GPU?";

/* A device with rungs disabled. */
static gumbel_device *open_without(const char *rungs)
{
    gumbel_device *device;
    gumbel_device_options options = {};
    options.struct_size = sizeof options;
    options.device = "cuda:0";
    options.rungs = rungs;
    CHECKED(gumbel_open, &options, &device, &error);
    return device;
}

static const bool FUSED = true, LOGITS = false;

/* ------------------------------------------------------------------ a rung, and without it ---- */

/* Calls that `rung` serves on a device opened with the rungs `given`, compared with a device opened
 * with `without`. */
static const struct comparison {
    const char *rung, *given, *without;
    question request;
    bool fused;
    std::vector<int64_t> batches;
} COMPARISONS[] = {
    {"hopper", "", "-hopper", PLAIN, FUSED, {1, 8, 64, 256}},
    {"tensor", "-hopper", "-hopper,-tensor", PLAIN, FUSED, {1, 8}},
    {"draw", "", "-draw,-draw-edits", PLAIN, LOGITS, {1, 8, 64, 256}},
    {"draw-edits",
     "",
     "-draw-edits",
     {"penalties", 0, 1, 0, {}, false, true},
     LOGITS,
     {1, 8, 64, 256}},
    {"edit",
     "",
     "-edit",
     {"penalties, log-probabilities", 0, 1, 0, {}, false, true, false, false, true},
     LOGITS,
     {1, 8, 64, 256}},
    {"pivots", "", "-pivots", {"p = 0.95", 0, 0.95f, 0}, LOGITS, {1, 8, 64, 256}},
    {"bounded", "", "-bounded", {"k = 50, p = 0.95", 50, 0.95f, 0}, FUSED, {8, 32, 64, 128}},
    {"blocks", "", "-blocks", {"k = 50, p = 0.95", 50, 0.95f, 0}, LOGITS, {32, 64, 256}},
    {"cluster",
     "-blocks",
     "-blocks,-cluster",
     {"k = 50, p = 0.95", 50, 0.95f, 0},
     LOGITS,
     {1, 8, 64, 256}},
    {"cluster", "-blocks", "-blocks,-cluster", {"k = 1000", 1000, 1, 0}, LOGITS, {1, 8, 64}},
    {"blocks-grid",
     "-blocks,-cluster",
     "-blocks,-cluster,-blocks-grid",
     {"k = 50, p = 0.95", 50, 0.95f, 0},
     LOGITS,
     {32, 64, 256}},
    {"grid",
     "-blocks,-cluster,-blocks-grid",
     "-blocks,-cluster,-blocks-grid,-grid",
     {"k = 50, p = 0.95", 50, 0.95f, 0},
     LOGITS,
     {1, 8, 64, 256}},
    {"grid",
     "-blocks,-cluster,-blocks-grid",
     "-blocks,-cluster,-blocks-grid,-grid",
     {"k = 1000", 1000, 1, 0},
     LOGITS,
     {1, 8, 64, 256}},
    {"two-pass",
     "-blocks,-cluster,-blocks-grid,-grid",
     "-blocks,-cluster,-blocks-grid,-grid,-two-pass",
     {"k = 50, p = 0.95", 50, 0.95f, 0},
     LOGITS,
     {1, 8, 64, 256}},
};

struct rung_point {
    const comparison *of;
    int64_t B;
    spread with, without;
};

static std::vector<rung_point> rung_points;

static void queue_call(const bench &b, gumbel_device *device, const question &q, int64_t B,
                       bool fused)
{
    bench on = b;
    on.rows.gpu = device;
    fused ? draw_fused(on, q, GAUSSIAN, B) : draw_logits(on, q, GAUSSIAN, B);
}

static void measure_rung(const bench &b, const comparison &c)
{
    gumbel_device *with = open_without(c.given), *without = open_without(c.without);
    set_parameters(b, c.request);
    for (int64_t B : c.batches) {
        queue_call(b, with, c.request, B, c.fused);
        CHECKED(cudaStreamSynchronize, b.rows.stream);
        const auto expected = copy_out(b.rows.tokens, B);
        const captured ours(b.rows.stream, [&] { queue_call(b, with, c.request, B, c.fused); });
        const captured theirs(b.rows.stream,
                              [&] { queue_call(b, without, c.request, B, c.fused); });
        const auto tokens = copy_out(b.rows.tokens, B);
        /* Products of two kernels round differently, which can change a token. */
        int64_t differ = 0;
        for (int64_t row = 0; row < B; row++)
            differ += tokens[row] != expected[row];
        if (differ > (c.fused ? 1 + B / 16 : 0))
            die("%s: %lld of %lld tokens differ without it", c.rung, (long long)differ,
                (long long)B);
        const captured *const ways[] = {&ours, &theirs};
        const auto times = time_in_turns(b.rows.stream, ways);
        rung_points.push_back({&c, B, times[0], times[1]});
        printf("%-12s %-32s %-7s B = %3lld %9.1f us, without %9.1f us\n", c.rung, c.request.name,
               c.fused ? "fused" : "logits", (long long)B, times[0].median, times[1].median);
        fflush(stdout);
    }
    gumbel_close(with);
    gumbel_close(without);
}

/* --------------------------------------------------------------------------- other GPUs ---- */

static const struct stand_in {
    const char *name, *rungs;
} STAND_INS[] = {
    {"all rungs", ""},
    {"without the Hopper kernel", "-hopper,-bounded"},
    {"without clusters", "-hopper,-bounded,-blocks,-cluster"},
};

struct other_point {
    const char *gpu, *request;
    bool fused;
    int64_t B;
    spread times;
};

static std::vector<other_point> other_points;

/* Slow calls are repeated less often. */
static spread time_of(const bench &b, gumbel_device *device, const question &q, int64_t B,
                      bool fused)
{
    const captured calls(b.rows.stream, [&] { queue_call(b, device, q, B, fused); });
    std::vector<double> times = {calls.time(b.rows.stream)};
    for (int i = 1; i < (times[0] > 1000 ? 5 : REPLAYS); i++)
        times.push_back(calls.time(b.rows.stream));
    return make_spread(times);
}

static void measure_stand_in(const bench &b, const stand_in &other, bool fused)
{
    gumbel_device *device = open_without(other.rungs);
    printf("\n%s, %s, us at B = 1, 8, 64, 256\n", other.name,
           fused ? "behind the product, D = 4096" : "from float32 logits");
    for (int i = -1; i < int(sizeof QUESTIONS / sizeof *QUESTIONS); i++) {
        const question &q = i < 0 ? PLAIN : QUESTIONS[i];
        set_parameters(b, q);
        printf("%-60s", q.name);
        for (int64_t B : {1, 8, 64, 256}) {
            const spread times = time_of(b, device, q, B, fused);
            other_points.push_back({other.name, q.name, fused, B, times});
            printf(" %9.1f", times.median);
        }
        printf("\n");
        fflush(stdout);
    }
    gumbel_close(device);
}

/* ------------------------------------------------------------------------------- report ---- */

static void write_json(const char *path, const char *commit)
{
    FILE *file = open_results(path, QUESTION_OF_RUNGS, commit);
    const char *comma = "";
    fprintf(file, "  \"rungs\": [");
    for (const rung_point &at : rung_points) {
        fprintf(file, "%s\n    {\"rung\": \"%s\", \"given\": \"%s\", \"without\": \"%s\",", comma,
                at.of->rung, at.of->given, at.of->without);
        fprintf(file, " \"request\": \"%s\", \"way\": \"%s\", \"batch\": %lld, ",
                at.of->request.name, at.of->fused ? "fused" : "logits", (long long)at.B);
        write_spread(file, "with_it", at.with);
        fprintf(file, ", ");
        write_spread(file, "without_it", at.without);
        fprintf(file, "}");
        comma = ",";
    }
    fprintf(file, "\n  ],\n  \"gpus\": [");
    comma = "";
    for (const other_point &at : other_points) {
        fprintf(file, "%s\n    {\"gpu\": \"%s\", \"request\": \"%s\", \"way\": \"%s\",", comma,
                at.gpu, at.request, at.fused ? "fused" : "logits");
        fprintf(file, " \"batch\": %lld, ", (long long)at.B);
        write_spread(file, "time", at.times);
        fprintf(file, "}");
        comma = ",";
    }
    fprintf(file, "\n  ]\n}\n");
    close_results(file, path);
}

int main(int argc, char **argv)
{
    const bench_options options = read_options(argc, argv);
    bench b = open_bench();
    verify_tokens(b, GAUSSIAN);
    printf("question: %s\n", QUESTION_OF_RUNGS);
    for (const comparison &c : COMPARISONS)
        measure_rung(b, c);
    for (const stand_in &other : STAND_INS)
        for (bool fused : {LOGITS, FUSED})
            measure_stand_in(b, other, fused);
    if (options.json)
        write_json(options.json, options.commit);
    return 0;
}

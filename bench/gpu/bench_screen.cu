/* SPDX-License-Identifier: Apache-2.0
 *
 * How long does a draw with a screen take on an NVIDIA GPU, compared with the full pass?
 *
 * usage: bench_screen [--json FILE] [--commit TEXT] [--certain]
 *                     [--truncated | --goals | --kept-sets] [D ...]
 *
 * script/bench-gpu --screen builds and runs it. --certain: the certificate is certain instead of
 * probable. --truncated: only truncated rows. --goals: only truncated rows that have a goal, for
 * each of these the ratio and the goal; D is 4096 and 8192. --kept-sets: only what the list of the
 * tokens that truncation keeps costs, with and without the screen; D is 4096 and 8192. The
 * environment variable GUMBEL_RUNGS (default: screen) selects rungs.
 *
 * V = 151936, bfloat16. Draws with and without the screen are captured as graphs, each after a
 * kernel that writes the hidden states, as a norm does; both times include it. The graphs are
 * replayed in turns, each time at another position. Before that, the tokens of both are compared at
 * 20 positions. Some shapes draw four samples a row, some have a mask per row that allows half of
 * the tokens, and some truncate rows: "k 50" and "k 100" with p = 0.95, and "penalties", those of a
 * history of 1/64 of the tokens, with k = 50 and p = 0.95.
 *
 * With --kept-sets, draws with log-probabilities, k = 50 and p = 0.95 take turns with draws that
 * also list the kept tokens with their log-probabilities. "differing" also counts rows whose lists
 * with and without the screen are not equal.
 */
#include "screen_kept_sets.cuh"

static const char QUESTION[] =
    "how long does a draw with a screen take, compared with the full pass?";

constexpr draw_shape SHAPES[] = {
    {1, 1, false, NONE},       {2, 1, false, NONE},      {4, 1, false, NONE},
    {8, 1, false, NONE},       {16, 1, false, NONE},     {32, 1, false, NONE},
    {64, 1, false, NONE},      {1, 4, false, NONE},      {4, 4, false, NONE},
    {16, 4, false, NONE},      {1, 1, true, NONE},       {16, 1, true, NONE},
    {64, 1, true, NONE},       {1, 1, false, TOP_K_50},  {8, 1, false, TOP_K_50},
    {16, 1, false, TOP_K_50},  {32, 1, false, TOP_K_50}, {64, 1, false, TOP_K_50},
    {16, 1, true, TOP_K_50},   {1, 1, false, TOP_K_100}, {16, 1, false, TOP_K_100},
    {64, 1, false, TOP_K_100}, {1, 1, false, MIN_P},     {16, 1, false, MIN_P},
    {64, 1, false, MIN_P},     {1, 1, false, PENALTIES}, {16, 1, false, PENALTIES},
    {64, 1, false, PENALTIES}};

/* The largest ratio to aim at of truncated rows. */
struct goal {
    int64_t hidden_size, batch;
    double ratio;
};
constexpr goal GOALS[] = {{4096, 1, 0.54}, {4096, 16, 0.56}, {4096, 32, 0.60}, {4096, 64, 0.66},
                          {8192, 1, 0.54}, {8192, 16, 0.56}, {8192, 32, 0.62}, {8192, 64, 0.72}};

static double find_goal(int64_t hidden_size, const draw_shape &shape)
{
    for (const goal &one : GOALS)
        if (one.hidden_size == hidden_size && one.batch == shape.batch && shape.rules == TOP_K_50 &&
            !shape.masked)
            return one.ratio;
    return 0.0;
}

/* --------------------------------------------------------------------------------- options ---- */

struct bench_options : shared_options {
    bool certain = false, only_truncated = false, only_goals = false, only_kept_sets = false;
};

static bench_options read_options(int argc, char **argv)
{
    bench_options o;
    for (int i = 1; i < argc; i++) {
        if (read_shared_option(o, argc, argv, i))
            continue;
        if (strcmp(argv[i], "--certain") == 0)
            o.certain = true;
        else if (strcmp(argv[i], "--truncated") == 0)
            o.only_truncated = true;
        else if (strcmp(argv[i], "--goals") == 0)
            o.only_goals = true;
        else if (strcmp(argv[i], "--kept-sets") == 0)
            o.only_kept_sets = true;
        else
            die("usage: bench_screen [--json FILE] [--commit TEXT] [--certain] "
                "[--truncated | --goals | --kept-sets] [D ...]");
    }
    if (o.sizes.empty() && (o.only_goals || o.only_kept_sets))
        o.sizes = {4096, 8192};
    if (o.sizes.empty())
        o.sizes = {4096, 2048, 8192};
    return o;
}

/* ----------------------------------------------------------------------------------- draws ---- */

struct measurement {
    int64_t hidden_size;
    draw_shape shape;
    spread full, screened;
    double ratio, prepare_us; /* of medians; time of preparing the screen */
    int differing;            /* of POSITIONS * batch * samples draws */
};

static measurement measure_draws(const bench_data &m, int64_t hidden_size, const draw_shape &shape,
                                 double prepare_us)
{
    const gpu_rows &r = m.rows;
    measurement result = {};
    result.hidden_size = hidden_size;
    result.shape = shape;
    result.prepare_us = prepare_us;
    result.differing = count_differing_tokens(m, hidden_size, shape);
    const captured full = capture_draws(m, hidden_size, shape, false);
    const captured screened = capture_draws(m, hidden_size, shape, true);
    const captured *const ways[] = {&full, &screened};
    const auto times =
        time_in_turns(r.stream, ways, 0, [&](int turn) { set_positions(m, uint64_t(77 * turn)); });
    result.full = times[0];
    result.screened = times[1];
    result.ratio = result.screened.median / result.full.median;
    return result;
}

static void print_measurement(const measurement &r)
{
    const double goal = find_goal(r.hidden_size, r.shape);
    printf("%5lld %4lld %2d %4d %9s %9.1f%9.1f%9.1f %9.1f%9.1f%9.1f %7.3f ",
           (long long)r.hidden_size, (long long)r.shape.batch, r.shape.samples, (int)r.shape.masked,
           TRUNCATION_NAMES[r.shape.rules], r.full.p10, r.full.median, r.full.p90, r.screened.p10,
           r.screened.median, r.screened.p90, r.ratio);
    if (goal > 0)
        printf("%5.2f", goal);
    else
        printf("%5s", "");
    printf(" %9.0f %9d\n", r.prepare_us, r.differing);
    fflush(stdout);
}

/* --------------------------------------------------------------------------------- results ---- */

static void write_draws(FILE *file, const std::vector<measurement> &results)
{
    fprintf(file, " \"rows\": [\n");
    for (size_t i = 0; i < results.size(); i++) {
        const measurement &r = results[i];
        fprintf(file,
                "  {\"d\": %lld, \"b\": %lld, \"s\": %d, \"masked\": %d, \"truncation\": %d, "
                "\"rules\": \"%s\", ",
                (long long)r.hidden_size, (long long)r.shape.batch, r.shape.samples,
                (int)r.shape.masked, (int)(r.shape.rules != NONE), TRUNCATION_NAMES[r.shape.rules]);
        write_spread(file, "full", r.full);
        write_spread(file, "screened", r.screened);
        fprintf(file, "\"prepare\": %.0f}%s\n", r.prepare_us, i + 1 < results.size() ? "," : "");
    }
    fprintf(file, " ]");
}

static void write_json(const bench_options &o, const char *gpu, const char *driver,
                       const std::vector<measurement> &draws,
                       const std::vector<kept_measurement> &kept_sets)
{
    FILE *file = fopen(o.json, "w");
    if (!file)
        die("cannot write %s", o.json);
    fprintf(file,
            "{\"commit\": \"%s\", \"gpu\": \"%s\", \"driver\": \"%s\", \"vocab\": %lld, "
            "\"certificate\": \"%s\",\n",
            o.commit, gpu, driver, (long long)VOCAB, o.certain ? "certain" : "probable");
    fprintf(file, " \"unit\": \"microseconds of a call after a norm: [p10, median, p90]\",\n");
    o.only_kept_sets ? write_kept(file, kept_sets) : write_draws(file, draws);
    fprintf(file, "}\n");
    fclose(file);
}

static std::vector<measurement> measure_shapes(const bench_data &m, const bench_options &o)
{
    std::vector<measurement> results;
    printf("%5s %4s %2s %4s %9s %27s %27s %7s %5s %9s %9s\n", "D", "B", "S", "mask", "truncated",
           "full", "screened", "ratio", "goal", "prepare", "differing");
    for (int64_t size : o.sizes) {
        const double prepare_us = prepare_weights(m, size);
        for (const draw_shape &shape : SHAPES) {
            if ((o.only_truncated && shape.rules == NONE) ||
                (o.only_goals && find_goal(size, shape) == 0))
                continue;
            results.push_back(measure_draws(m, size, shape, prepare_us));
            print_measurement(results.back());
        }
    }
    return results;
}

int main(int argc, char **argv)
{
    const bench_options o = read_options(argc, argv);
    cudaDeviceProp gpu;
    char driver[64];
    prefer_screens();
    const bench_data m = make_data(o.sizes, o.certain);
    CHECKED(cudaGetDeviceProperties, &gpu, 0);
    find_driver(driver, sizeof driver);
    printf("question: %s\n", o.only_kept_sets ? QUESTION_OF_KEPT_SETS : QUESTION);
    printf(
        "machine: %s, driver %s, V = %lld, %s; microseconds after a norm, p10 / median / p90\n\n",
        gpu.name, driver, (long long)VOCAB, o.certain ? "certain bounds" : "probable bounds");
    std::vector<measurement> draws;
    std::vector<kept_measurement> kept_sets;
    if (o.only_kept_sets)
        kept_sets = measure_kept_sets(m, o.sizes);
    else
        draws = measure_shapes(m, o);
    if (o.json)
        write_json(o, gpu.name, driver, draws, kept_sets);
    gumbel_close(m.rows.gpu);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * How long does a draw with a screen take on an NVIDIA GPU, compared with the full pass?
 *
 * usage: bench_screen [--json FILE] [--commit TEXT] [--certain] [--truncated | --goals] [D ...]
 *
 * script/bench-gpu --screen builds and runs it. --certain: the certificate is certain instead of
 * probable. --truncated: only truncated rows. --goals: only truncated rows that have a goal, for
 * each of these the ratio and the goal; D is 4096 and 8192. The environment variable GUMBEL_RUNGS
 * (default: screen) selects rungs.
 *
 * V = 151936, bfloat16. Draws with and without the screen are captured as graphs, each after a
 * kernel that writes the hidden states, as a norm does; both times include it. The graphs are
 * replayed in turns, each time at another position. Before that, the tokens of both are compared at
 * 20 positions. Some shapes draw four samples a row, some have a mask per row that allows half of
 * the tokens, and some truncate rows: "k 50" and "k 100" with p = 0.95, and "penalties", those of a
 * history of 1/64 of the tokens, with k = 50 and p = 0.95.
 */
#include "screen_calls.cuh"

enum truncation { NONE, TOP_K_50, TOP_K_100, MIN_P, PENALTIES };
constexpr const char *TRUNCATION_NAMES[] = {"none", "k 50", "k 100", "min_p .05", "penalties"};

struct draw_shape {
    int64_t batch;
    int32_t samples;
    bool masked;
    truncation rules;
};
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

struct measurement {
    int64_t hidden_size;
    draw_shape shape;
    spread full, screened;
    double ratio, prepare_us; /* of medians; time of preparing the screen */
    int differing;            /* of POSITIONS * batch * samples draws */
};

struct bench_data : head_data {
    gumbel_screen screen;
    gumbel_screen_certificate certificate;
    int32_t *masks; /* [MAX_BATCH][VOCAB / 32] */
    /* One value for all rows: */
    int32_t *top_ks[2]; /* 50; 100 */
    float *top_p, *min_p, *repetition, *presence;
    gumbel_history history; /* of MAX_BATCH rows */
};

static void queue_draw(const bench_data &m, const draw_shape &shape, int64_t hidden_size,
                       bool screened)
{
    const gumbel_head head =
        make_head(m, shape.batch, hidden_size, screened ? m.screen : gumbel_screen{});
    gumbel_sampling sampling = make_sampling(m.rows.temperature, m.rows.seed, m.rows.position);
    gumbel_output output = make_output(m.rows.tokens, nullptr);
    gumbel_transforms transforms = {};
    transforms.struct_size = sizeof transforms;
    if (shape.masked)
        transforms.mask = {m.masks, VOCAB / 32};
    if (shape.rules == PENALTIES) {
        transforms.history = &m.history;
        transforms.repetition = {m.repetition, GUMBEL_SAME};
        transforms.presence = {m.presence, GUMBEL_SAME};
    }
    sampling.num_samples = shape.samples;
    sampling.transforms = shape.masked || shape.rules == PENALTIES ? &transforms : nullptr;
    gumbel_truncation truncation = {};
    truncation.struct_size = sizeof truncation;
    if (shape.rules == MIN_P) {
        truncation.min_p = {m.min_p, GUMBEL_SAME};
    } else {
        truncation.top_k = {m.top_ks[shape.rules == TOP_K_100], GUMBEL_SAME};
        truncation.top_p = {m.top_p, GUMBEL_SAME};
    }
    sampling.truncation = shape.rules != NONE ? &truncation : nullptr;
    CHECKED(gumbel_sample, m.rows.gpu, m.rows.stream, &head, &sampling, &output, m.rows.workspace,
            m.rows.workspace_bytes, &error);
}

static int32_t *make_masks()
{
    std::vector<int32_t> masks(MAX_BATCH * VOCAB / 32);
    uint64_t state = 1;
    for (int32_t &word : masks) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        word = int32_t(state >> 32);
    }
    return copy_in(masks);
}

/* A history that has seen each token with a chance of 1/64, half of these in the output. */
static gumbel_history make_history()
{
    std::vector<uint32_t> masks[2];
    std::vector<uint16_t> counts(MAX_BATCH * VOCAB);
    uint64_t state = 2;
    for (auto &mask : masks)
        mask.resize(MAX_BATCH * VOCAB / 32);
    for (int64_t i = 0; i < MAX_BATCH * VOCAB; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        if (state >> 58 != 0)
            continue;
        const bool output = state >> 57 & 1;
        masks[output][i / 32] |= 1u << i % 32; /* VOCAB is a multiple of 32 */
        counts[i] = output;
    }
    gumbel_history history = {};
    history.struct_size = sizeof history;
    history.vocab_size = VOCAB;
    history.prompt = copy_in(masks[0]);
    history.output = copy_in(masks[1]);
    history.counts = copy_in(counts);
    return history;
}

static measurement measure_draws(const bench_data &m, int64_t hidden_size, const draw_shape &shape,
                                 double prepare_us)
{
    const gpu_rows &r = m.rows;
    measurement result = {};
    result.hidden_size = hidden_size;
    result.shape = shape;
    result.prepare_us = prepare_us;
    result.differing = count_differing(
        m, shape.batch * shape.samples, [&] { queue_draw(m, shape, hidden_size, false); },
        [&] { queue_draw(m, shape, hidden_size, true); });
    const captured full(r.stream, [&] {
        queue_norm(r.stream, m.hidden, shape.batch * hidden_size);
        queue_draw(m, shape, hidden_size, false);
    });
    const captured screened(r.stream, [&] {
        queue_norm(r.stream, m.hidden, shape.batch * hidden_size);
        queue_draw(m, shape, hidden_size, true);
    });
    const captured *const ways[] = {&full, &screened};
    const auto times =
        time_in_turns(r.stream, ways, 0, [&](int turn) { set_positions(m, uint64_t(77 * turn)); });
    result.full = times[0];
    result.screened = times[1];
    result.ratio = result.screened.median / result.full.median;
    return result;
}

static void write_json(const char *path, const char *commit, const char *gpu, const char *driver,
                       bool certain, const std::vector<measurement> &results)
{
    FILE *file = fopen(path, "w");
    if (!file)
        die("cannot write %s", path);
    fprintf(file,
            "{\"commit\": \"%s\", \"gpu\": \"%s\", \"driver\": \"%s\", \"vocab\": %lld, "
            "\"certificate\": \"%s\",\n",
            commit, gpu, driver, (long long)VOCAB, certain ? "certain" : "probable");
    fprintf(file, " \"unit\": \"microseconds of a call after a norm: [p10, median, p90]\",\n"
                  " \"rows\": [\n");
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
    fprintf(file, " ]}\n");
    fclose(file);
}

struct bench_options : shared_options {
    bool certain = false, only_truncated = false, only_goals = false;
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
        else
            die("usage: bench_screen [--json FILE] [--commit TEXT] [--certain] "
                "[--truncated | --goals] [D ...]");
    }
    if (o.sizes.empty() && o.only_goals)
        o.sizes = {4096, 8192};
    if (o.sizes.empty())
        o.sizes = {4096, 2048, 8192};
    return o;
}

static bench_data make_data(const bench_options &o)
{
    const int64_t hidden_max = *std::max_element(o.sizes.begin(), o.sizes.end());
    bench_data m = {open_head(hidden_max)};
    m.certificate = o.certain ? GUMBEL_SCREEN_CERTAIN : GUMBEL_SCREEN_PROBABLE;
    m.screen = allocate_screen(hidden_max, GUMBEL_SCREEN_BYTES);
    make_random(m.hidden, MAX_BATCH * hidden_max, 1, 1);
    m.masks = make_masks();
    m.top_ks[0] = copy_in(std::vector<int32_t>{50});
    m.top_ks[1] = copy_in(std::vector<int32_t>{100});
    m.top_p = copy_in(std::vector<float>{0.95f});
    m.min_p = copy_in(std::vector<float>{0.05f});
    m.repetition = copy_in(std::vector<float>{1.05f});
    m.presence = copy_in(std::vector<float>{0.5f});
    m.history = make_history();
    return m;
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

int main(int argc, char **argv)
{
    const bench_options o = read_options(argc, argv);
    cudaDeviceProp gpu;
    char driver[64];
    std::vector<measurement> results;
    prefer_screens();
    const bench_data m = make_data(o);
    CHECKED(cudaGetDeviceProperties, &gpu, 0);
    find_driver(driver, sizeof driver);
    printf("question: how long does a draw with a screen take, compared with the full pass?\n");
    printf(
        "machine: %s, driver %s, V = %lld, %s; microseconds after a norm, p10 / median / p90\n\n",
        gpu.name, driver, (long long)VOCAB, o.certain ? "certain bounds" : "probable bounds");
    printf("%5s %4s %2s %4s %9s %27s %27s %7s %5s %9s %9s\n", "D", "B", "S", "mask", "truncated",
           "full", "screened", "ratio", "goal", "prepare", "differing");
    for (int64_t size : o.sizes) {
        make_random(m.weight, size_t(VOCAB * size), 3, 2.5f / sqrtf(float(size)));
        const double prepare_us = prepare_screen(m, size, m.certificate, m.screen);
        for (const draw_shape &shape : SHAPES) {
            if ((o.only_truncated && shape.rules == NONE) ||
                (o.only_goals && find_goal(size, shape) == 0))
                continue;
            results.push_back(measure_draws(m, size, shape, prepare_us));
            print_measurement(results.back());
        }
    }
    if (o.json)
        write_json(o.json, o.commit, gpu.name, driver, o.certain, results);
    gumbel_close(m.rows.gpu);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * What does a draw by a screen take on an NVIDIA GPU, beside the full pass?
 *
 * usage: bench_screen [--json FILE] [--commit TEXT] [--cut] [D ...]; script/bench-gpu --screen
 * builds it. --cut: only rows that are cut. GUMBEL_RUNGS=screen-truncated: 64 rows by the screen,
 * too.
 *
 * V = 151936, bfloat16. Draws with and without the screen are captured as graphs behind a kernel
 * that writes the hidden states, as a norm does, whose own time is in both, and replayed in turns,
 * at another position for each replay. Tokens of both are compared first, at 20 positions a shape.
 * Some shapes draw four samples a row, some have a mask a row that leaves half of the tokens, some
 * cut rows to k = 50 and p = 0.95.
 */
#include "bench/cuda_measure.cuh"

#include "gumbel/screen.h"

constexpr int64_t VOCAB = 151936, MAX_HIDDEN = 8192, MAX_BATCH = 64;
constexpr int POSITIONS = 20;

struct shape {
    int64_t batch;
    int32_t samples;
    bool masked, cut;
};
constexpr shape SHAPES[] = {
    {1, 1, false, false},  {2, 1, false, false},  {4, 1, false, false},  {8, 1, false, false},
    {16, 1, false, false}, {32, 1, false, false}, {64, 1, false, false}, {1, 4, false, false},
    {4, 4, false, false},  {16, 4, false, false}, {1, 1, true, false},   {16, 1, true, false},
    {64, 1, true, false},  {1, 1, false, true},   {8, 1, false, true},   {16, 1, false, true},
    {32, 1, false, true},  {64, 1, false, true},  {16, 1, true, true}};

struct measured {
    int64_t hidden_size;
    shape of;
    spread full, screened;
    double ratio, prepared; /* of medians; microseconds of making the screen */
    int differing;          /* of POSITIONS * batch * samples draws */
};

struct machine {
    gpu_rows rows;
    __nv_bfloat16 *weight, *hidden;
    gumbel_screen screen;
    int32_t *masks; /* [MAX_BATCH][VOCAB / 32] */
    int32_t *top_k; /* of all rows */
    float *top_p;
};

static gumbel_head make_head(const machine &m, int64_t batch, int64_t hidden_size, bool screened)
{
    gumbel_head head = {};
    head.struct_size = sizeof head;
    head.hidden = {m.hidden, GUMBEL_BFLOAT16, batch, hidden_size, hidden_size};
    head.weight = {m.weight, GUMBEL_BFLOAT16, VOCAB, hidden_size, hidden_size};
    head.screen = screened ? m.screen : gumbel_screen{};
    return head;
}

static void queue_draw(const machine &m, const shape &of, int64_t hidden_size, bool screened)
{
    const gumbel_head head = make_head(m, of.batch, hidden_size, screened);
    gumbel_sampling sampling = make_sampling(m.rows.temperature, m.rows.seed, m.rows.position);
    gumbel_output output = make_output(m.rows.tokens, nullptr);
    gumbel_transforms transforms = {};
    transforms.struct_size = sizeof transforms;
    transforms.mask = {m.masks, VOCAB / 32};
    sampling.num_samples = of.samples;
    sampling.transforms = of.masked ? &transforms : nullptr;
    gumbel_truncation cut = {};
    cut.struct_size = sizeof cut;
    cut.top_k = {m.top_k, GUMBEL_SAME};
    cut.top_p = {m.top_p, GUMBEL_SAME};
    sampling.truncation = of.cut ? &cut : nullptr;
    CHECKED(gumbel_sample, m.rows.gpu, m.rows.stream, &head, &sampling, &output, m.rows.workspace,
            m.rows.workspace_bytes, &error);
}

static void move_on(const machine &m, uint64_t position)
{
    std::vector<uint64_t> positions(MAX_BATCH);
    for (int64_t b = 0; b < MAX_BATCH; b++)
        positions[b] = position + uint64_t(3 * b);
    CHECKED(cudaMemcpy, m.rows.position, positions.data(), MAX_BATCH * sizeof(uint64_t),
            cudaMemcpyHostToDevice);
}

static int count_differing(const machine &m, const shape &of, int64_t hidden_size)
{
    const int64_t draws = of.batch * of.samples;
    int differing = 0;
    for (int i = 0; i < POSITIONS; i++) {
        move_on(m, uint64_t(1000 * i));
        queue_draw(m, of, hidden_size, false);
        CHECKED(cudaStreamSynchronize, m.rows.stream);
        auto full = copy_out(m.rows.tokens, draws);
        queue_draw(m, of, hidden_size, true);
        CHECKED(cudaStreamSynchronize, m.rows.stream);
        auto screened = copy_out(m.rows.tokens, draws);
        for (int64_t b = 0; b < draws; b++)
            differing += full[b] != screened[b];
    }
    return differing;
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

static double prepare_screen(const machine &m, int64_t hidden_size)
{
    const gumbel_head head = make_head(m, 1, hidden_size, false);
    std::vector<double> times;
    size_t bytes;
    CHECKED(gumbel_screen_size, m.rows.gpu, &head.weight, &bytes, &error);
    if (bytes > m.screen.bytes)
        die("a screen takes %zu bytes", bytes);
    for (int i = 0; i < 3; i++) {
        cudaEvent_t begin, end;
        float milliseconds;
        CHECKED(cudaEventCreate, &begin);
        CHECKED(cudaEventCreate, &end);
        CHECKED(cudaEventRecord, begin, m.rows.stream);
        CHECKED(gumbel_screen_prepare, m.rows.gpu, m.rows.stream, &head.weight, nullptr,
                &m.screen, &error);
        CHECKED(cudaEventRecord, end, m.rows.stream);
        CHECKED(cudaEventSynchronize, end);
        CHECKED(cudaEventElapsedTime, &milliseconds, begin, end);
        times.push_back(milliseconds * 1e3);
        CHECKED(cudaEventDestroy, begin);
        CHECKED(cudaEventDestroy, end);
    }
    return make_spread(times).median;
}

static measured measure_draws(const machine &m, int64_t hidden_size, const shape &of,
                              double prepared)
{
    const gpu_rows &r = m.rows;
    measured found = {};
    found.hidden_size = hidden_size;
    found.of = of;
    found.prepared = prepared;
    found.differing = count_differing(m, of, hidden_size);
    const captured full(r.stream, [&] {
        queue_norm(r.stream, m.hidden, of.batch * hidden_size);
        queue_draw(m, of, hidden_size, false);
    });
    const captured screened(r.stream, [&] {
        queue_norm(r.stream, m.hidden, of.batch * hidden_size);
        queue_draw(m, of, hidden_size, true);
    });
    std::vector<double> times[2];
    for (int i = 0; i < REPLAYS; i++) {
        move_on(m, uint64_t(77 * i));
        times[0].push_back(full.time(r.stream));
        times[1].push_back(screened.time(r.stream));
    }
    found.full = make_spread(times[0]);
    found.screened = make_spread(times[1]);
    found.ratio = found.screened.median / found.full.median;
    return found;
}

static void write_all(const char *path, const char *commit, const char *gpu, const char *driver,
                      const std::vector<measured> &all)
{
    FILE *file = fopen(path, "w");
    if (!file)
        die("cannot write %s", path);
    fprintf(file, "{\"commit\": \"%s\", \"gpu\": \"%s\", \"driver\": \"%s\", \"vocab\": %lld,\n",
            commit, gpu, driver, (long long)VOCAB);
    fprintf(file, " \"unit\": \"microseconds of a call behind a norm: [p10, median, p90]\",\n"
                  " \"rows\": [\n");
    for (size_t i = 0; i < all.size(); i++)
        fprintf(
            file,
            "  {\"d\": %lld, \"b\": %lld, \"s\": %d, \"masked\": %d, \"truncation\": %d, \"full\": "
            "[%.1f, %.1f, %.1f], \"screened\": [%.1f, %.1f, %.1f], \"prepare\": %.0f}%s\n",
            (long long)all[i].hidden_size, (long long)all[i].of.batch, all[i].of.samples,
            (int)all[i].of.masked, (int)all[i].of.cut, all[i].full.p10, all[i].full.median,
            all[i].full.p90, all[i].screened.p10, all[i].screened.median, all[i].screened.p90,
            all[i].prepared, i + 1 < all.size() ? "," : "");
    fprintf(file, " ]}\n");
    fclose(file);
}

int main(int argc, char **argv)
{
    const char *json = nullptr, *commit = "unknown";
    std::vector<int64_t> sizes;
    bool only_cut = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
            json = argv[++i];
        else if (strcmp(argv[i], "--commit") == 0 && i + 1 < argc)
            commit = argv[++i];
        else if (strcmp(argv[i], "--cut") == 0)
            only_cut = true;
        else if (atoll(argv[i]) >= 64 && atoll(argv[i]) <= MAX_HIDDEN)
            sizes.push_back(atoll(argv[i]));
        else
            die("usage: bench_screen [--json FILE] [--commit TEXT] [--cut] [D ...]");
    }
    if (sizes.empty())
        sizes = {4096, 2048, 8192};
    const int64_t most = *std::max_element(sizes.begin(), sizes.end());
    cudaDeviceProp gpu;
    char driver[64];
    machine m = {};
    std::vector<measured> all;
    setenv("GUMBEL_RUNGS", "screen", 1); /* also where the full pass is faster */
    m.rows = open_rows(MAX_BATCH, most);
    CHECKED(cudaGetDeviceProperties, &gpu, 0);
    find_driver(driver, sizeof driver);
    m.weight = allocate<__nv_bfloat16>(VOCAB * most);
    m.hidden = allocate<__nv_bfloat16>(MAX_BATCH * most);
    m.screen.bytes = size_t(VOCAB) * size_t(most + 256) + (1 << 20);
    m.screen.data = allocate<char>(m.screen.bytes);
    make_random(m.hidden, MAX_BATCH * most, 1, 1);
    m.masks = make_masks();
    m.top_k = copy_in(std::vector<int32_t>{50});
    m.top_p = copy_in(std::vector<float>{0.95f});
    /* Room for stored logits and the flags of those that may win. */
    m.rows.workspace_bytes += MAX_BATCH * VOCAB * sizeof(float) + (8 << 20);
    CHECKED(cudaFree, m.rows.workspace);
    m.rows.workspace = allocate<char>(m.rows.workspace_bytes);
    printf("question: what does a draw by a screen take beside the full pass?\n");
    printf("machine: %s, driver %s, V = %lld; microseconds behind a norm, p10 / median / p90\n\n",
           gpu.name, driver, (long long)VOCAB);
    printf("%5s %4s %2s %4s %3s %27s %27s %7s %9s %9s\n", "D", "B", "S", "mask", "cut", "full",
           "screened", "ratio", "prepare", "differing");
    for (int64_t size : sizes) {
        make_random(m.weight, size_t(VOCAB * size), 3, 2.5f / sqrtf(float(size)));
        const double prepared = prepare_screen(m, size);
        for (const shape &of : SHAPES) {
            if (only_cut && !of.cut)
                continue;
            const measured f = measure_draws(m, size, of, prepared);
            printf("%5lld %4lld %2d %4d %3d %9.1f%9.1f%9.1f %9.1f%9.1f%9.1f %7.3f %9.0f %9d\n",
                   (long long)size, (long long)of.batch, of.samples, (int)of.masked, (int)of.cut,
                   f.full.p10, f.full.median, f.full.p90, f.screened.p10, f.screened.median,
                   f.screened.p90, f.ratio, f.prepared, f.differing);
            fflush(stdout);
            all.push_back(f);
        }
    }
    if (json)
        write_all(json, commit, gpu.name, driver, all);
    gumbel_close(m.rows.gpu);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * How long does a draw take on an NVIDIA GPU by the full pass, with a screen of bytes and with a
 * screen of nibbles, compared with cuBLAS's product alone?
 *
 * usage: bench_screen_formats [--json FILE] [--commit TEXT] [--quick] [D ...]
 *
 * script/bench-gpu --screen-formats builds and runs it. D is 4096, 8192 and 2048 by default.
 * --quick: D = 4096, the Gaussian head, and 1, 8 and 32 rows only. The environment variable
 * GUMBEL_RUNGS (default: screen) selects rungs.
 *
 * V = 151936, bfloat16, probable bounds. Requests are "none" and "k 50", which is k = 50 and
 * p = 0.95. For "k 50", too, cuBLAS computes only the product. Two heads, both of normal numbers
 * with exact tails: "Gaussian", whose logits have a standard deviation of 2.5, and "structured",
 * that of bench/cpu/bench_screen_truncation.c: rows and columns have norms of their own, rows lean
 * in a common direction, and each hidden state leans to a token.
 *
 * Both screens are made from the same weights. The tokens of the three draws are compared at 20
 * positions. Then the product and the draws, each after a kernel that writes the hidden states as
 * a norm does, are captured as graphs and replayed in turns, each turn at another position. All
 * times include that kernel.
 */
#include "screen_calls.cuh"

static const char QUESTION[] = "how long does a draw take by the full pass, with a screen of bytes "
                               "and of nibbles, compared with cuBLAS's product alone?";

constexpr int64_t BATCHES[] = {1, 2, 4, 8, 16, 32, 64}, QUICK_BATCHES[] = {1, 8, 32};

enum head_kind { GAUSSIAN, STRUCTURED, HEADS };
constexpr const char *HEAD_NAMES[HEADS] = {"Gaussian", "structured"};

enum request { NONE, TOP_K_50, REQUESTS };
constexpr const char *REQUEST_NAMES[REQUESTS] = {"none", "k 50"};

/* cuBLAS's product, and the draws without a screen and with each. */
enum way { GEMM, FULL, BYTES, NIBBLES, WAYS };
constexpr const char *WAY_NAMES[WAYS] = {"gemm", "full", "bytes", "nibbles"};

struct draw_case {
    int64_t hidden_size, batch;
    head_kind head;
    request rules;
};

/* The largest ratio of nibbles to the product to aim at, of draws without truncation. */
struct goal {
    int64_t hidden_size, batch;
    double ratio;
};
constexpr goal GOALS[] = {{4096, 1, .33}, {4096, 8, .36}, {4096, 32, .50},
                          {8192, 1, .32}, {8192, 8, .35}, {8192, 32, .48},
                          {2048, 1, .40}, {2048, 8, .45}, {2048, 32, .60}};

static double find_goal(const draw_case &c)
{
    for (const goal &one : GOALS)
        if (one.hidden_size == c.hidden_size && one.batch == c.batch && c.rules == NONE)
            return one.ratio;
    return 0.0;
}

struct bench_data : head_data {
    cublasHandle_t blas;
    __nv_bfloat16 *product;
    gumbel_screen screens[WAYS]; /* none for GEMM and FULL */
    int32_t *top_k;              /* one value for all rows */
    float *top_p;
};

struct measurement {
    draw_case of;
    std::array<spread, WAYS> times;
    int differing[WAYS]; /* of POSITIONS * batch tokens, from those of the full pass */
};

static double divide_medians(const measurement &r, way over, way under)
{
    return r.times[over].median / r.times[under].median;
}

/* ----------------------------------------------------------------------------------- heads ---- */

/* Fills in the weights of the structured head: columns whose direction is common to all rows are
 * also larger, and rows have norms of their own. */
__global__ void fill_structured(__nv_bfloat16 *into, int64_t hidden_size)
{
    const int64_t step = int64_t(gridDim.x) * blockDim.x;
    const float size = rsqrtf(float(hidden_size));
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < VOCAB * hidden_size;
         i += step) {
        const float common = random_normal(i % hidden_size + (uint64_t(4) << 40));
        const float own = size * expf(.25f * random_normal(i / hidden_size + (uint64_t(5) << 40)));
        const float x = .8f * random_normal(i + (uint64_t(3) << 40)) + .5f * common;
        into[i] = __float2bfloat16(own * x * expf(.3f * common));
    }
}

/* Fills in hidden states, each of which leans to a token. */
__global__ void fill_leaning(__nv_bfloat16 *into, const __nv_bfloat16 *weight, int64_t hidden_size)
{
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= MAX_BATCH * hidden_size)
        return;
    const int64_t token = int64_t(random_bits(i / hidden_size + (uint64_t(6) << 40)) % VOCAB);
    const float leaning = 9.f * __bfloat162float(weight[token * hidden_size + i % hidden_size]);
    into[i] = __float2bfloat16(3.2f * random_normal(i + (uint64_t(1) << 40)) + leaning);
}

static void make_weights(const bench_data &m, int64_t hidden_size, head_kind head)
{
    if (head == GAUSSIAN) {
        make_normal(m.weight, VOCAB * hidden_size, 3, 2.5f / sqrtf(float(hidden_size)));
        make_normal(m.hidden, MAX_BATCH * hidden_size, 1, 1);
        return;
    }
    fill_structured<<<1024, 256>>>(m.weight, hidden_size);
    CHECKED(cudaGetLastError);
    fill_leaning<<<unsigned((MAX_BATCH * hidden_size + 255) / 256), 256>>>(m.hidden, m.weight,
                                                                           hidden_size);
    CHECKED(cudaGetLastError);
    CHECKED(cudaDeviceSynchronize);
}

/* ----------------------------------------------------------------------------------- times ---- */

static void queue_way(const bench_data &m, const draw_case &c, way by)
{
    if (by == GEMM) {
        queue_gemm(m.blas, m.weight, m.hidden, m.product, c.batch, VOCAB, c.hidden_size);
        return;
    }
    const gumbel_head head = make_head(m, c.batch, c.hidden_size, m.screens[by]);
    gumbel_sampling sampling = make_sampling(m.rows.temperature, m.rows.seed, m.rows.position);
    gumbel_output output = make_output(m.rows.tokens, nullptr);
    gumbel_truncation truncation = {};
    truncation.struct_size = sizeof truncation;
    truncation.top_k = {m.top_k, GUMBEL_SAME};
    truncation.top_p = {m.top_p, GUMBEL_SAME};
    sampling.truncation = c.rules == TOP_K_50 ? &truncation : nullptr;
    CHECKED(gumbel_sample, m.rows.gpu, m.rows.stream, &head, &sampling, &output, m.rows.workspace,
            m.rows.workspace_bytes, &error);
}

static measurement measure_case(const bench_data &m, const draw_case &c)
{
    measurement result = {c};
    for (way by : {BYTES, NIBBLES})
        result.differing[by] = count_differing(
            m, c.batch, [&] { queue_way(m, c, FULL); }, [&] { queue_way(m, c, by); });
    const auto queue_after_norm = [&](way by) {
        queue_norm(m.rows.stream, m.hidden, c.batch * c.hidden_size);
        queue_way(m, c, by);
    };
    const captured gemm(m.rows.stream, [&] { queue_after_norm(GEMM); });
    const captured full(m.rows.stream, [&] { queue_after_norm(FULL); });
    const captured bytes(m.rows.stream, [&] { queue_after_norm(BYTES); });
    const captured nibbles(m.rows.stream, [&] { queue_after_norm(NIBBLES); });
    const captured *const ways[WAYS] = {&gemm, &full, &bytes, &nibbles};
    result.times = time_in_turns(m.rows.stream, ways, 0,
                                 [&](int turn) { set_positions(m, uint64_t(77 * turn)); });
    return result;
}

/* ---------------------------------------------------------------------------------- report ---- */

static void print_measurement(const measurement &r)
{
    const double goal = find_goal(r.of);
    printf("%5lld %-10s %4lld %7s ", (long long)r.of.hidden_size, HEAD_NAMES[r.of.head],
           (long long)r.of.batch, REQUEST_NAMES[r.of.rules]);
    for (const spread &time : r.times)
        printf("%9.1f", time.median);
    printf(" %11.3f %12.3f ", divide_medians(r, BYTES, GEMM), divide_medians(r, NIBBLES, GEMM));
    if (goal > 0)
        printf("%5.2f", goal);
    else
        printf("%5s", "");
    printf(" %13.3f %8d %8d\n", divide_medians(r, NIBBLES, BYTES), r.differing[BYTES],
           r.differing[NIBBLES]);
    fflush(stdout);
}

static void write_row(FILE *file, const measurement &r)
{
    fprintf(file, "{\"d\": %lld, \"b\": %lld, \"head\": \"%s\", \"rules\": \"%s\", ",
            (long long)r.of.hidden_size, (long long)r.of.batch, HEAD_NAMES[r.of.head],
            REQUEST_NAMES[r.of.rules]);
    for (int by = 0; by < WAYS; by++)
        write_spread(file, WAY_NAMES[by], r.times[by]);
    fprintf(file, "\"bytes_vs_gemm\": %.4f, \"nibbles_vs_gemm\": %.4f, \"nibbles_vs_bytes\": %.4f",
            divide_medians(r, BYTES, GEMM), divide_medians(r, NIBBLES, GEMM),
            divide_medians(r, NIBBLES, BYTES));
    if (find_goal(r.of) > 0)
        fprintf(file, ", \"goal_of_nibbles_vs_gemm\": %.2f", find_goal(r.of));
    fprintf(file, ", \"tokens\": %lld, \"differing_bytes\": %d, \"differing_nibbles\": %d}",
            (long long)(POSITIONS * r.of.batch), r.differing[BYTES], r.differing[NIBBLES]);
}

static void write_json(const char *path, const char *commit, const char *gpu, const char *driver,
                       const std::vector<measurement> &results)
{
    FILE *file = fopen(path, "w");
    if (!file)
        die("%s: cannot be written", path);
    fprintf(file, "{\n \"question\": \"%s\",\n \"commit\": \"%s\",\n", QUESTION, commit);
    fprintf(file, " \"gpu\": \"%s\",\n \"driver\": \"%s\",\n \"vocab\": %lld,\n", gpu, driver,
            (long long)VOCAB);
    fprintf(file, " \"certificate\": \"probable\",\n \"calls_a_replay\": %d,\n \"replays\": %d,\n",
            CALLS, REPLAYS);
    fprintf(file, " \"unit\": \"microseconds of a call after a norm: [p10, median, p90]\",\n"
                  " \"rows\": [");
    for (size_t i = 0; i < results.size(); i++) {
        fprintf(file, "%s\n  ", i ? "," : "");
        write_row(file, results[i]);
    }
    fprintf(file, "\n ]\n}\n");
    const bool failed = ferror(file);
    if (fclose(file) != 0 || failed)
        die("%s: writing failed", path);
}

struct bench_options : shared_options {
    bool quick = false;
};

static bench_options read_options(int argc, char **argv)
{
    bench_options o;
    for (int i = 1; i < argc; i++) {
        if (read_shared_option(o, argc, argv, i))
            continue;
        if (strcmp(argv[i], "--quick") == 0)
            o.quick = true;
        else
            die("usage: bench_screen_formats [--json FILE] [--commit TEXT] [--quick] [D ...]");
    }
    if (o.sizes.empty())
        o.sizes = o.quick ? std::vector<int64_t>{4096} : std::vector<int64_t>{4096, 8192, 2048};
    return o;
}

static bench_data make_data(const bench_options &o)
{
    const int64_t hidden_max = *std::max_element(o.sizes.begin(), o.sizes.end());
    bench_data m = {open_head(hidden_max)};
    m.blas = open_blas(m.rows.stream);
    m.product = allocate<__nv_bfloat16>(MAX_BATCH * VOCAB);
    m.screens[BYTES] = allocate_screen(hidden_max, GUMBEL_SCREEN_BYTES);
    m.screens[NIBBLES] = allocate_screen(hidden_max, GUMBEL_SCREEN_NIBBLES);
    m.top_k = copy_in(std::vector<int32_t>{50});
    m.top_p = copy_in(std::vector<float>{0.95f});
    return m;
}

/* Measures and prints all requests and batch sizes of a head. */
static void measure_head(const bench_data &m, int64_t hidden_size, head_kind head, bool quick,
                         std::vector<measurement> &results)
{
    make_weights(m, hidden_size, head);
    for (way by : {BYTES, NIBBLES})
        prepare_screen(m, hidden_size, GUMBEL_SCREEN_PROBABLE, m.screens[by]);
    for (request rules : {NONE, TOP_K_50})
        for (int64_t batch : BATCHES) {
            const auto end = std::end(QUICK_BATCHES);
            if (quick && std::find(std::begin(QUICK_BATCHES), end, batch) == end)
                continue;
            results.push_back(measure_case(m, {hidden_size, batch, head, rules}));
            print_measurement(results.back());
        }
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
    printf("question: %s\n", QUESTION);
    printf("machine: %s, driver %s, V = %lld; medians in microseconds, after a norm\n\n", gpu.name,
           driver, (long long)VOCAB);
    printf("%5s %-10s %4s %7s %9s%9s%9s%9s %11s %12s %5s %13s %17s\n", "D", "head", "B", "request",
           "gemm", "full", "bytes", "nibbles", "bytes/gemm", "nibbles/gemm", "goal",
           "nibbles/bytes", "differing: b, n");
    for (int64_t size : o.sizes)
        for (head_kind head : {GAUSSIAN, STRUCTURED})
            if (!o.quick || head == GAUSSIAN)
                measure_head(m, size, head, o.quick, results);
    if (o.json)
        write_json(o.json, o.commit, gpu.name, driver, results);
    gumbel_close(m.rows.gpu);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * What does a request cost on an NVIDIA GPU: transforms, truncation and further outputs, over k, p,
 * the batch and the entropy of the rows, from logits and behind the product?
 *
 * usage: bench_requests [--json FILE] [--commit TEXT] [--quick]
 *
 * script/bench-gpu builds and runs it. --quick leaves out the sweeps over k and p.
 *
 * Tokens are compared with the CPU's before anything is timed. Times are those of
 * bench_fused_vs_gemm.cu: of one of 5 calls in a captured graph, over 30 replays.
 */
#include <cuda_bf16.h>

#include "cuda_measure.cuh"

static const char QUESTION[] = "what does a request cost on an NVIDIA GPU?";

constexpr int64_t VOCAB = 151936, HIDDEN = 4096, MAX_BATCH = 256, MASK_WORDS = VOCAB / 32;
constexpr int PROMPT = 500, OUTPUT = 100, TOP = 20;
constexpr size_t WORKSPACE = size_t(256) << 20;

/* What is asked for. */
struct question {
    const char *name;
    int32_t k;
    float p, min_p;
    gumbel_order order;
    bool greedy, penalties, mask, further, logprobs;
};

static const question PLAIN = {"plain draw", 0, 1, 0};

static const question QUESTIONS[] = {
    {"k = 50, p = 0.95", 50, 0.95f, 0},
    {"k = 50, p = 0.95, min_p = 0.05, penalties, mask", 50, 0.95f, 0.05f, {}, false, true, true},
    {"min_p = 0.05", 0, 1, 0.05f},
    {"p = 0.95", 0, 0.95f, 0},
    {"greedy, penalties", 0, 1, 0, {}, true, true},
    {"k = 1000", 1000, 1, 0},
    {"k = 50, p = 0.95, joint", 50, 0.95f, 0, GUMBEL_ORDER_JOINT},
    {"k = 50, p = 0.95, log-probabilities, 20 most likely, ranks",
     50,
     0.95f,
     0,
     {},
     false,
     false,
     false,
     true,
     true},
    {"penalties", 0, 1, 0, {}, false, true},
    {"penalties, log-probabilities", 0, 1, 0, {}, false, true, false, false, true},
};

/* The first ones, whose cost over the plain draw is limited. */
constexpr int LIMITED = 4;

/* What rows are like. */
enum shape { GAUSSIAN, PEAKED, SHAPES };
static const char *const SHAPE_NAMES[SHAPES] = {"Gaussian, sd 2.5", "Zipf, 3.2 nats"};

/* Everything on the GPU, sized for the largest call. */
struct bench {
    gpu_rows rows;
    float *logits[SHAPES], *bias;
    __nv_bfloat16 *weight[SHAPES], *hidden;
    float *one, *zero, *repetition, *frequency, *p, *min_p;
    int32_t *k, *mask, *ranks, *top_ids;
    float *top_logprobs;
    gumbel_history history;
    void *workspace;
};

/* ------------------------------------------------------------------------------------ data ---- */

/* Logits of a normal distribution, tails and all: top_k and min_p look at little else. */
__global__ void fill_normal(float *into, int64_t count, float deviation)
{
    int64_t step = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        uint64_t x = random_bits(i + 1);
        float u = (float(uint32_t(x)) + 1.0f) * 0x1p-32f, v = float(x >> 32) * 0x1p-32f;
        into[i] = deviation * sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
    }
}

static void make_normal(float *into, int64_t count, float deviation)
{
    fill_normal<<<1024, 256>>>(into, count, deviation);
    CHECKED(cudaGetLastError);
    CHECKED(cudaDeviceSynchronize);
}

/* Logits of a row whose r-th likeliest token has a probability in r^-1.5. */
__global__ void fill_zipf(float *into, int64_t rows)
{
    int64_t step = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * VOCAB; i += step) {
        int64_t row = i / VOCAB, token = i % VOCAB;
        into[i] = -1.5f * logf(1.0f + float((token * 99991 + row * 7919) % VOCAB));
    }
}

static void make_zipf(float *into, int64_t rows)
{
    fill_zipf<<<1024, 256>>>(into, rows);
    CHECKED(cudaGetLastError);
    CHECKED(cudaDeviceSynchronize);
}

static float *make_constant(float value) { return copy_in(std::vector<float>(MAX_BATCH, value)); }

/* Lists of `each` tokens a row. */
static gumbel_token_lists make_lists(int64_t each, int64_t factor)
{
    std::vector<int64_t> offsets(MAX_BATCH + 1);
    std::vector<int32_t> ids(MAX_BATCH * each);
    for (int64_t b = 0; b <= MAX_BATCH; b++)
        offsets[b] = b * each;
    for (size_t i = 0; i < ids.size(); i++)
        ids[i] = int32_t(int64_t(i) * factor % VOCAB);
    return {copy_in(offsets), copy_in(ids), nullptr};
}

static void make_history(bench &b)
{
    gumbel_token_lists prompts = make_lists(PROMPT, 7907), outputs = make_lists(OUTPUT, 104729);
    b.history = {};
    b.history.struct_size = sizeof b.history;
    b.history.vocab_size = VOCAB;
    b.history.prompt = make<uint32_t>(MAX_BATCH * MASK_WORDS);
    b.history.output = make<uint32_t>(MAX_BATCH * MASK_WORDS);
    b.history.counts = make<uint16_t>(MAX_BATCH * VOCAB);
    CHECKED(gumbel_history_start, b.rows.gpu, &b.history, MAX_BATCH, &prompts, &outputs,
            b.rows.stream, &error);
    CHECKED(cudaStreamSynchronize, b.rows.stream);
}

/* Seven of eight tokens are allowed. */
static int32_t *make_mask()
{
    std::vector<int32_t> words(MAX_BATCH * MASK_WORDS);
    for (size_t i = 0; i < words.size(); i++)
        words[i] = int32_t(~(0x01010101u << i % 8));
    return copy_in(words);
}

static bench open_bench()
{
    bench b = {};
    b.rows = open_rows(MAX_BATCH, HIDDEN);
    for (int s = 0; s < SHAPES; s++) {
        b.logits[s] = make<float>(MAX_BATCH * VOCAB);
        b.weight[s] = make<__nv_bfloat16>(VOCAB * HIDDEN);
        make_random(b.weight[s], VOCAB * HIDDEN, 3, (s == GAUSSIAN ? 2.5f : 0.1f) / sqrtf(HIDDEN));
    }
    make_normal(b.logits[GAUSSIAN], MAX_BATCH * VOCAB, 2.5f);
    make_zipf(b.logits[PEAKED], MAX_BATCH);
    b.bias = make<float>(VOCAB);
    make_zipf(b.bias, 1);
    b.hidden = make<__nv_bfloat16>(MAX_BATCH * HIDDEN);
    make_random(b.hidden, MAX_BATCH * HIDDEN, 1, 1);
    b.one = make_constant(1);
    b.zero = make_constant(0);
    b.repetition = make_constant(1.1f);
    b.frequency = make_constant(0.2f);
    b.p = make<float>(MAX_BATCH);
    b.min_p = make<float>(MAX_BATCH);
    b.k = make<int32_t>(MAX_BATCH);
    b.mask = make_mask();
    b.ranks = make<int32_t>(MAX_BATCH);
    b.top_ids = make<int32_t>(MAX_BATCH * TOP);
    b.top_logprobs = make<float>(MAX_BATCH * TOP);
    make_history(b);
    b.workspace = make<char>(WORKSPACE);
    return b;
}

/* ----------------------------------------------------------------------------------- calls ---- */

/* A call with a question's parameters; the pointers are into a bench or into host memory. */
struct call {
    gumbel_sampling sampling;
    gumbel_transforms transforms;
    gumbel_truncation truncation;
    gumbel_output output;
};

static void ask(const bench &b, const question &q, call &c)
{
    c = {};
    c.sampling =
        make_sampling(q.greedy ? b.zero : b.one, b.rows.seed, b.rows.position, b.rows.stream);
    c.output = make_output(b.rows.tokens, q.logprobs ? b.rows.logprobs : nullptr);
    c.transforms.struct_size = sizeof c.transforms;
    c.truncation.struct_size = sizeof c.truncation;
    if (q.mask) {
        c.transforms.mask = b.mask;
        c.transforms.mask_stride = MASK_WORDS;
    }
    if (q.penalties) {
        c.transforms.repetition = b.repetition;
        c.transforms.frequency = b.frequency;
        c.transforms.repetition_stride = c.transforms.frequency_stride = 1;
        c.transforms.history = &b.history;
    }
    if (q.mask || q.penalties)
        c.sampling.transforms = &c.transforms;
    if (q.k > 0 || q.p < 1 || q.min_p > 0) {
        c.truncation.order = q.order;
        c.truncation.top_k = q.k > 0 ? b.k : nullptr;
        c.truncation.top_p = q.p < 1 ? b.p : nullptr;
        c.truncation.min_p = q.min_p > 0 ? b.min_p : nullptr;
        c.truncation.top_k_stride = q.k > 0;
        c.truncation.top_p_stride = q.p < 1;
        c.truncation.min_p_stride = q.min_p > 0;
        c.sampling.truncation = &c.truncation;
    }
    if (q.further) {
        c.output.ranks = b.ranks;
        c.output.top_ids = b.top_ids;
        c.output.top_logprobs = b.top_logprobs;
        c.output.num_top = TOP;
    }
}

/* The rows' parameters, before they are read by calls. */
static void set_parameters(const bench &b, const question &q)
{
    std::vector<int32_t> k(MAX_BATCH, q.k);
    std::vector<float> p(MAX_BATCH, q.p), min_p(MAX_BATCH, q.min_p);
    CHECKED(cudaMemcpy, b.k, k.data(), MAX_BATCH * sizeof(int32_t), cudaMemcpyHostToDevice);
    CHECKED(cudaMemcpy, b.p, p.data(), MAX_BATCH * sizeof(float), cudaMemcpyHostToDevice);
    CHECKED(cudaMemcpy, b.min_p, min_p.data(), MAX_BATCH * sizeof(float), cudaMemcpyHostToDevice);
}

static gumbel_logits describe_logits(const float *data, int64_t B)
{
    gumbel_logits logits = {};
    logits.struct_size = sizeof logits;
    logits.logits = {data, GUMBEL_FLOAT32, B, VOCAB, 0};
    return logits;
}

static void draw_logits(const bench &b, const question &q, shape s, int64_t B)
{
    call c;
    ask(b, q, c);
    gumbel_logits logits = describe_logits(b.logits[s], B);
    CHECKED(gumbel_sample_logits, b.rows.gpu, &logits, &c.sampling, &c.output, b.workspace,
            WORKSPACE, &error);
}

static void draw_fused(const bench &b, const question &q, shape s, int64_t B)
{
    call c;
    ask(b, q, c);
    gumbel_head head = {};
    head.struct_size = sizeof head;
    head.hidden = {b.hidden, GUMBEL_BFLOAT16, B, HIDDEN, 0};
    head.weight = {b.weight[s], GUMBEL_BFLOAT16, VOCAB, HIDDEN, 0};
    if (s == PEAKED)
        head.bias = {b.bias, GUMBEL_FLOAT32, 1, VOCAB, 0};
    CHECKED(gumbel_sample, b.rows.gpu, &head, &c.sampling, &c.output, b.workspace, WORKSPACE,
            &error);
}

/* The GPU's tokens of the first question are the CPU's. */
static void verify(const bench &b, shape s)
{
    const int64_t B = 4;
    const question &q = QUESTIONS[0];
    set_parameters(b, q);
    draw_logits(b, q, s, B);
    CHECKED(cudaStreamSynchronize, b.rows.stream);
    auto tokens = copy_out(b.rows.tokens, B);
    auto values = copy_out(b.logits[s], B * VOCAB), one = copy_out(b.one, B), p = copy_out(b.p, B);
    auto seed = copy_out(b.rows.seed, B);
    auto position = copy_out(b.rows.position, B);
    auto k = copy_out(b.k, B);
    gumbel_device *cpu;
    size_t bytes;
    std::vector<int32_t> expected(B);
    call c;
    ask(b, q, c);
    gumbel_logits logits = describe_logits(values.data(), B);
    c.sampling.temperature = one.data();
    c.sampling.seed = seed.data();
    c.sampling.position = position.data();
    c.sampling.stream = nullptr;
    c.truncation.top_k = k.data();
    c.truncation.top_p = p.data();
    c.output.tokens = expected.data();
    CHECKED(gumbel_open, nullptr, &cpu, &error);
    CHECKED(gumbel_call_workspace_size, cpu, nullptr, &logits, &c.sampling, &c.output, &bytes,
            &error);
    void *workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!workspace)
        die("out of memory");
    CHECKED(gumbel_sample_logits, cpu, &logits, &c.sampling, &c.output, workspace, bytes, &error);
    for (int row = 0; row < B; row++)
        if (tokens[row] != expected[row])
            die("row %d: token %d on the GPU, %d on the CPU", row, tokens[row], expected[row]);
    free(workspace);
    gumbel_close(cpu);
}

/* ---------------------------------------------------------------------------------- report ---- */

/* One measurement; the plain draw is one of a question without parameters. */
struct point {
    const char *way, *table;
    question asked;
    shape rows;
    int64_t B;
    spread draw;
    double plain_us; /* of plain draws in turns with it, a median; or 0 */
};

static std::vector<point> points;

static double measure(const bench &b, const char *table, const question &q, shape s, int64_t B,
                      bool fused)
{
    std::vector<double> times;
    set_parameters(b, q);
    time_call(b.rows.stream, times,
              [&] { fused ? draw_fused(b, q, s, B) : draw_logits(b, q, s, B); });
    points.push_back({fused ? "fused" : "logits", table, q, s, B, describe(times), 0});
    return points.back().draw.median;
}

static const int64_t BATCHES[] = {1, 8, 32, 64, 256};

/* What a question costs behind the product over a plain draw, in percent, the two in turns: each
 * call behind a norm, since draws that follow each other overlap, and an engine's do not. */
static double measure_over_plain(const bench &b, const question &q, shape s, int64_t B)
{
    set_parameters(b, q);
    const captured drawn(b.rows.stream, [&] {
        normalise(b.rows.stream, b.hidden, B * HIDDEN);
        draw_fused(b, PLAIN, s, B);
    });
    const captured asked(b.rows.stream, [&] {
        normalise(b.rows.stream, b.hidden, B * HIDDEN);
        draw_fused(b, q, s, B);
    });
    const captured *const ways[] = {&drawn, &asked};
    const auto times = time_in_turns(b.rows.stream, ways);
    points.push_back({"fused", "over plain", q, s, B, times[1], times[0].median});
    return 100 * (times[1].median / times[0].median - 1);
}

/* A line of medians over the batch. */
static void measure_line(const bench &b, const char *table, const question &q, shape s, bool fused)
{
    printf("%-60s %-18s", q.name, SHAPE_NAMES[s]);
    for (int64_t B : BATCHES)
        printf(" %8.1f", measure(b, table, q, s, B, fused));
    printf("\n");
    fflush(stdout);
}

static void measure_questions(const bench &b, bool fused)
{
    printf("\n%s, V = %lld, us at B = 1, 8, 32, 64, 256\n",
           fused ? "behind the product, D = 4096" : "from float32 logits", (long long)VOCAB);
    for (int s = 0; s < SHAPES; s++) {
        measure_line(b, "requests", PLAIN, shape(s), fused);
        for (const question &q : QUESTIONS)
            measure_line(b, "requests", q, shape(s), fused);
    }
}

static void measure_over_plain(const bench &b)
{
    printf("\nover the plain draw, in turns, %%, at B = 1, 8, 16, 32, 64, 128, 256\n");
    for (int s = 0; s < SHAPES; s++)
        for (int i = 0; i < LIMITED; i++) {
            printf("%-60s %-18s", QUESTIONS[i].name, SHAPE_NAMES[s]);
            for (int64_t B : {1, 8, 16, 32, 64, 128, 256})
                printf(" %8.1f", measure_over_plain(b, QUESTIONS[i], shape(s), B));
            printf("\n");
            fflush(stdout);
        }
}

static void measure_sweeps(const bench &b)
{
    static char names[64][32];
    int used = 0;
    printf("\nover k and p, from float32 logits\n");
    for (int s = 0; s < SHAPES; s++) {
        for (int32_t k : {1, 10, 50, 100, 200, 500, 1000, 10000, 100000}) {
            snprintf(names[used], sizeof names[0], "k = %d", k);
            measure_line(b, "k", {names[used++], k, 1, 0}, shape(s), false);
        }
        for (float p : {0.1f, 0.5f, 0.8f, 0.9f, 0.95f, 0.99f, 0.999f}) {
            snprintf(names[used], sizeof names[0], "p = %g", p);
            measure_line(b, "p", {names[used++], 0, p, 0}, shape(s), false);
        }
    }
}

static void write_json(const char *path, const char *commit)
{
    cudaDeviceProp gpu;
    char driver[64];
    CHECKED(cudaGetDeviceProperties, &gpu, 0);
    find_driver(driver, sizeof driver);
    FILE *file = fopen(path, "w");
    if (!file)
        die("%s: it cannot be written", path);
    fprintf(file, "{\n  \"question\": \"%s\",\n  \"version\": \"%s\",\n", QUESTION,
            gumbel_version_string());
    fprintf(file, "  \"commit\": \"%s\",\n  \"gpu\": \"%s\",\n  \"driver\": \"%s\",\n", commit,
            gpu.name, driver);
    fprintf(file, "  \"vocab\": %lld,\n  \"hidden\": %lld,\n", (long long)VOCAB, (long long)HIDDEN);
    fprintf(file, "  \"calls_a_replay\": %d,\n  \"replays\": %d,\n  \"requests\": [", CALLS,
            REPLAYS);
    for (size_t i = 0; i < points.size(); i++) {
        const point &at = points[i];
        fprintf(file, "%s\n    {\"way\": \"%s\", \"table\": \"%s\", \"asked\": \"%s\",",
                i ? "," : "", at.way, at.table, at.asked.name);
        fprintf(file, " \"rows\": \"%s\", \"top_k\": %d, \"top_p\": %g, \"batch\": %lld,",
                SHAPE_NAMES[at.rows], at.asked.k, at.asked.p, (long long)at.B);
        if (at.plain_us > 0)
            fprintf(file, " \"plain_us\": %.3f,", at.plain_us);
        fprintf(file, "\n     \"median_us\": %.3f, \"p10_us\": %.3f, \"p90_us\": %.3f}",
                at.draw.median, at.draw.p10, at.draw.p90);
    }
    fprintf(file, "\n  ]\n}\n");
    bool failed = ferror(file);
    if (fclose(file) != 0 || failed)
        die("%s: writing failed", path);
}

int main(int argc, char **argv)
{
    const char *json = nullptr, *commit = "unknown";
    bool quick = false;
    for (int i = 1; i < argc; i++)
        if (i + 1 < argc && strcmp(argv[i], "--json") == 0)
            json = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--commit") == 0)
            commit = argv[++i];
        else if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else
            die("%s: the options are --json FILE, --commit TEXT and --quick", argv[i]);
    for (const char *at = commit; *at; at++)
        if (*at < ' ' || *at > '~' || *at == '"' || *at == '\\')
            die("--commit: plain ASCII without quotes and backslashes is expected");
    bench b = open_bench();
    for (int s = 0; s < SHAPES; s++)
        verify(b, shape(s));
    printf("question: %s\n", QUESTION);
    measure_questions(b, false);
    measure_questions(b, true);
    measure_over_plain(b);
    if (!quick)
        measure_sweeps(b);
    if (json)
        write_json(json, commit);
    return 0;
}

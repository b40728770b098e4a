/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the benchmarks of requests on an NVIDIA GPU: the requests, and their calls for random
 * rows on the GPU.
 */
#pragma once

#include <cuda_bf16.h>

#include "result_file.cuh"

constexpr int64_t VOCAB = 151936, HIDDEN = 4096, MAX_BATCH = 512, MASK_WORDS = VOCAB / 32;
constexpr int PROMPT = 500, OUTPUT = 100, TOP = 20, KEPT = 128;
constexpr size_t WORKSPACE = size_t(256) << 20;

/* The parameters of a request. */
struct question {
    const char *name;
    int32_t k;
    float p, min_p;
    gumbel_order order;
    bool greedy, penalties, mask, further, logprobs, kept_sets, entropy;
};

static const question PLAIN = {"plain draw", 0, 1, 0};

static question truncate_with_logprobs(const char *name, bool kept_sets, bool entropy)
{
    question q = {name, 50, 0.95f, 0};
    q.logprobs = true;
    q.kept_sets = kept_sets;
    q.entropy = entropy;
    return q;
}

static const question QUESTIONS[] = {
    {"k = 50, p = 0.95", 50, 0.95f, 0},
    {"k = 50, p = 0.95, min_p = 0.05, penalties, mask", 50, 0.95f, 0.05f, {}, false, true, true},
    {"min_p = 0.05", 0, 1, 0.05f},
    {"p = 0.95", 0, 0.95f, 0},
    {"greedy, penalties", 0, 1, 0, {}, true, true},
    {"k = 1000", 1000, 1, 0},
    {"k = 50, p = 0.95, joint", 50, 0.95f, 0, GUMBEL_ORDER_JOINT},
    {"k = 50, p = 0.95, then min_p = 0.05", 50, 0.95f, 0.05f, GUMBEL_ORDER_TOP_K_TOP_P_MIN_P},
    {"p = 0.95, then min_p = 0.05", 0, 0.95f, 0.05f, GUMBEL_ORDER_TOP_K_TOP_P_MIN_P},
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
    truncate_with_logprobs("k = 50, p = 0.95, log-probabilities", false, false),
    truncate_with_logprobs("k = 50, p = 0.95, log-probabilities, kept sets", true, false),
    truncate_with_logprobs("k = 50, p = 0.95, log-probabilities, entropy", false, true),
    truncate_with_logprobs("k = 50, p = 0.95, log-probabilities, entropy, kept sets", true, true),
};

/* The distribution of the logits of a row. */
enum shape { GAUSSIAN, PEAKED, SHAPES };
static const char *const SHAPE_NAMES[SHAPES] = {"Gaussian, sd 2.5", "Zipf, 3.2 nats"};

/* All data on the GPU, sized for the largest call. */
struct bench {
    gpu_rows rows;
    float *logits[SHAPES], *bias;
    __nv_bfloat16 *weight[SHAPES], *hidden;
    float *one, *zero, *repetition, *frequency, *p, *min_p;
    int32_t *k, *mask, *ranks, *top_ids, *kept, *kept_ids;
    float *top_logprobs, *kept_logprobs, *entropy;
    gumbel_history history;
    void *workspace;
};

/* ------------------------------------------------------------------------------------ data ---- */

/* Fills in logits of a row whose r-th most likely token has a probability proportional to
 * r^-1.5. */
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
    return {copy_in(offsets), copy_in(ids), nullptr, 0};
}

static void make_history(bench &b)
{
    gumbel_token_lists prompts = make_lists(PROMPT, 7907), outputs = make_lists(OUTPUT, 104729);
    b.history = {};
    b.history.struct_size = sizeof b.history;
    b.history.vocab_size = VOCAB;
    b.history.prompt = allocate<uint32_t>(MAX_BATCH * MASK_WORDS);
    b.history.output = allocate<uint32_t>(MAX_BATCH * MASK_WORDS);
    b.history.counts = allocate<uint16_t>(MAX_BATCH * VOCAB);
    CHECKED(gumbel_history_start, b.rows.gpu, b.rows.stream, &b.history, MAX_BATCH, nullptr,
            &prompts, &outputs, &error);
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
        b.logits[s] = allocate<float>(MAX_BATCH * VOCAB);
        b.weight[s] = allocate<__nv_bfloat16>(VOCAB * HIDDEN);
        make_random(b.weight[s], VOCAB * HIDDEN, 3, (s == GAUSSIAN ? 2.5f : 0.1f) / sqrtf(HIDDEN));
    }
    make_normal(b.logits[GAUSSIAN], MAX_BATCH * VOCAB, 0, 2.5f);
    make_zipf(b.logits[PEAKED], MAX_BATCH);
    b.bias = allocate<float>(VOCAB);
    make_zipf(b.bias, 1);
    b.hidden = allocate<__nv_bfloat16>(MAX_BATCH * HIDDEN);
    make_random(b.hidden, MAX_BATCH * HIDDEN, 1, 1);
    b.one = make_constant(1);
    b.zero = make_constant(0);
    b.repetition = make_constant(1.1f);
    b.frequency = make_constant(0.2f);
    b.p = allocate<float>(MAX_BATCH);
    b.min_p = allocate<float>(MAX_BATCH);
    b.k = allocate<int32_t>(MAX_BATCH);
    b.mask = make_mask();
    b.ranks = allocate<int32_t>(MAX_BATCH);
    b.top_ids = allocate<int32_t>(MAX_BATCH * TOP);
    b.top_logprobs = allocate<float>(MAX_BATCH * TOP);
    b.kept = allocate<int32_t>(MAX_BATCH);
    b.kept_ids = allocate<int32_t>(MAX_BATCH * KEPT);
    b.kept_logprobs = allocate<float>(MAX_BATCH * KEPT);
    b.entropy = allocate<float>(MAX_BATCH);
    make_history(b);
    b.workspace = allocate<char>(WORKSPACE);
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

static void fill_call(const bench &b, const question &q, call &c)
{
    c = {};
    c.sampling = make_sampling(q.greedy ? b.zero : b.one, b.rows.seed, b.rows.position);
    c.output = make_output(b.rows.tokens, q.logprobs ? b.rows.logprobs : nullptr);
    c.transforms.struct_size = sizeof c.transforms;
    c.truncation.struct_size = sizeof c.truncation;
    if (q.mask)
        c.transforms.mask = {b.mask, MASK_WORDS};
    if (q.penalties) {
        c.transforms.repetition = {b.repetition, 0};
        c.transforms.frequency = {b.frequency, 0};
        c.transforms.history = &b.history;
    }
    if (q.mask || q.penalties)
        c.sampling.transforms = &c.transforms;
    if (q.k > 0 || q.p < 1 || q.min_p > 0) {
        c.truncation.order = q.order;
        c.truncation.top_k = {q.k > 0 ? b.k : nullptr, 0};
        c.truncation.top_p = {q.p < 1 ? b.p : nullptr, 0};
        c.truncation.min_p = {q.min_p > 0 ? b.min_p : nullptr, 0};
        c.sampling.truncation = &c.truncation;
    }
    if (q.further) {
        c.output.ranks = b.ranks;
        c.output.top_ids = b.top_ids;
        c.output.top_logprobs = b.top_logprobs;
        c.output.num_top = TOP;
    }
    c.output.entropy = q.entropy ? b.entropy : nullptr;
    if (q.kept_sets) {
        c.output.kept = b.kept;
        c.output.kept_ids = b.kept_ids;
        c.output.kept_logprobs = b.kept_logprobs;
        c.output.kept_capacity = KEPT;
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
    fill_call(b, q, c);
    gumbel_logits logits = describe_logits(b.logits[s], B);
    CHECKED(gumbel_sample_logits, b.rows.gpu, b.rows.stream, &logits, &c.sampling, &c.output,
            b.workspace, WORKSPACE, &error);
}

static gumbel_head describe_head(const bench &b, shape s, int64_t B)
{
    gumbel_head head = {};
    head.struct_size = sizeof head;
    head.hidden = {b.hidden, GUMBEL_BFLOAT16, B, HIDDEN, 0};
    head.weight = {b.weight[s], GUMBEL_BFLOAT16, VOCAB, HIDDEN, 0};
    if (s == PEAKED)
        head.bias = {b.bias, GUMBEL_FLOAT32, 1, VOCAB, 0};
    return head;
}

static void queue_fused(const bench &b, const call &c, shape s, int64_t B)
{
    const gumbel_head head = describe_head(b, s, B);
    CHECKED(gumbel_sample, b.rows.gpu, b.rows.stream, &head, &c.sampling, &c.output, b.workspace,
            WORKSPACE, &error);
}

static void draw_fused(const bench &b, const question &q, shape s, int64_t B)
{
    call c;
    fill_call(b, q, c);
    queue_fused(b, c, s, B);
}

/* The GPU's tokens of the first question are the CPU's. */
static void verify_tokens(const bench &b, shape s)
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
    fill_call(b, q, c);
    gumbel_logits logits = describe_logits(values.data(), B);
    c.sampling.temperature.data = one.data();
    c.sampling.seed.data = seed.data();
    c.sampling.position.data = position.data();
    c.truncation.top_k.data = k.data();
    c.truncation.top_p.data = p.data();
    c.output.tokens = expected.data();
    CHECKED(gumbel_open, nullptr, &cpu, &error);
    CHECKED(gumbel_workspace_size, cpu, nullptr, &logits, &c.sampling, &c.output, &bytes, &error);
    void *workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!workspace)
        die("out of memory");
    CHECKED(gumbel_sample_logits, cpu, nullptr, &logits, &c.sampling, &c.output, workspace, bytes,
            &error);
    for (int row = 0; row < B; row++)
        if (tokens[row] != expected[row])
            die("row %d: token %d on the GPU, %d on the CPU", row, tokens[row], expected[row]);
    free(workspace);
    gumbel_close(cpu);
}

/* --------------------------------------------------------------------------------- results ---- */

/* begin_results(), and the sizes of the requests. */
static FILE *open_results(const char *path, const char *question, const char *commit)
{
    FILE *file = begin_results(path, question, commit);
    fprintf(file, "  \"vocab\": %lld,\n  \"hidden\": %lld,\n", (long long)VOCAB, (long long)HIDDEN);
    return file;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * How long does a draw of rows with few allowed tokens take on an NVIDIA GPU?
 *
 * usage: bench_allowed [--json FILE] [--commit TEXT]
 *
 * script/bench-gpu --allowed builds and runs it. V = 151936, D = 4096, bfloat16. Each row has its
 * own list of random tokens. Tokens and log-probabilities without max_allowed, with it, and with it
 * in two launches (rungs -allowed-fused) are compared before all are timed, in turns with the plain
 * draw, as graphs of 5 calls.
 */
#include "bench/result_file.cuh"

static const char QUESTION[] = "how long does a draw of rows with few allowed tokens take?";

constexpr int64_t VOCAB = 151936, HIDDEN = 4096, MAX_ROWS = 8;
constexpr int64_t ROWS[] = {1, MAX_ROWS}, COUNTS[] = {2, 64, 1024, 4096};

struct bench_data {
    gpu_rows rows;
    gumbel_device *two_launches; /* without the rung that draws in one */
    __nv_bfloat16 *weight, *hidden;
    void *workspace;
    size_t workspace_bytes;
};

struct point {
    int64_t batch, allowed;
    bool logprobs;
    spread plain, without, two, with; /* without max_allowed; with it, in two launches; in one */
};

static std::vector<point> points;

static gumbel_token_lists make_lists(int64_t batch, int64_t count)
{
    std::vector<int64_t> offsets;
    std::vector<int32_t> ids;
    uint64_t state = 1;
    for (int64_t b = 0; b <= batch; b++)
        offsets.push_back(b * count);
    for (int64_t i = 0; i < batch * count; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        ids.push_back(int32_t((state >> 33) % VOCAB));
    }
    return {copy_in(offsets), copy_in(ids), nullptr, 0};
}

/* Queues a draw on a device; max_allowed < 0: a plain one. */
static void queue_call(const bench_data &m, gumbel_device *device, const point &at,
                       const gumbel_token_lists &lists, int64_t max_allowed)
{
    gumbel_head head = {};
    gumbel_transforms transforms = {};
    gumbel_sampling sampling = make_sampling(m.rows.temperature, m.rows.seed, m.rows.position);
    gumbel_output output = make_output(m.rows.tokens, at.logprobs ? m.rows.logprobs : nullptr);
    head.struct_size = sizeof head;
    head.hidden = {m.hidden, GUMBEL_BFLOAT16, at.batch, HIDDEN, 0, {}};
    head.weight = {m.weight, GUMBEL_BFLOAT16, VOCAB, HIDDEN, 0, {}};
    transforms.struct_size = sizeof transforms;
    transforms.allowed = lists;
    transforms.max_allowed = max_allowed;
    sampling.transforms = max_allowed < 0 ? nullptr : &transforms;
    CHECKED(gumbel_sample, device, m.rows.stream, &head, &sampling, &output, m.workspace,
            m.workspace_bytes, &error);
}

/* The outputs of a call. */
static std::vector<float> draw_once(const bench_data &m, gumbel_device *device, const point &at,
                                    const gumbel_token_lists &lists, int64_t max_allowed)
{
    queue_call(m, device, at, lists, max_allowed);
    CHECKED(cudaStreamSynchronize, m.rows.stream);
    std::vector<float> found;
    for (int32_t token : copy_out(m.rows.tokens, at.batch))
        found.push_back(float(token)); /* exact: V < 2^24 */
    if (at.logprobs)
        for (float logprob : copy_out(m.rows.logprobs, at.batch))
            found.push_back(logprob);
    return found;
}

static void measure(const bench_data &m, point at)
{
    const gumbel_token_lists lists = make_lists(at.batch, at.allowed);
    gumbel_device *const usual = m.rows.gpu;
    const auto expected = draw_once(m, usual, at, lists, 0);
    if (draw_once(m, usual, at, lists, at.allowed) != expected ||
        draw_once(m, m.two_launches, at, lists, at.allowed) != expected)
        die("max_allowed changes outputs");
    const captured plain(m.rows.stream, [&] { queue_call(m, usual, at, lists, -1); });
    const captured without(m.rows.stream, [&] { queue_call(m, usual, at, lists, 0); });
    const captured two(m.rows.stream,
                       [&] { queue_call(m, m.two_launches, at, lists, at.allowed); });
    const captured with(m.rows.stream, [&] { queue_call(m, usual, at, lists, at.allowed); });
    const captured *const ways[] = {&plain, &without, &two, &with};
    const auto times = time_in_turns(m.rows.stream, ways);
    at.plain = times[0];
    at.without = times[1];
    at.two = times[2];
    at.with = times[3];
    points.push_back(at);
    printf("%4lld %8lld %-8s %7.1f %7.1f %7.1f %7.1f (%.1f..%.1f) %6.3f\n", (long long)at.batch,
           (long long)at.allowed, at.logprobs ? "yes" : "no", at.plain.median, at.without.median,
           at.two.median, at.with.median, at.with.p10, at.with.p90, at.with.median / at.two.median);
    fflush(stdout);
    CHECKED(cudaFree, const_cast<int64_t *>(lists.offsets));
    CHECKED(cudaFree, const_cast<int32_t *>(lists.ids));
}

static void write_json(const char *path, const char *commit)
{
    FILE *file = begin_results(path, QUESTION, commit);
    fprintf(file, "  \"vocab_size\": %lld,\n  \"hidden_size\": %lld,\n  \"allowed\": [",
            (long long)VOCAB, (long long)HIDDEN);
    for (size_t i = 0; i < points.size(); i++) {
        const point &at = points[i];
        fprintf(file, "%s\n    {\"batch\": %lld, \"allowed\": %lld, \"logprobs\": %s, ",
                i ? "," : "", (long long)at.batch, (long long)at.allowed,
                at.logprobs ? "true" : "false");
        write_spread(file, "plain", at.plain);
        fprintf(file, ", ");
        write_spread(file, "without_it", at.without);
        fprintf(file, ", ");
        write_spread(file, "two_launches", at.two);
        fprintf(file, ", ");
        write_spread(file, "with_it", at.with);
        fprintf(file, "}");
    }
    fprintf(file, "\n  ]\n}\n");
    close_results(file, path);
}

int main(int argc, char **argv)
{
    const bench_options options = read_options(argc, argv);
    bench_data m = {};
    gumbel_limits limits = {};
    gumbel_device_options two = {};
    two.struct_size = sizeof two;
    two.device = "cuda:0";
    two.rungs = "-allowed-fused";
    m.rows = open_rows(MAX_ROWS, HIDDEN);
    CHECKED(gumbel_open, &two, &m.two_launches, &error);
    m.weight = allocate<__nv_bfloat16>(VOCAB * HIDDEN);
    m.hidden = allocate<__nv_bfloat16>(MAX_ROWS * HIDDEN);
    make_random(m.weight, VOCAB * HIDDEN, 1, 0.02f);
    make_random(m.hidden, MAX_ROWS * HIDDEN, 2, 1.0f);
    limits.struct_size = sizeof limits;
    limits.batch = MAX_ROWS;
    limits.vocab_size = VOCAB;
    limits.hidden_size = HIDDEN;
    limits.requests = 1;
    CHECKED(gumbel_workspace_most, m.rows.gpu, &limits, &m.workspace_bytes, &error);
    m.workspace = allocate<char>(m.workspace_bytes); /* also for two launches */
    printf("question: %s\nus of a call\n", QUESTION);
    printf("rows  allowed logprobs   plain without    two     with (p10..p90)  with / two\n");
    for (bool logprobs : {false, true})
        for (int64_t batch : ROWS)
            for (int64_t count : COUNTS)
                measure(m, {batch, count, logprobs, {}, {}, {}});
    if (options.json)
        write_json(options.json, options.commit);
    gumbel_close(m.two_launches);
    gumbel_close(m.rows.gpu);
    return 0;
}

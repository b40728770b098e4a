/* SPDX-License-Identifier: Apache-2.0
 *
 * How much longer does a draw from logits take if it also returns the entropy of each row?
 *
 * usage: bench_entropy [--json FILE] [--commit TEXT]
 *
 * script/bench-gpu --entropy builds and runs it. The call without the entropy returns tokens and
 * log-normalisers, too. Entropies are compared with the CPU's before anything is timed. The two
 * ways take turns; medians are of 30 replays of 5 calls.
 */
#include "bench/result_file.cuh"

static const char QUESTION[] = "how much longer does a draw with the entropy of each row take?";

constexpr int64_t VOCAB = 151936, MAX_ROWS = 2048, VERIFIED_ROWS = 4;
static const int64_t BATCHES[] = {1, 8, 64, 256, MAX_ROWS};

enum way { LSE, LSE_AND_ENTROPY, WAYS };
static const char *const WAY_NAMES[WAYS] = {"lse", "lse_entropy"};

struct rows {
    gpu_rows draws;
    float *lse, *entropy;
};

static gumbel_logits logits_of(const void *data, gumbel_dtype dtype, int64_t batch)
{
    gumbel_logits logits = {};
    logits.struct_size = sizeof logits;
    logits.logits = {data, dtype, batch, VOCAB, 0};
    return logits;
}

static void queue_rows(const rows &r, way which, const void *data, gumbel_dtype dtype,
                       int64_t batch)
{
    const gumbel_logits logits = logits_of(data, dtype, batch);
    const gumbel_sampling how = make_sampling(r.draws.temperature, r.draws.seed, r.draws.position);
    gumbel_output output = make_output(r.draws.tokens, nullptr);
    output.lse = r.lse;
    output.entropy = which == LSE_AND_ENTROPY ? r.entropy : nullptr;
    CHECKED(gumbel_sample_logits, r.draws.gpu, r.draws.stream, &logits, &how, &output,
            r.draws.workspace, r.draws.workspace_bytes, &error);
}

/* Ends the program if an entropy is not the CPU's. */
static void verify(const rows &r, const void *data, gumbel_dtype dtype)
{
    const size_t bytes = VERIFIED_ROWS * VOCAB * (dtype == GUMBEL_FLOAT32 ? 4 : 2);
    const std::vector<char> host = copy_out(static_cast<const char *>(data), bytes);
    const std::vector<float> temperature = copy_out(r.draws.temperature, VERIFIED_ROWS);
    const gumbel_logits logits = logits_of(host.data(), dtype, VERIFIED_ROWS);
    std::vector<int32_t> tokens(VERIFIED_ROWS);
    std::vector<float> entropy(VERIFIED_ROWS);
    gumbel_sampling how = {};
    gumbel_output output = make_output(tokens.data(), nullptr);
    gumbel_device *cpu;
    size_t room;
    how.struct_size = sizeof how;
    how.temperature = {temperature.data(), 0};
    output.entropy = entropy.data();
    queue_rows(r, LSE_AND_ENTROPY, data, dtype, VERIFIED_ROWS);
    CHECKED(cudaStreamSynchronize, r.draws.stream);
    CHECKED(gumbel_open, nullptr, &cpu, &error);
    CHECKED(gumbel_workspace_size, cpu, nullptr, &logits, &how, &output, &room, &error);
    void *workspace = aligned_alloc(GUMBEL_WORKSPACE_ALIGNMENT, (room + 63) / 64 * 64);
    CHECKED(gumbel_sample_logits, cpu, nullptr, &logits, &how, &output, workspace, room, &error);
    const std::vector<float> found = copy_out(r.entropy, VERIFIED_ROWS);
    if (memcmp(found.data(), entropy.data(), VERIFIED_ROWS * sizeof(float)) != 0)
        die("entropies differ from the CPU's");
    free(workspace);
    gumbel_close(cpu);
}

struct point {
    const char *dtype;
    int64_t batch;
    std::array<spread, WAYS> times; /* microseconds of a call */
};

static std::vector<point> points;

static void measure(const rows &r, const void *data, gumbel_dtype dtype, const char *name,
                    int64_t batch)
{
    const captured lse(r.draws.stream, [&] { queue_rows(r, LSE, data, dtype, batch); });
    const captured both(r.draws.stream,
                        [&] { queue_rows(r, LSE_AND_ENTROPY, data, dtype, batch); });
    const captured *const ways[WAYS] = {&lse, &both};
    points.push_back({name, batch, time_in_turns(r.draws.stream, ways)});
    const std::array<spread, WAYS> &times = points.back().times;
    printf("%-9s %5lld  %8.1f (%.1f..%.1f)  %8.1f (%.1f..%.1f)  %.3f\n", name, (long long)batch,
           times[LSE].median, times[LSE].p10, times[LSE].p90, times[LSE_AND_ENTROPY].median,
           times[LSE_AND_ENTROPY].p10, times[LSE_AND_ENTROPY].p90,
           times[LSE_AND_ENTROPY].median / times[LSE].median);
    fflush(stdout);
}

static void write_json(const char *path, const char *commit)
{
    FILE *file = begin_results(path, QUESTION, commit);
    fprintf(file, "  \"vocab\": %lld,\n  \"entropy\": [", (long long)VOCAB);
    for (size_t i = 0; i < points.size(); i++) {
        fprintf(file, "%s\n    {\"dtype\": \"%s\", \"batch\": %lld", i ? "," : "", points[i].dtype,
                (long long)points[i].batch);
        for (int which = 0; which < WAYS; which++) {
            fprintf(file, ", ");
            write_spread(file, WAY_NAMES[which], points[i].times[which]);
        }
        fprintf(file, "}");
    }
    fprintf(file, "\n  ]\n}\n");
    close_results(file, path);
}

/* Workspace of the largest call. */
static void make_room(rows &r)
{
    gumbel_limits limits = {};
    limits.struct_size = sizeof limits;
    limits.batch = MAX_ROWS;
    limits.vocab_size = VOCAB;
    limits.requests = 1;
    CHECKED(cudaFree, r.draws.workspace);
    CHECKED(gumbel_workspace_most, r.draws.gpu, &limits, &r.draws.workspace_bytes, &error);
    r.draws.workspace = allocate<char>(r.draws.workspace_bytes);
}

template <class T> static void measure_dtype(const rows &r, gumbel_dtype dtype, const char *name)
{
    T *logits = allocate<T>(MAX_ROWS * VOCAB);
    make_normal(logits, MAX_ROWS * VOCAB, 1, 3.0f);
    verify(r, logits, dtype);
    for (int64_t batch : BATCHES)
        measure(r, logits, dtype, name, batch);
    CHECKED(cudaFree, logits);
}

int main(int argc, char **argv)
{
    const bench_options options = read_options(argc, argv);
    rows r = {open_rows(MAX_ROWS, 0), allocate<float>(MAX_ROWS), allocate<float>(MAX_ROWS)};
    make_room(r);
    printf("question: %s\nus of a call from logits, V = %lld (p10..p90)\n", QUESTION,
           (long long)VOCAB);
    printf("dtype         B  lse                       lse, entropy              ratio\n");
    measure_dtype<float>(r, GUMBEL_FLOAT32, "float32");
    measure_dtype<__nv_bfloat16>(r, GUMBEL_BFLOAT16, "bfloat16");
    if (options.json)
        write_json(options.json, options.commit);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * How long does gumbel_make_lists() take on an NVIDIA GPU, by the rules and by how much the text
 * repeats itself?
 *
 * usage: bench_lists [--json FILE] [--commit TEXT]
 *
 * script/bench-gpu --lists builds and runs it. Lists are compared with the CPU's before anything is
 * timed. Medians are of 30 replays of 20 calls.
 */
#include "bench/result_file.cuh"

#include "gumbel/recent.h"

static const char QUESTION[] = "how long does gumbel_make_lists() take?";

constexpr int64_t CAPACITY = 4096, PLACES = 256, MAX_ROWS = 256, VERIFIED_ROWS = 4;
constexpr int LISTS_A_CALL = 4; /* a call takes 10 us, and its share of a launch must not show */
static const int64_t BATCHES[] = {1, 8, 64, MAX_ROWS};

/* Tokens of a text: skewed as those of natural text, one alone, or a phrase that repeats. */
enum text { ZIPF, ONE_TOKEN, PERIODIC, TEXTS };
static const char *const TEXT_NAMES[TEXTS] = {"Zipf-like", "one token", "period of 37 tokens"};

enum rules { DRY, DRY_AND_NGRAMS, RULES };
static const char *const RULE_NAMES[RULES] = {"DRY", "DRY, 3-grams"};

/* Rings, rules and lists in the memory of one device. */
struct list_rows {
    gumbel_recent recent;
    gumbel_list_rules rules[RULES];
    gumbel_row_lists lists;
};

/* ------------------------------------------------------------------------------------ data ---- */

static std::vector<int32_t> make_text(text kind)
{
    std::vector<int32_t> tokens(MAX_ROWS * CAPACITY);
    uint64_t state = 1;
    for (size_t i = 0; i < tokens.size(); i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        const double uniform = double(state >> 11) * 0x1p-53;
        tokens[i] = kind == ZIPF        ? int32_t(30000 * std::pow(uniform, 6))
                    : kind == ONE_TOKEN ? 7
                                        : int32_t(i % 37);
    }
    return tokens;
}

/* The values that rows share. The breakers are in no text, so that all of it is compared. */
static const float MULTIPLIER = 0.8f;
static const int32_t NGRAM = 3;
static const std::vector<int64_t> BREAKER_OFFSETS = {0, 1, 2, 3, 4};
static const std::vector<int32_t> BREAKERS = {40010, 40011, 40012, 40013};

/* Rows in memory that `copy` makes from vectors. */
template <class F> static list_rows make_rows(const std::vector<int32_t> &tokens, F copy)
{
    const size_t places = MAX_ROWS * PLACES;
    list_rows r = {};
    r.recent.struct_size = sizeof r.recent;
    r.recent.capacity = CAPACITY;
    r.recent.tokens = copy(tokens);
    r.recent.count = copy(std::vector<uint64_t>(MAX_ROWS, CAPACITY));
    gumbel_list_rules &dry = r.rules[DRY];
    dry.struct_size = sizeof dry;
    dry.dry_multiplier = {copy(std::vector<float>{MULTIPLIER}), GUMBEL_SAME};
    dry.dry_breakers = {copy(BREAKER_OFFSETS), copy(BREAKERS), int64_t(BREAKERS.size()), nullptr,
                        0};
    r.rules[DRY_AND_NGRAMS] = dry;
    r.rules[DRY_AND_NGRAMS].ngram_size = {copy(std::vector<int32_t>{NGRAM}), GUMBEL_SAME};
    r.lists.struct_size = sizeof r.lists;
    r.lists.capacity = PLACES;
    r.lists.offsets = copy(std::vector<int64_t>(MAX_ROWS + 1));
    r.lists.banned = copy(std::vector<int32_t>(places));
    r.lists.late_ids = copy(std::vector<int32_t>(places));
    r.lists.late_values = copy(std::vector<float>(places));
    r.lists.status = copy(std::vector<int32_t>(MAX_ROWS));
    return r;
}

template <class T> static T *copy_on_host(const std::vector<T> &from)
{
    T *data = static_cast<T *>(malloc(from.size() * sizeof(T)));
    if (!data)
        die("out of memory");
    memcpy(data, from.data(), from.size() * sizeof(T));
    return data;
}

static void release_rows(const list_rows &r, void (*release)(void *))
{
    const gumbel_list_rules &all = r.rules[DRY_AND_NGRAMS];
    const void *const owned[] = {
        r.recent.tokens,          r.recent.count,       all.dry_multiplier.data,
        all.dry_breakers.offsets, all.dry_breakers.ids, all.ngram_size.data,
        r.lists.offsets,          r.lists.banned,       r.lists.late_ids,
        r.lists.late_values,      r.lists.status};
    for (const void *data : owned)
        release(const_cast<void *>(data));
}

static void release_on_gpu(void *data) { CHECKED(cudaFree, data); }

/* ----------------------------------------------------------------------------------- calls ---- */

static void queue_lists(gumbel_device *device, cudaStream_t stream, const list_rows &r, rules which,
                        int64_t batch)
{
    CHECKED(gumbel_make_lists, device, stream, &r.rules[which], &r.recent, batch, nullptr, &r.lists,
            &error);
}

/* Ends the program if an array of the GPU's lists differs from the CPU's. */
template <class T>
static void verify_array(const T *gpu, const T *cpu, size_t count, const char *name)
{
    const std::vector<T> found = copy_out(gpu, count);
    if (memcmp(found.data(), cpu, count * sizeof(T)) != 0)
        die("%s differ from the CPU's", name);
}

static void verify_lists(gumbel_device *gpu, cudaStream_t stream, const list_rows &on_gpu,
                         const std::vector<int32_t> &tokens, rules which)
{
    const size_t places = VERIFIED_ROWS * PLACES;
    const list_rows host = make_rows(tokens, [](const auto &from) { return copy_on_host(from); });
    const gumbel_row_lists &a = on_gpu.lists, &b = host.lists;
    gumbel_device *cpu;
    CHECKED(gumbel_open, nullptr, &cpu, &error);
    queue_lists(cpu, nullptr, host, which, VERIFIED_ROWS);
    queue_lists(gpu, stream, on_gpu, which, VERIFIED_ROWS);
    CHECKED(cudaStreamSynchronize, stream);
    verify_array(a.offsets, b.offsets, VERIFIED_ROWS + 1, "offsets");
    verify_array(a.late_ids, b.late_ids, places, "ids of late biases");
    verify_array(a.late_values, b.late_values, places, "late biases");
    verify_array(a.banned, b.banned, places, "banned tokens");
    verify_array(a.status, b.status, VERIFIED_ROWS, "statuses");
    gumbel_close(cpu);
    release_rows(host, free);
}

/* --------------------------------------------------------------------------------- results ---- */

struct point {
    text of;
    rules which;
    int64_t batch;
    spread time; /* microseconds of gumbel_make_lists() */
};

static std::vector<point> points;

static void measure(gumbel_device *gpu, cudaStream_t stream, const list_rows &r, text of,
                    rules which, int64_t batch)
{
    std::vector<double> times;
    time_call(stream, times, [&] {
        for (int i = 0; i < LISTS_A_CALL; i++)
            queue_lists(gpu, stream, r, which, batch);
    });
    for (double &time : times)
        time /= LISTS_A_CALL;
    points.push_back({of, which, batch, make_spread(times)});
}

static void write_json(const char *path, const char *commit)
{
    FILE *file = begin_results(path, QUESTION, commit);
    fprintf(file, "  \"lists_a_call\": %d,\n  \"ring_tokens\": %lld,\n", LISTS_A_CALL,
            (long long)CAPACITY);
    fprintf(file, "  \"list_places\": %lld,\n  \"lists\": [", (long long)PLACES);
    for (size_t i = 0; i < points.size(); i++) {
        const point &at = points[i];
        fprintf(file, "%s\n    {\"text\": \"%s\", \"rules\": \"%s\", \"batch\": %lld, ",
                i ? "," : "", TEXT_NAMES[at.of], RULE_NAMES[at.which], (long long)at.batch);
        write_spread(file, "time", at.time);
        fprintf(file, "}");
    }
    fprintf(file, "\n  ]\n}\n");
    close_results(file, path);
}

int main(int argc, char **argv)
{
    const bench_options options = read_options(argc, argv);
    gumbel_device_options device = {};
    gumbel_device *gpu;
    cudaStream_t stream;
    device.struct_size = sizeof device;
    device.device = "cuda:0";
    CHECKED(cudaSetDevice, 0);
    CHECKED(gumbel_open, &device, &gpu, &error);
    CHECKED(cudaStreamCreate, &stream);
    printf("question: %s\nus of a call (p10..p90) at B = 1, 8, 64, 256; rings of %lld tokens\n",
           QUESTION, (long long)CAPACITY);
    for (int of = 0; of < TEXTS; of++) {
        const std::vector<int32_t> tokens = make_text(text(of));
        const list_rows r = make_rows(tokens, [](const auto &from) { return copy_in(from); });
        for (int which = 0; which < RULES; which++) {
            verify_lists(gpu, stream, r, tokens, rules(which));
            printf("%-20s %-13s", TEXT_NAMES[of], RULE_NAMES[which]);
            for (int64_t batch : BATCHES) {
                measure(gpu, stream, r, text(of), rules(which), batch);
                const spread &time = points.back().time;
                printf(" %6.1f (%.1f..%.1f)", time.median, time.p10, time.p90);
            }
            printf("\n");
            fflush(stdout);
        }
        release_rows(r, release_on_gpu);
    }
    if (options.json)
        write_json(options.json, options.commit);
    gumbel_close(gpu);
    return 0;
}

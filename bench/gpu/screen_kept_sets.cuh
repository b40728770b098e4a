/* SPDX-License-Identifier: Apache-2.0
 *
 * How much longer do draws with a screen, and without, take on an NVIDIA GPU if they list the
 * tokens that truncation keeps?
 */
#pragma once

#include "screen_requests.cuh"

static const char QUESTION_OF_KEPT_SETS[] =
    "how much longer does a draw take that lists the tokens that truncation keeps?";

constexpr int64_t KEPT_BATCHES[] = {1, 8, 32, 64};
constexpr const char *KEPT_WAYS[] = {"full_logprobs", "full_kept_sets", "screened_logprobs",
                                     "screened_kept_sets"};

struct kept_measurement {
    int64_t hidden_size, batch;
    std::array<spread, 4> times; /* KEPT_WAYS */
    double mean_kept;            /* tokens of a row */
    int differing; /* of POSITIONS * batch draws, and of the kept sets of `batch` rows */
    double find_ratio(bool screened) const
    {
        return times[2 * screened + 1].median / times[2 * screened].median;
    }
};

struct kept_lists {
    std::vector<int32_t> kept, ids;
    std::vector<float> logprobs;
};

static kept_lists list_kept(const bench_data &m, int64_t hidden_size, int64_t batch, bool screened)
{
    CHECKED(cudaMemset, m.kept, -1, MAX_BATCH * sizeof *m.kept);
    CHECKED(cudaMemset, m.kept_ids, -1, MAX_BATCH * KEPT * sizeof *m.kept_ids);
    CHECKED(cudaMemset, m.kept_logprobs, -1, MAX_BATCH * KEPT * sizeof *m.kept_logprobs);
    CHECKED(cudaDeviceSynchronize);
    queue_draw(m, {batch, 1, false, TOP_K_50, KEPT_SETS}, hidden_size, screened);
    CHECKED(cudaStreamSynchronize, m.rows.stream);
    return {copy_out(m.kept, batch), copy_out(m.kept_ids, batch * KEPT),
            copy_out(m.kept_logprobs, batch * KEPT)};
}

/* Compares the kept sets of rows with and without the screen, bit for bit. */
static void compare_kept(const bench_data &m, kept_measurement &of)
{
    const kept_lists full = list_kept(m, of.hidden_size, of.batch, false);
    const kept_lists screened = list_kept(m, of.hidden_size, of.batch, true);
    for (int64_t b = 0; b < of.batch; b++) {
        const int32_t kept = full.kept[b];
        if (kept < 1 || kept > KEPT)
            die("row %lld: %d tokens are kept", (long long)b, kept);
        of.mean_kept += double(kept) / double(of.batch);
        of.differing += screened.kept[b] != kept ||
                        memcmp(&screened.ids[b * KEPT], &full.ids[b * KEPT], kept * 4) != 0 ||
                        memcmp(&screened.logprobs[b * KEPT], &full.logprobs[b * KEPT], kept * 4);
    }
}

static kept_measurement measure_kept(const bench_data &m, int64_t hidden_size, int64_t batch)
{
    const draw_shape logprobs = {batch, 1, false, TOP_K_50, LOGPROBS};
    const draw_shape kept_sets = {batch, 1, false, TOP_K_50, KEPT_SETS};
    kept_measurement result = {hidden_size, batch};
    result.differing = count_differing_tokens(m, hidden_size, kept_sets);
    compare_kept(m, result);
    const captured full = capture_draws(m, hidden_size, logprobs, false);
    const captured full_kept = capture_draws(m, hidden_size, kept_sets, false);
    const captured screened = capture_draws(m, hidden_size, logprobs, true);
    const captured screened_kept = capture_draws(m, hidden_size, kept_sets, true);
    const captured *const ways[] = {&full, &full_kept, &screened, &screened_kept};
    result.times = time_in_turns(m.rows.stream, ways, 0,
                                 [&](int turn) { set_positions(m, uint64_t(77 * turn)); });
    return result;
}

static void print_kept(const kept_measurement &k)
{
    printf("%5lld %4lld %9.1f %9.1f %7.3f %9.1f %9.1f %7.3f %6.1f %9d\n", (long long)k.hidden_size,
           (long long)k.batch, k.times[0].median, k.times[1].median, k.find_ratio(false),
           k.times[2].median, k.times[3].median, k.find_ratio(true), k.mean_kept, k.differing);
    fflush(stdout);
}

static std::vector<kept_measurement> measure_kept_sets(const bench_data &m,
                                                       const std::vector<int64_t> &sizes)
{
    std::vector<kept_measurement> results;
    printf("%5s %4s %9s %9s %7s %9s %9s %7s %6s %9s\n", "D", "B", "full", "+ kept", "ratio",
           "screened", "+ kept", "ratio", "tokens", "differing");
    for (int64_t size : sizes) {
        prepare_weights(m, size);
        for (int64_t batch : KEPT_BATCHES) {
            results.push_back(measure_kept(m, size, batch));
            print_kept(results.back());
        }
    }
    return results;
}

/* Writes the member of the results' object. */
static void write_kept(FILE *file, const std::vector<kept_measurement> &results)
{
    const char *comma = "";
    fprintf(file, " \"kept_sets\": [");
    for (const kept_measurement &k : results) {
        fprintf(file, "%s\n  {\"d\": %lld, \"b\": %lld, \"rules\": \"%s\", ", comma,
                (long long)k.hidden_size, (long long)k.batch, TRUNCATION_NAMES[TOP_K_50]);
        fprintf(file, "\"mean_kept\": %.2f, \"differing\": %d, ", k.mean_kept, k.differing);
        for (size_t way = 0; way < k.times.size(); way++)
            write_spread(file, KEPT_WAYS[way], k.times[way]);
        fprintf(file, "\"full_ratio\": %.4f, \"screened_ratio\": %.4f}", k.find_ratio(false),
                k.find_ratio(true));
        comma = ",";
    }
    fprintf(file, "\n ]");
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "verify.h"

enum { ROWS_MAX = 8, MAX_SAMPLES = 16 };

/* The arguments and outputs of a call for some rows. */
struct draws {
    int64_t rows;
    int32_t samples;
    uint64_t seeds[ROWS_MAX];
    int32_t tokens[ROWS_MAX * MAX_SAMPLES];
    float logprobs[ROWS_MAX * MAX_SAMPLES];
    float scores[ROWS_MAX * MAX_SAMPLES];
    float lse[ROWS_MAX];
    int32_t status[ROWS_MAX];
};

static struct draws new_draws(const struct verify_input *input, int64_t first, int64_t rows,
                              int32_t samples)
{
    struct draws draws = {.rows = rows, .samples = samples};

    for (int64_t b = 0; b < rows; b++) {
        draws.seeds[b] = gumbel_row_seed(input->seed, (uint64_t)(first + b));
    }
    return draws;
}

static gumbel_output make_output(struct draws *draws, int64_t row)
{
    return (gumbel_output){
        .struct_size = sizeof(gumbel_output),
        .tokens = draws->tokens + row * draws->samples,
        .logprobs = draws->logprobs + row * draws->samples,
        .scores = draws->scores + row * draws->samples,
        .lse = draws->lse + row,
        .status = draws->status + row,
    };
}

static gumbel_sampling make_sampling(const struct verify_input *input, const struct draws *draws,
                                     int64_t row)
{
    return (gumbel_sampling){
        .struct_size = sizeof(gumbel_sampling),
        .temperature = {&input->temperature, GUMBEL_SAME},
        .seed = {draws->seeds + row, 0},
        .num_samples = draws->samples,
    };
}

static void draw_all(const struct verify_input *input, const struct source *source,
                     gumbel_device *device, struct draws *draws)
{
    const gumbel_sampling sampling = make_sampling(input, draws, 0);
    const gumbel_output output = make_output(draws, 0);

    source_sample(source, device, &sampling, &output);
}

/* The first difference of `found` from `wanted`; NULL: none. Without `exact_lse`, log-normalisers
 * and log-probabilities may differ in the last place, as the header allows for unaligned chunks. */
static const char *find_difference(const struct draws *wanted, const struct draws *found,
                                   bool exact_lse)
{
    const size_t rows = (size_t)wanted->rows;
    const size_t all = rows * (size_t)wanted->samples;

    if (memcmp(wanted->tokens, found->tokens, all * sizeof *wanted->tokens) != 0) {
        return "tokens differ";
    }
    if (memcmp(wanted->scores, found->scores, all * sizeof *wanted->scores) != 0) {
        return "scores differ";
    }
    if (memcmp(wanted->status, found->status, rows * sizeof *wanted->status) != 0) {
        return "row statuses differ";
    }
    if (exact_lse && memcmp(wanted->lse, found->lse, rows * sizeof *wanted->lse) != 0) {
        return "log-normalisers differ";
    }
    if (exact_lse && memcmp(wanted->logprobs, found->logprobs, all * sizeof *wanted->lse) != 0) {
        return "log-probabilities differ";
    }
    return NULL;
}

static void compare_draws(struct verdicts *verdicts, const char *name, const struct draws *wanted,
                          const struct draws *found, bool exact_lse)
{
    const char *differs = find_difference(wanted, found, exact_lse);

    record_verdict(verdicts, differs ? FAILED : PASSED, name, NULL, "%s (%lld rows, %d draws each)",
                   differs     ? differs
                   : exact_lse ? "the same bits in every output"
                               : "the same tokens and scores",
                   (long long)wanted->rows, wanted->samples);
}

/* ------------------------------------------------------------------------------ checks ---- */

static void compare_device(const struct verify_input *input, const struct source *source,
                           const struct device_choice *choice, const char *name,
                           const struct draws *wanted, struct verdicts *verdicts)
{
    gumbel_device *device = open_device(choice);
    struct draws found = *wanted;

    draw_all(input, source, device, &found);
    gumbel_close(device);
    compare_draws(verdicts, name, wanted, &found, true);
}

static void compare_devices(const struct verify_input *input, const struct source *source,
                            const struct draws *wanted, struct verdicts *verdicts)
{
    char name[64];

    for (int isa = GUMBEL_ISA_REFERENCE; isa <= GUMBEL_ISA_NEON; isa++) {
        const struct device_choice choice = {input->choice.device, (gumbel_isa)isa, 1};

        if (gumbel_isa_available((gumbel_isa)isa)) {
            snprintf(name, sizeof name, "isa %s", gumbel_isa_name((gumbel_isa)isa));
            compare_device(input, source, &choice, name, wanted, verdicts);
        }
    }
    for (int threads = 1; threads <= 4; threads++) {
        const struct device_choice choice = {input->choice.device, input->choice.isa, threads};

        snprintf(name, sizeof name, "%d thread%s", threads, threads > 1 ? "s" : "");
        compare_device(input, source, &choice, name, wanted, verdicts);
    }
}

static void compare_chunks(const struct verify_input *input, const struct source *source,
                           const struct draws *wanted, struct verdicts *verdicts)
{
    static const int64_t chunks[] = {64, 1000, 4096};
    char name[64];

    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        struct draws found = *wanted;
        const gumbel_sampling sampling = make_sampling(input, &found, 0);
        const gumbel_output output = make_output(&found, 0);

        source_sample_chunks(source, input->device, &sampling, &output, chunks[i], false, NULL);
        snprintf(name, sizeof name, "chunks of %lld", (long long)chunks[i]);
        compare_draws(verdicts, name, wanted, &found, chunks[i] % 64 == 0);
    }
}

static void compare_rows_alone(const struct verify_input *input, const struct source *source,
                               const struct draws *wanted, struct verdicts *verdicts)
{
    struct draws found = *wanted;

    for (int64_t b = 0; b < wanted->rows; b++) {
        const struct source alone = source_rows(source, b, 1);
        const gumbel_sampling sampling = make_sampling(input, &found, b);
        const gumbel_output output = make_output(&found, b);

        source_sample(&alone, input->device, &sampling, &output);
    }
    compare_draws(verdicts, "each row alone", wanted, &found, true);
}

static int64_t clamp_value(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

void verify_agreement(const struct verify_input *input, struct verdicts *verdicts)
{
    /* The reference ISA takes some 5 ns a multiply-add and 50 ns a noise: keep it near 2 s. */
    const int64_t vocab = source_vocab(&input->source);
    const int64_t width = source_hidden_size(&input->source) + 1;
    const int64_t batch = source_batch(&input->source);
    const int64_t fitting = clamp_value((1 << 28) / vocab / width, 1, ROWS_MAX);
    const int64_t rows = fitting < batch ? fitting : batch;
    const int64_t first = clamp_value(input->row, 0, batch - rows);
    const int32_t samples = (int32_t)clamp_value((1 << 23) / vocab / rows, 2, MAX_SAMPLES);
    const struct source source = source_rows(&input->source, first, rows);
    struct draws wanted = new_draws(input, first, rows, samples);

    draw_all(input, &source, input->device, &wanted);
    compare_devices(input, &source, &wanted, verdicts);
    if (!source.from_logits) {
        const struct source logits = source_rows(&input->logits, first, rows);
        struct draws found = wanted;

        draw_all(input, &logits, input->device, &found);
        compare_draws(verdicts, "from logits", &wanted, &found, true);
    }
    compare_chunks(input, &source, &wanted, verdicts);
    compare_rows_alone(input, &source, &wanted, verdicts);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "bench.h"

static const char question[] =
    "what does drawing tokens cost, compared with the product alone and with the materialised "
    "baseline?";
static const char *const way_names[WAYS] = {
    "read weights", "product",      "fused draw",  "screened draw",
    "cuBLAS alone", "materialised", "from logits", "from logits, 1 thread"};
static const char *const baseline_keys[BASELINES] = {"vs_product", "vs_materialised", "vs_cublas",
                                                     "vs_screened"};
static const char *const baseline_titles[BASELINES] = {"vs product", "vs material.", "vs cuBLAS",
                                                       "vs screened"};

static const char *dtype_name(gumbel_dtype dtype)
{
    return dtype == GUMBEL_BFLOAT16 ? "bf16" : dtype == GUMBEL_FLOAT16 ? "f16" : "f32";
}

/* The least seconds of a way, by the ceiling; 0 from logits, which a cache may hold. */
static double find_least_seconds(const struct bench *bench, const struct bench_result *result,
                                 enum way way)
{
    const struct ceiling *ceiling = &result->ceiling;
    const double reading = bench_way_bytes(bench, result->batch, way) / ceiling->bandwidth;
    const double operations = bench_way_operations(bench, result->batch, way);
    const double computing = ceiling->flops > 0 ? operations / ceiling->flops : 0;

    if (way == WAY_LOGITS || way == WAY_LOGITS_ONE) {
        return 0;
    }
    return reading > computing ? reading : computing;
}

/* ----------------------------------------------------------------------------------- text ---- */

void bench_print_header(const struct bench *bench, int rounds)
{
    const struct ceiling *ceiling = &bench->ceiling;
    char machine[256];

    bench->machine->describe(bench, machine, sizeof machine);
    printf("question: %s\n", question);
    printf("machine: %s, gumbel %s, commit %s\n", machine, gumbel_version_string(), GUMBEL_COMMIT);
    printf("ceiling: max(bytes / %.2f GB/s read from %.0f MiB", ceiling->bandwidth / 1e9,
           (double)ceiling->buffer_bytes / 0x1p20);
    if (ceiling->flops > 0) {
        printf(", operations / %.1f GFLOP/s %s", ceiling->flops / 1e9, bench->machine->flops_label);
    }
    printf("), each raised to the best round below\ncheck: %s, %lld rows\n",
           bench->machine->check_label, (long long)bench->checked_rows);
    if (bench->is_timed[WAY_MATERIALISED]) {
        printf("materialised: %s\n", bench->machine->materialised_label);
    }
    if (bench->screen_bytes) {
        printf("screen: %.0f MiB, prepared in %.3f s\n", (double)bench->screen_bytes / 0x1p20,
               bench->screen_seconds);
    }
    printf(
        "times: median of %d interleaved rounds; ratios: medians over rounds of paired times\n\n",
        rounds);
    printf("%7s %5s %3s  %-21s %9s %19s %7s %6s", "V", "D", "B", "way", "median us", "p10 .. p90",
           "GB/s", "% ceil");
    for (int baseline = 0; baseline < BASELINES; baseline++) {
        if (bench->is_timed[baseline_ways[baseline]]) {
            printf(" %12s", baseline_titles[baseline]);
        }
    }
    printf("\n");
}

static void print_way(const struct bench *bench, const struct bench_result *result, enum way way)
{
    const struct spread seconds = result->seconds[way];
    const double bound = find_least_seconds(bench, result, way);
    char percent[16] = "-";
    char range[48];

    if (bound > 0) {
        snprintf(percent, sizeof percent, "%.1f", 100 * bound / seconds.median);
    }
    snprintf(range, sizeof range, "%.1f .. %.1f", seconds.p10 * 1e6, seconds.p90 * 1e6);
    printf("%7lld %5lld %3lld  %-21s %9.1f %19s %7.2f %6s", (long long)bench->vocab,
           (long long)bench->hidden_size, (long long)result->batch, way_names[way],
           seconds.median * 1e6, range,
           bench_way_bytes(bench, result->batch, way) / seconds.median / 1e9, percent);
    for (int baseline = 0; baseline < BASELINES; baseline++) {
        if (bench->is_timed[baseline_ways[baseline]]) {
            printf(" %12.3f", result->ratios[way][baseline]);
        }
    }
    printf("\n");
}

void bench_print_result(const struct bench *bench, const struct bench_result *result)
{
    for (int way = 0; way < WAYS; way++) {
        if (bench->is_timed[way]) {
            print_way(bench, result, (enum way)way);
        }
    }
    printf("%7s %5s %3s  served by %s; workspace %.1f KiB; a [B, V] array would be %.1f KiB; "
           "ceiling %.2f GB/s",
           "", "", "", result->served, (double)result->workspace_bytes / 1024,
           4.0 * (double)result->batch * (double)bench->vocab / 1024,
           result->ceiling.bandwidth / 1e9);
    if (result->ceiling.flops > 0) {
        printf(", %.1f GFLOP/s", result->ceiling.flops / 1e9);
    }
    printf("\n\n");
    fflush(stdout);
}

/* ----------------------------------------------------------------------------------- JSON ---- */

static json_t *way_to_json(const struct bench *bench, const struct bench_result *result,
                           enum way way)
{
    const struct spread seconds = result->seconds[way];
    const double bound = find_least_seconds(bench, result, way);
    json_t *entry = json_object();

    json_put(entry, "median_us", json_number(seconds.median * 1e6));
    json_put(entry, "p10_us", json_number(seconds.p10 * 1e6));
    json_put(entry, "p90_us", json_number(seconds.p90 * 1e6));
    json_put(entry, "bytes", json_number(bench_way_bytes(bench, result->batch, way)));
    json_put(entry, "of_ceiling", bound > 0 ? json_number(bound / seconds.median) : json_null());
    for (int baseline = 0; baseline < BASELINES; baseline++) {
        if (bench->is_timed[baseline_ways[baseline]]) {
            json_put(entry, baseline_keys[baseline], json_number(result->ratios[way][baseline]));
        }
    }
    return entry;
}

json_t *bench_result_to_json(const struct bench *bench, const struct bench_result *result)
{
    json_t *root = json_object();
    json_t *ways = json_object();

    for (int way = 0; way < WAYS; way++) {
        if (bench->is_timed[way]) {
            json_put(ways, way_names[way], way_to_json(bench, result, (enum way)way));
        }
    }
    json_put(root, "batch", json_integer(result->batch));
    json_put(root, "served_by", json_string(result->served));
    json_put(root, "workspace_bytes", json_integer((json_int_t)result->workspace_bytes));
    json_put(root, "logits_bytes", json_integer((json_int_t)(4 * result->batch * bench->vocab)));
    json_put(root, "ceiling_bytes_per_second", json_number(result->ceiling.bandwidth));
    json_put(root, "ceiling_float_operations_per_second",
             result->ceiling.flops > 0 ? json_number(result->ceiling.flops) : json_null());
    json_put(root, "ways", ways);
    return root;
}

json_t *bench_header_to_json(const struct bench *bench, int rounds)
{
    const struct ceiling *ceiling = &bench->ceiling;
    json_t *root = json_object();

    json_put(root, "question", json_string(question));
    json_put(root, "version", json_string(gumbel_version_string()));
    json_put(root, "commit", json_string(GUMBEL_COMMIT));
    bench->machine->describe_json(bench, root);
    json_put(root, "read_bytes_per_second", json_number(ceiling->bandwidth));
    json_put(root, "float_operations_per_second",
             ceiling->flops > 0 ? json_number(ceiling->flops) : json_null());
    json_put(root, "bandwidth_buffer_bytes", json_integer((json_int_t)ceiling->buffer_bytes));
    if (bench->is_timed[WAY_MATERIALISED]) {
        json_put(root, "materialised", json_string(bench->machine->materialised_label));
    }
    if (bench->screen_bytes) {
        json_put(root, "screen_format", json_string(bench->nibbles ? "nibbles" : "bytes"));
        json_put(root, "screen_bytes", json_integer((json_int_t)bench->screen_bytes));
        json_put(root, "screen_seconds", json_number(bench->screen_seconds));
    }
    json_put(root, "vocab", json_integer(bench->vocab));
    json_put(root, "hidden", json_integer(bench->hidden_size));
    json_put(root, "dtype", json_string(dtype_name(bench->dtype)));
    json_put(root, "logprobs", json_boolean(bench->logprobs));
    json_put(root, "rounds", json_integer(rounds));
    return root;
}

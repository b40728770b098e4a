/* SPDX-License-Identifier: Apache-2.0
 *
 * gumbel bench: what a draw costs beside what this machine can do.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench_rounds.h"
#include "commands.h"
#include "machine_peaks.h"
#include "options.h"
#include "report.h"
#include "source.h"

enum { MOST_BATCHES = 16 };

struct bench_options {
    struct device_choice device;
    int64_t vocab, hidden_size;
    gumbel_dtype dtype;
    int64_t batches[MOST_BATCHES];
    int batch_count;
    int rounds;
    int64_t buffer_mib; /* 0: chosen */
    bool logprobs;
    bool json;
};

static const struct {
    const char *name;
    gumbel_dtype dtype;
} dtypes[] = {{"bf16", GUMBEL_BFLOAT16}, {"f16", GUMBEL_FLOAT16}, {"f32", GUMBEL_FLOAT32}};

static gumbel_dtype parse_dtype(const char *text)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(text, dtypes[i].name) == 0) {
            return dtypes[i].dtype;
        }
    }
    fail("--dtype", "'%s' is not bf16, f16 or f32", text);
}

static const char *dtype_name(gumbel_dtype dtype)
{
    return dtype == GUMBEL_BFLOAT16 ? "bf16" : dtype == GUMBEL_FLOAT16 ? "f16" : "f32";
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct bench_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->device;
        return 0;
    case 'V':
        options->vocab = parse_integer("--vocab", argument, 1, INT64_C(1) << 31);
        return 0;
    case 'D':
        options->hidden_size = parse_integer("--hidden", argument, 1, 1 << 20);
        return 0;
    case 'T':
        options->dtype = parse_dtype(argument);
        return 0;
    case 'B':
        options->batch_count =
            parse_integers("--batch", argument, 1, 4096, options->batches, MOST_BATCHES);
        return 0;
    case 'r':
        options->rounds = (int)parse_integer("--rounds", argument, 1, 100000);
        return 0;
    case 'b':
        options->buffer_mib = parse_integer("--buffer", argument, 1, 1 << 20);
        return 0;
    case 'l':
        options->logprobs = true;
        return 0;
    case 'j':
        options->json = true;
        return 0;
    case ARGP_KEY_ARG:
        fail(argument, "unexpected argument");
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ----------------------------------------------------------------------------- ceiling ---- */

struct ceiling {
    size_t buffer_bytes;
    double bandwidth; /* bytes a second */
    double peak;      /* float32 operations a second */
};

/* 1 GiB or twice the last cache, whichever is more, but a quarter of the memory at most. */
static size_t choose_buffer_bytes(void)
{
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    size_t bytes = (size_t)1 << 30;

    if (cache > 0 && (size_t)cache * 2 > bytes) {
        bytes = (size_t)cache * 2;
    }
    return (double)bytes > memory / 4 ? (size_t)(memory / 4) / 4096 * 4096 : bytes;
}

static struct ceiling measure_ceiling(const gumbel_device_info *info, int64_t buffer_mib)
{
    struct ceiling ceiling = {
        .buffer_bytes = buffer_mib ? (size_t)buffer_mib << 20 : choose_buffer_bytes(),
    };
    void *buffer = map_pages("bandwidth buffer", ceiling.buffer_bytes);

    fill_numbers(buffer, ceiling.buffer_bytes, GUMBEL_FLOAT32, 0, 0, info->threads);
    ceiling.bandwidth =
        measure_read_bandwidth(buffer, ceiling.buffer_bytes, info->threads, info->isa);
    unmap_pages(buffer, ceiling.buffer_bytes);
    ceiling.peak = measure_float_peak(info->threads, info->isa);
    return ceiling;
}

/* Bytes that a way must read at least. */
static double way_bytes(const struct bench *bench, int64_t batch, enum way way)
{
    return way == WAY_LOGITS || way == WAY_LOGITS_ONE
               ? 4.0 * (double)batch * (double)bench->vocab
               : (double)bench->vocab * (double)bench->hidden_size *
                     (double)dtype_size(bench->dtype);
}

/* Seconds under which a way cannot go; 0 from logits, which may lie in a cache. */
static double way_floor(const struct bench *bench, const struct ceiling *ceiling, int64_t batch,
                        enum way way)
{
    const double reading = way_bytes(bench, batch, way) / ceiling->bandwidth;
    const double computing =
        2.0 * (double)bench->vocab * (double)bench->hidden_size * (double)batch / ceiling->peak;

    if (way == WAY_LOGITS || way == WAY_LOGITS_ONE) {
        return 0;
    }
    return way == WAY_READ || reading > computing ? reading : computing;
}

/* ------------------------------------------------------------------------------ report ---- */

static const char question[] =
    "what does drawing tokens cost beside the product alone, and beside the materialised route?";
static const char materialised_is[] =
    "the product's time, then [B, V] float32 stores, softmax and inverse CDF in plain vector C";

static void print_head(const struct bench *bench, const struct ceiling *ceiling, int rounds)
{
    printf("question: %s\n", question);
    printf("machine: %s, isa %s, %d threads, tile %d, gumbel %s, commit %s\n",
           bench->info.description, gumbel_isa_name(bench->info.isa), bench->info.threads,
           bench->info.tile, gumbel_version_string(), GUMBEL_COMMIT);
    printf(
        "ceiling: max(bytes / %.2f GB/s read from %.0f MiB, operations / %.1f GFLOP/s float32)\n",
        ceiling->bandwidth / 1e9, (double)ceiling->buffer_bytes / 0x1p20, ceiling->peak / 1e9);
    printf("check: fused tokens and scores are those from logits, %lld rows\n",
           (long long)bench->most_rows);
    printf("materialised: %s\n", materialised_is);
    printf(
        "times: median of %d interleaved rounds; ratios: medians over rounds of paired times\n\n",
        rounds);
    printf("%7s %5s %3s  %-21s %9s %19s %7s %6s %10s %13s\n", "V", "D", "B", "way", "median us",
           "p10 .. p90", "GB/s", "% ceil", "vs product", "vs material.");
}

static void print_result(const struct bench *bench, const struct ceiling *ceiling,
                         const struct bench_result *result)
{
    for (int way = 0; way < WAYS; way++) {
        const struct spread seconds = result->seconds[way];
        const double bound = way_floor(bench, ceiling, result->batch, (enum way)way);
        char share[16] = "-";
        char range[48];

        if (bound > 0) {
            snprintf(share, sizeof share, "%.1f", 100 * bound / seconds.median);
        }
        snprintf(range, sizeof range, "%.1f .. %.1f", seconds.p10 * 1e6, seconds.p90 * 1e6);
        printf("%7lld %5lld %3lld  %-21s %9.1f %19s %7.2f %6s %10.3f %13.3f\n",
               (long long)bench->vocab, (long long)bench->hidden_size, (long long)result->batch,
               way_names[way], seconds.median * 1e6, range,
               way_bytes(bench, result->batch, (enum way)way) / seconds.median / 1e9, share,
               result->to_product[way], result->to_materialised[way]);
    }
    printf("%7s %5s %3s  memory: workspace %.1f KiB; a [B, V] array would be %.1f KiB\n\n", "", "",
           "", (double)result->workspace_bytes / 1024,
           4.0 * (double)result->batch * (double)bench->vocab / 1024);
    fflush(stdout);
}

static json_t *result_to_json(const struct bench *bench, const struct ceiling *ceiling,
                              const struct bench_result *result)
{
    json_t *root = json_object();
    json_t *ways = json_object();

    for (int way = 0; way < WAYS; way++) {
        const struct spread seconds = result->seconds[way];
        const double bound = way_floor(bench, ceiling, result->batch, (enum way)way);
        json_t *entry = json_object();

        json_put(entry, "median_us", json_number(seconds.median * 1e6));
        json_put(entry, "p10_us", json_number(seconds.p10 * 1e6));
        json_put(entry, "p90_us", json_number(seconds.p90 * 1e6));
        json_put(entry, "bytes", json_number(way_bytes(bench, result->batch, (enum way)way)));
        json_put(entry, "of_ceiling",
                 bound > 0 ? json_number(bound / seconds.median) : json_null());
        json_put(entry, "vs_product", json_number(result->to_product[way]));
        json_put(entry, "vs_materialised", json_number(result->to_materialised[way]));
        json_put(ways, way_names[way], entry);
    }
    json_put(root, "batch", json_integer(result->batch));
    json_put(root, "workspace_bytes", json_integer((json_int_t)result->workspace_bytes));
    json_put(root, "logits_bytes", json_integer((json_int_t)(4 * result->batch * bench->vocab)));
    json_put(root, "ways", ways);
    return root;
}

static json_t *head_to_json(const struct bench *bench, const struct ceiling *ceiling, int rounds)
{
    json_t *root = json_object();

    json_put(root, "question", json_string(question));
    json_put(root, "version", json_string(gumbel_version_string()));
    json_put(root, "commit", json_string(GUMBEL_COMMIT));
    json_put(root, "cpu", json_string(bench->info.description));
    json_put(root, "isa", json_string(gumbel_isa_name(bench->info.isa)));
    json_put(root, "threads", json_integer(bench->info.threads));
    json_put(root, "tile", json_integer(bench->info.tile));
    json_put(root, "read_bytes_per_second", json_number(ceiling->bandwidth));
    json_put(root, "float_operations_per_second", json_number(ceiling->peak));
    json_put(root, "bandwidth_buffer_bytes", json_integer((json_int_t)ceiling->buffer_bytes));
    json_put(root, "materialised", json_string(materialised_is));
    json_put(root, "vocab", json_integer(bench->vocab));
    json_put(root, "hidden", json_integer(bench->hidden_size));
    json_put(root, "dtype", json_string(dtype_name(bench->dtype)));
    json_put(root, "logprobs", json_boolean(bench->logprobs));
    json_put(root, "rounds", json_integer(rounds));
    return root;
}

/* ----------------------------------------------------------------------------- command ---- */

static struct bench new_bench(const struct bench_options *options)
{
    struct bench bench = {
        .device = open_device(&options->device),
        .info = {.struct_size = sizeof(gumbel_device_info)},
        .vocab = options->vocab,
        .hidden_size = options->hidden_size,
        .dtype = options->dtype,
        .logprobs = options->logprobs,
    };
    struct device_choice single = options->device;

    gumbel_describe(bench.device, &bench.info);
    single.isa = bench.info.isa;
    single.threads = 1;
    bench.single = open_device(&single);
    for (int i = 0; i < options->batch_count; i++) {
        if (options->batches[i] > bench.most_rows) {
            bench.most_rows = options->batches[i];
        }
    }
    return bench;
}

static void run(const struct bench_options *options)
{
    struct bench bench = new_bench(options);
    const struct ceiling ceiling = measure_ceiling(&bench.info, options->buffer_mib);
    json_t *results = json_array();
    int64_t wrong = -1;

    bench_prepare(&bench);
    wrong = bench_check(&bench);
    if (wrong >= 0) {
        fail_late("check", "row %lld: fused and from logits differ; nothing timed",
                  (long long)wrong);
    }
    if (!options->json) {
        print_head(&bench, &ceiling, options->rounds);
    }
    for (int i = 0; i < options->batch_count; i++) {
        struct bench_result result;

        progress_start("timing");
        result = bench_rounds(&bench, options->batches[i], options->rounds);
        progress_clear();
        if (options->json) {
            json_array_append_new(results, result_to_json(&bench, &ceiling, &result));
        } else {
            print_result(&bench, &ceiling, &result);
        }
    }
    if (options->json) {
        json_t *root = head_to_json(&bench, &ceiling, options->rounds);

        json_put(root, "results", json_incref(results));
        print_json(root);
    }
    json_decref(results);
    gumbel_close(bench.single);
    gumbel_close(bench.device);
    bench_free(&bench);
}

int command_bench(int argc, char **argv)
{
    static const struct argp_option entries[] = {
        {"vocab", 'V', "N", 0, "Vocabulary rows (default 151936)", 0},
        {"hidden", 'D', "N", 0, "Hidden size (default 2048)", 0},
        {"dtype", 'T', "TYPE", 0, "Of weights and hidden states: bf16, f16 or f32 (bf16)", 0},
        {"batch", 'B', "N,N,..", 0, "Batch sizes (default 1,2,4,8,16)", 0},
        {"rounds", 'r', "N", 0, "Timed rounds of each (default 21)", 0},
        {"buffer", 'b', "MIB", 0,
         "Buffer to read for the bandwidth (default: far more than the caches)", 0},
        {"logprobs", 'l', 0, 0, "Ask for log-probabilities too", 0},
        {"json", 'j', 0, 0, "Print one JSON object", 0},
        {0},
    };
    static const struct argp_child children[] = {{&device_argp, 0, "The device:", 1}, {0}};
    static const struct argp argp = {
        .options = entries,
        .parser = parse_option,
        .doc = "Measure this machine's read bandwidth and multiply-add peak, then the fused draw, "
               "the product alone, the materialised route and the draw from logits.",
        .children = children,
    };
    struct bench_options options = {
        .vocab = 151936,
        .hidden_size = 2048,
        .dtype = GUMBEL_BFLOAT16,
        .batches = {1, 2, 4, 8, 16},
        .batch_count = 5,
        .rounds = 21,
    };

    parse_arguments(&argp, argc, argv, &options);
    run(&options);
    return 0;
}

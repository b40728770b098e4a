/* SPDX-License-Identifier: Apache-2.0
 *
 * gumbel bench: the time of a draw, compared with the machine's ceilings.
 */
#include <stdio.h>
#include <string.h>

#include "arguments.h"
#include "bench.h"
#include "commands.h"

enum { MAX_BATCHES = 16 };

struct batch_list {
    int64_t sizes[MAX_BATCHES];
    int count; /* 0: the device's defaults */
};

struct bench_options {
    struct common_options common;
    int64_t vocab, hidden_size;
    gumbel_dtype dtype;
    struct batch_list batches;
    int32_t rounds;
    int64_t buffer_mib; /* 0: the device's default */
    bool logprobs, screen, nibbles;
};

static const struct batch_list cpu_batches = {{1, 2, 4, 8, 16}, 5};
static const struct batch_list cuda_batches = {{1, 2, 4, 8, 16, 32, 64, 128, 256, 512}, 10};

static void read_dtype(const char *field, const char *text, void *into)
{
    static const struct {
        const char *name;
        gumbel_dtype dtype;
    } dtypes[] = {{"bf16", GUMBEL_BFLOAT16}, {"f16", GUMBEL_FLOAT16}, {"f32", GUMBEL_FLOAT32}};

    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(text, dtypes[i].name) == 0) {
            *(gumbel_dtype *)into = dtypes[i].dtype;
            return;
        }
    }
    fail(field, "'%s' is not bf16, f16 or f32", text);
}

static void read_batches(const char *field, const char *text, void *into)
{
    struct batch_list *batches = into;

    batches->count = parse_integers(field, text, 1, 4096, batches->sizes, MAX_BATCHES);
}

#define AT(member) .offset = offsetof(struct bench_options, member)
static const struct argument accepted[] = {
    {.help = "Measurements:"},
    {"vocab", 'V', "N", "Vocabulary rows (default 151936)", ARGUMENT_INT64, AT(vocab), 1,
     INT64_C(1) << 31},
    {"hidden", 'D', "N", "Hidden size (default 2048)", ARGUMENT_INT64, AT(hidden_size), 1, 1 << 20},
    {"dtype", 'T', "TYPE", "Dtype of weights and hidden states: bf16, f16 or f32 (default bf16)",
     ARGUMENT_OTHER, AT(dtype), .read = read_dtype, .choices = "bf16 f16 f32"},
    {"batch", 'B', "N,N,..", "Batch sizes (default 1,2,4,8,16; on a GPU up to 512)", ARGUMENT_OTHER,
     AT(batches), .read = read_batches},
    {"rounds", 'r', "N", "Timed rounds of each batch size (default 21)", ARGUMENT_INT32, AT(rounds),
     1, 100000},
    {"buffer", 'b', "MIB",
     "Size of the buffer read to measure the bandwidth (default: far larger than the caches)",
     ARGUMENT_INT64, AT(buffer_mib), 1, 1 << 20},
    {"logprobs", 'l', NULL, "Also return log-probabilities", ARGUMENT_FLAG, AT(logprobs)},
    {"screen", 0, NULL,
     "Also time draws with a screen, a quantized copy of the head at half the bytes; CPU only",
     ARGUMENT_FLAG, AT(screen)},
    {"nibbles", 0, NULL, "With --screen: read a quarter of the bytes first", ARGUMENT_FLAG,
     AT(nibbles)},
    {0},
};

static struct bench open_bench(struct bench_options *options)
{
    struct bench bench = {
        .device = open_device(&options->common.device),
        .choice = options->common.device,
        .info = {.struct_size = sizeof(gumbel_device_info)},
        .vocab = options->vocab,
        .hidden_size = options->hidden_size,
        .dtype = options->dtype,
        .buffer_mib = options->buffer_mib,
        .logprobs = options->logprobs,
        .screen = options->screen,
        .nibbles = options->nibbles,
    };
    const bool cuda = device_is_cuda(bench.device);

    if (options->screen && (cuda || options->logprobs)) {
        fail("--screen", "requires a CPU device, and is not supported with --logprobs");
    }
    if (options->nibbles && !options->screen) {
        fail("--nibbles", "requires --screen");
    }
    bench.info = describe_device(bench.device);
    bench.machine = cuda ? &bench_cuda : &bench_cpu;
    if (options->batches.count == 0) {
        options->batches = cuda ? cuda_batches : cpu_batches;
    }
    for (int i = 0; i < options->batches.count; i++) {
        if (options->batches.sizes[i] > bench.most_rows) {
            bench.most_rows = options->batches.sizes[i];
        }
    }
    bench.machine->open(&bench);
    return bench;
}

static void run_batches(struct bench_options *options)
{
    struct bench bench = open_bench(options);
    const bool json = options->common.json;
    json_t *results = json_array();
    int64_t wrong = 0;

    progress_show("checking the draws");
    wrong = bench.machine->check(&bench);
    progress_clear();
    if (wrong >= 0) {
        fail_late("check", "row %lld failed the check that %s; nothing was timed", (long long)wrong,
                  bench.machine->check_label);
    }
    if (!json) {
        bench_print_header(&bench, options->rounds);
    }
    for (int i = 0; i < options->batches.count; i++) {
        struct bench_result result;
        char label[40];

        snprintf(label, sizeof label, "timing %lld row%s", (long long)options->batches.sizes[i],
                 options->batches.sizes[i] == 1 ? "" : "s");
        progress_start(label);
        result = bench_rounds(&bench, options->batches.sizes[i], options->rounds);
        progress_clear();
        if (json) {
            json_array_append_new(results, bench_result_to_json(&bench, &result));
        } else {
            bench_print_result(&bench, &result);
        }
    }
    if (json) {
        json_t *root = bench_header_to_json(&bench, options->rounds);

        json_put(root, "results", json_incref(results));
        print_json(root);
    }
    json_decref(results);
    bench.machine->close(&bench);
    gumbel_close(bench.device);
}

const struct command_line bench_line = {
    .doc =
        "Measure this machine's read bandwidth and multiply-adds a second, then the fused draw, "
        "the product alone, the materialised baseline and the draw from logits. On a GPU cuBLAS, "
        "if installed, is the product that writes logits.",
    .arguments = accepted,
    .examples = "  $ gumbel bench --batch 1,4\n"
                "  $ gumbel bench --vocab 128256 --hidden 4096 --dtype f16 --json\n"
                "  $ gumbel bench --device cuda:0\n"};

int command_bench(int argc, char **argv)
{
    struct bench_options options = {
        .vocab = 151936,
        .hidden_size = 2048,
        .dtype = GUMBEL_BFLOAT16,
        .rounds = 21,
    };

    parse_arguments(&bench_line, argc, argv, &options);
    run_batches(&options);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * How much longer does a watermarked draw take than a plain one?
 *
 * usage: bench_watermarks [--json FILE] [--commit TEXT]
 *
 * script/bench-gpu --watermarks builds and runs it. Before a watermarked draw,
 * gumbel_watermark_rows() compares the context of four tokens with a text of 4,096 tokens for each
 * row. The two ways take turns; medians are of 30 replays of 5 calls.
 */
#include "bench/result_file.cuh"

#include "gumbel/watermark.h"

static const char QUESTION[] = "how much longer does a watermarked draw take?";

constexpr int64_t VOCAB = 151936, HIDDEN = 4096, MAX_ROWS = 256, TEXT = 4096;
static const int64_t BATCHES[] = {1, 8, 64, MAX_ROWS};

enum source { LOGITS, HEAD };
static const char *const SOURCE_NAMES[] = {"logits", "head"};
enum way { PLAIN, WATERMARKED, WAYS };
static const char *const WAY_NAMES[WAYS] = {"plain", "watermarked"};

struct bench {
    gpu_rows rows;
    gumbel_watermark watermark; /* of texts in `recent` */
    gumbel_recent recent;
    gumbel_watermark_draws draws;
    int32_t *is_watermarked;
    float *logits;
    __nv_bfloat16 *weight, *hidden;
};

/* Rings that are full of random tokens, and a key for all rows. */
static void make_watermark(bench &b)
{
    std::vector<int32_t> text(MAX_ROWS * TEXT);
    for (size_t i = 0; i < text.size(); i++)
        text[i] = int32_t(i * 2654435761u % VOCAB);
    b.recent.struct_size = sizeof b.recent;
    b.recent.capacity = TEXT;
    b.recent.tokens = copy_in(text);
    b.recent.count = copy_in(std::vector<uint64_t>(MAX_ROWS, TEXT));
    b.watermark.struct_size = sizeof b.watermark;
    b.watermark.key = copy_in(std::vector<uint64_t>{0x0123456789abcdef, 0xfedcba9876543210});
    b.watermark.key_stride = GUMBEL_SAME;
    b.watermark.seed = {b.rows.seed, 1};
    b.watermark.position = {b.rows.position, 1};
    b.is_watermarked = allocate<int32_t>(MAX_ROWS);
    b.draws = {sizeof b.draws, allocate<uint64_t>(MAX_ROWS), allocate<uint64_t>(MAX_ROWS),
               b.is_watermarked};
}

static bench open_bench()
{
    bench b = {};
    b.rows = open_rows(MAX_ROWS, HIDDEN);
    make_watermark(b);
    b.logits = allocate<float>(MAX_ROWS * VOCAB);
    b.weight = allocate<__nv_bfloat16>(VOCAB * HIDDEN);
    b.hidden = allocate<__nv_bfloat16>(MAX_ROWS * HIDDEN);
    make_normal(b.logits, MAX_ROWS * VOCAB, 1, 3.0f);
    make_random(b.weight, VOCAB * HIDDEN, 2, 0.03f);
    make_random(b.hidden, MAX_ROWS * HIDDEN, 3, 1);
    return b;
}

static void queue_rows(const bench &b, source from, way which, int64_t batch)
{
    const gpu_rows &r = b.rows;
    gumbel_sampling how = make_sampling(r.temperature, r.seed, r.position);
    gumbel_output output = make_output(r.tokens, nullptr);
    if (which == WATERMARKED) {
        CHECKED(gumbel_watermark_rows, r.gpu, r.stream, &b.watermark, &b.recent, batch, &b.draws,
                &error);
        how.seed = {b.draws.seed, 1};
        how.position = {b.draws.position, 1};
    }
    if (from == HEAD) {
        gumbel_head head = {};
        head.struct_size = sizeof head;
        head.weight = {b.weight, GUMBEL_BFLOAT16, VOCAB, HIDDEN, 0};
        head.hidden = {b.hidden, GUMBEL_BFLOAT16, batch, HIDDEN, 0};
        CHECKED(gumbel_sample, r.gpu, r.stream, &head, &how, &output, r.workspace,
                r.workspace_bytes, &error);
    } else {
        gumbel_logits logits = {};
        logits.struct_size = sizeof logits;
        logits.logits = {b.logits, GUMBEL_FLOAT32, batch, VOCAB, 0};
        CHECKED(gumbel_sample_logits, r.gpu, r.stream, &logits, &how, &output, r.workspace,
                r.workspace_bytes, &error);
    }
}

/* Ends the program if a row was not watermarked. */
static void verify(const bench &b)
{
    queue_rows(b, LOGITS, WATERMARKED, MAX_ROWS);
    CHECKED(cudaStreamSynchronize, b.rows.stream);
    for (int32_t is_watermarked : copy_out(b.is_watermarked, MAX_ROWS))
        if (is_watermarked != 1)
            die("a row with a new context has no watermark");
}

struct point {
    source from;
    int64_t batch;
    std::array<spread, WAYS> times; /* microseconds of a call */
};

static point measure(const bench &b, source from, int64_t batch)
{
    const captured plain(b.rows.stream, [&] { queue_rows(b, from, PLAIN, batch); });
    const captured marked(b.rows.stream, [&] { queue_rows(b, from, WATERMARKED, batch); });
    const captured *const ways[WAYS] = {&plain, &marked};
    const point p = {from, batch, time_in_turns(b.rows.stream, ways)};
    printf("%-6s %5lld  %8.1f (%.1f..%.1f)  %8.1f (%.1f..%.1f)  %.3f\n", SOURCE_NAMES[from],
           (long long)batch, p.times[PLAIN].median, p.times[PLAIN].p10, p.times[PLAIN].p90,
           p.times[WATERMARKED].median, p.times[WATERMARKED].p10, p.times[WATERMARKED].p90,
           p.times[WATERMARKED].median / p.times[PLAIN].median);
    fflush(stdout);
    return p;
}

static void write_json(const std::vector<point> &points, const bench_options &options)
{
    FILE *file = begin_results(options.json, QUESTION, options.commit);
    fprintf(file, "  \"vocab\": %lld,\n  \"hidden\": %lld,\n  \"text\": %lld,\n  \"points\": [",
            (long long)VOCAB, (long long)HIDDEN, (long long)TEXT);
    for (size_t i = 0; i < points.size(); i++) {
        fprintf(file, "%s\n    {\"from\": \"%s\", \"batch\": %lld", i ? "," : "",
                SOURCE_NAMES[points[i].from], (long long)points[i].batch);
        for (int which = 0; which < WAYS; which++) {
            fprintf(file, ", ");
            write_spread(file, WAY_NAMES[which], points[i].times[which]);
        }
        fprintf(file, "}");
    }
    fprintf(file, "\n  ]\n}\n");
    close_results(file, options.json);
}

int main(int argc, char **argv)
{
    const bench_options options = read_options(argc, argv);
    const bench b = open_bench();
    std::vector<point> points;
    verify(b);
    printf("question: %s\nus of a call, V = %lld, D = %lld, texts of %lld tokens (p10..p90)\n",
           QUESTION, (long long)VOCAB, (long long)HIDDEN, (long long)TEXT);
    printf("from       B  plain                     watermarked               ratio\n");
    for (source from : {LOGITS, HEAD})
        for (int64_t batch : BATCHES)
            points.push_back(measure(b, from, batch));
    if (options.json)
        write_json(points, options);
    return 0;
}

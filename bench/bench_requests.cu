/* SPDX-License-Identifier: Apache-2.0
 *
 * How long does a request take on an NVIDIA GPU: transforms, truncation and further outputs, by k,
 * p, the batch size and the entropy of the rows, from logits and after the product?
 *
 * usage: bench_requests [--json FILE] [--commit TEXT] [--quick]
 *
 * script/bench-gpu builds and runs it. --quick leaves out the sweeps over k and p.
 *
 * Tokens are compared with the CPU's before anything is timed. Times are measured as in
 * bench_fused_vs_gemm.cu: one of 5 calls in a captured graph, over 30 replays.
 */
#include "request_calls.cuh"

static const char QUESTION[] = "what does a request cost on an NVIDIA GPU?";

/* The first questions, for which the time over the plain draw is measured. */
constexpr int LIMITED = 4;

/* ---------------------------------------------------------------------------------- report ---- */

/* One measurement; the plain draw is a question without parameters. */
struct point {
    const char *way, *table;
    question request;
    shape rows;
    int64_t B;
    spread draw;
    double plain_us; /* median of plain draws that took turns with it, or 0 */
};

static std::vector<point> points;

static double measure_request(const bench &b, const char *table, const question &q, shape s,
                              int64_t B, bool fused)
{
    std::vector<double> times;
    set_parameters(b, q);
    time_call(b.rows.stream, times,
              [&] { fused ? draw_fused(b, q, s, B) : draw_logits(b, q, s, B); });
    points.push_back({fused ? "fused" : "logits", table, q, s, B, make_spread(times), 0});
    return points.back().draw.median;
}

static const int64_t BATCHES[] = {1, 8, 32, 64, 256};

/* Measures a request and a plain draw in turns, after the product, and prints the difference in
 * percent. Each call follows a norm, as in an engine, because adjacent draws would overlap. */
static double measure_over_plain(const bench &b, const question &q, shape s, int64_t B)
{
    set_parameters(b, q);
    const captured drawn(b.rows.stream, [&] {
        queue_norm(b.rows.stream, b.hidden, B * HIDDEN);
        draw_fused(b, PLAIN, s, B);
    });
    const captured requested(b.rows.stream, [&] {
        queue_norm(b.rows.stream, b.hidden, B * HIDDEN);
        draw_fused(b, q, s, B);
    });
    const captured *const ways[] = {&drawn, &requested};
    const auto times = time_in_turns(b.rows.stream, ways);
    points.push_back({"fused", "over plain", q, s, B, times[1], times[0].median});
    return 100 * (times[1].median / times[0].median - 1);
}

/* A line of medians over the batch. */
static void measure_line(const bench &b, const char *table, const question &q, shape s, bool fused)
{
    printf("%-60s %-18s", q.name, SHAPE_NAMES[s]);
    for (int64_t B : BATCHES)
        printf(" %8.1f", measure_request(b, table, q, s, B, fused));
    printf("\n");
    fflush(stdout);
}

static void measure_questions(const bench &b, bool fused)
{
    printf("\n%s, V = %lld, us at B = 1, 8, 32, 64, 256\n",
           fused ? "behind the product, D = 4096" : "from float32 logits", (long long)VOCAB);
    for (int s = 0; s < SHAPES; s++) {
        measure_line(b, "requests", PLAIN, shape(s), fused);
        for (const question &q : QUESTIONS)
            measure_line(b, "requests", q, shape(s), fused);
    }
}

static void measure_over_plain(const bench &b)
{
    printf("\nover the plain draw, in turns, %%, at B = 1, 8, 16, 32, 64, 128, 256\n");
    for (int s = 0; s < SHAPES; s++)
        for (int i = 0; i < LIMITED; i++) {
            printf("%-60s %-18s", QUESTIONS[i].name, SHAPE_NAMES[s]);
            for (int64_t B : {1, 8, 16, 32, 64, 128, 256})
                printf(" %8.1f", measure_over_plain(b, QUESTIONS[i], shape(s), B));
            printf("\n");
            fflush(stdout);
        }
}

static void measure_sweeps(const bench &b)
{
    static char names[64][32];
    int used = 0;
    printf("\nover k and p, from float32 logits\n");
    for (int s = 0; s < SHAPES; s++) {
        for (int32_t k : {1, 10, 50, 100, 200, 500, 1000, 10000, 100000}) {
            snprintf(names[used], sizeof names[0], "k = %d", k);
            measure_line(b, "k", {names[used++], k, 1, 0}, shape(s), false);
        }
        for (float p : {0.1f, 0.5f, 0.8f, 0.9f, 0.95f, 0.99f, 0.999f}) {
            snprintf(names[used], sizeof names[0], "p = %g", p);
            measure_line(b, "p", {names[used++], 0, p, 0}, shape(s), false);
        }
    }
}

static void write_json(const char *path, const char *commit)
{
    FILE *file = open_results(path, QUESTION, commit);
    fprintf(file, "  \"requests\": [");
    for (size_t i = 0; i < points.size(); i++) {
        const point &at = points[i];
        fprintf(file, "%s\n    {\"way\": \"%s\", \"table\": \"%s\", \"request\": \"%s\",",
                i ? "," : "", at.way, at.table, at.request.name);
        fprintf(file, " \"rows\": \"%s\", \"top_k\": %d, \"top_p\": %g, \"batch\": %lld,",
                SHAPE_NAMES[at.rows], at.request.k, at.request.p, (long long)at.B);
        if (at.plain_us > 0)
            fprintf(file, " \"plain_us\": %.3f,", at.plain_us);
        fprintf(file, " \"median_us\": %.3f, \"p10_us\": %.3f, \"p90_us\": %.3f}", at.draw.median,
                at.draw.p10, at.draw.p90);
    }
    fprintf(file, "\n  ]\n}\n");
    close_results(file, path);
}

int main(int argc, char **argv)
{
    const bench_options options = read_options(argc, argv);
    bench b = open_bench();
    for (int s = 0; s < SHAPES; s++)
        verify_tokens(b, shape(s));
    printf("question: %s\n", QUESTION);
    measure_questions(b, false);
    measure_questions(b, true);
    measure_over_plain(b);
    if (!options.quick)
        measure_sweeps(b);
    if (options.json)
        write_json(options.json, options.commit);
    return 0;
}

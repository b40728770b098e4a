/* SPDX-License-Identifier: Apache-2.0
 *
 * How much longer does verifying drafts take on an NVIDIA GPU than a plain draw of as many rows?
 *
 * usage: bench_verify [--json FILE] [--commit TEXT]
 *
 * script/bench-gpu --verify builds and runs it. R requests of G drafts each are verified from the
 * hidden states or the logits of n = R (G + 1) rows: by the coupled rule, and by the rejection and
 * block rules, which also read the draft's distribution. With hidden states, that distribution
 * comes from the product of the draft's LM head; from logits that the drafter stored (`kept`); or
 * from log-normalisers and log-probabilities that the drafter supplies (`supplied`), without a
 * product.
 *
 * Kept sets: a coupled verification with top_k and top_p takes turns with one that also returns the
 * log-probability of each row's token, and with one that also lists the tokens that truncation
 * keeps of each row, with their log-probabilities. Lists are compared with those of a draw of the
 * same rows before anything is timed.
 */
#include "verify_calls.cuh"

static const char QUESTION_OF_DRAFTS[] = "what does verifying drafts cost on an NVIDIA GPU?";

/* ----------------------------------------------------------------------------------- rules ---- */

struct verify_point {
    int64_t R, M;
    bool fused;
    spread plain, coupled, rejection;
    spread other;    /* fused: rejection with stored logits; else the block rule */
    spread supplied; /* fused only */
};

static verify_point measure_rules(const bench &b, int64_t R, int64_t M, bool fused, void *workspace)
{
    const cycle c = make_cycle(R, M, workspace);
    cudaStream_t stream = b.rows.stream;
    make_drafts(b, c, {fused});
    const captured plain(stream, [&] {
        fused ? draw_fused(b, PLAIN, GAUSSIAN, c.rows())
              : draw_logits(b, PLAIN, GAUSSIAN, c.rows());
    });
    const captured coupled(stream, [&] { verify_drafts(b, c, {fused}); });
    const captured rejection(stream, [&] { verify_drafts(b, c, {fused, GUMBEL_RULE_REJECTION}); });
    const captured other(stream, [&] {
        const gumbel_rule rule = fused ? GUMBEL_RULE_REJECTION : GUMBEL_RULE_BLOCK;
        verify_drafts(b, c, {fused, rule, STORED});
    });
    if (fused)
        supply_drafts(b, c);
    const captured supplied(stream, [&] {
        verify_drafts(b, c, {fused, GUMBEL_RULE_REJECTION, fused ? SUPPLIED : FROM_HEAD});
    });
    const captured *const contestants[] = {&plain, &coupled, &rejection, &other, &supplied};
    const auto times = time_in_turns(stream, contestants);
    free_cycle(c);
    return {R, M, fused, times[0], times[1], times[2], times[3], times[4]};
}

static const char *name_other(const verify_point &point) { return point.fused ? "kept" : "block"; }

static void print_point(const verify_point &point)
{
    printf("%-7s R = %2lld, %lld drafts, n = %3lld: plain %8.1f us, coupled %8.1f (%.3f), "
           "rejection %8.1f (%.2f)",
           point.fused ? "fused" : "logits", (long long)point.R, (long long)point.M - 1,
           (long long)(point.R * point.M), point.plain.median, point.coupled.median,
           point.coupled.median / point.plain.median, point.rejection.median,
           point.rejection.median / point.plain.median);
    printf(", %s %8.1f (%.2f)", name_other(point), point.other.median,
           point.other.median / point.plain.median);
    if (point.fused)
        printf(", supplied %8.1f (%.2f)", point.supplied.median,
               point.supplied.median / point.plain.median);
    printf("\n");
    fflush(stdout);
}

/* ------------------------------------------------------------------------------- kept sets ---- */

/* Outputs of a truncated verification, each with those before it. */
enum row_outputs { TOKENS, LOGPROBS, KEPT_SETS, ROW_OUTPUTS };
static const char *const OUTPUT_NAMES[ROW_OUTPUTS] = {"tokens", "logprobs", "kept_sets"};

struct kept_point {
    int64_t R, M;
    bool fused;
    double mean_kept; /* tokens of a row */
    std::array<spread, ROW_OUTPUTS> times;
    double ratio() const { return times[KEPT_SETS].median / times[LOGPROBS].median; }
};

static verification request_outputs(bool fused, row_outputs which)
{
    verification how = {fused};
    how.request = QUESTIONS[0];
    how.request.logprobs = which >= LOGPROBS;
    how.request.kept_sets = which == KEPT_SETS;
    how.with_rows = which != TOKENS;
    return how;
}

/* Draws the rows of a verification's nodes by one call, with their kept sets. */
static void draw_nodes(const bench &b, const cycle &c, bool fused)
{
    const auto of_request = copy_out(b.rows.temperature, c.R);
    std::vector<float> of_row(c.rows());
    for (int64_t i = 0; i < c.rows(); i++)
        of_row[i] = of_request[i / c.M];
    float *temperature = copy_in(of_row);
    call rows;
    fill_call(b, request_outputs(fused, KEPT_SETS).request, rows);
    rows.sampling.temperature = {temperature, 0};
    const gumbel_head head = describe_head(b, GAUSSIAN, c.rows());
    const gumbel_logits logits = describe_logits(b.logits[GAUSSIAN], c.rows());
    if (fused)
        CHECKED(gumbel_sample, b.rows.gpu, b.rows.stream, &head, &rows.sampling, &rows.output,
                c.workspace, VERIFY_WORKSPACE, &error);
    else
        CHECKED(gumbel_sample_logits, b.rows.gpu, b.rows.stream, &logits, &rows.sampling,
                &rows.output, c.workspace, VERIFY_WORKSPACE, &error);
    CHECKED(cudaStreamSynchronize, b.rows.stream);
    CHECKED(cudaFree, temperature);
}

/* Ends the program if the kept sets of a verification are not those of a draw of its rows, or lack
 * the token that a row has drawn. Returns the mean number of tokens kept. */
static double check_kept_sets(const bench &b, const cycle &c, bool fused)
{
    verify_drafts(b, c, request_outputs(fused, KEPT_SETS));
    CHECKED(cudaStreamSynchronize, b.rows.stream);
    const auto drawn = copy_out(c.row_tokens, c.rows()), kept = copy_out(b.kept, c.rows());
    const auto ids = copy_out(b.kept_ids, c.rows() * KEPT);
    const auto logprobs = copy_out(b.kept_logprobs, c.rows() * KEPT);
    CHECKED(cudaMemset, b.kept, -1, c.rows() * sizeof *b.kept);
    CHECKED(cudaMemset, b.kept_ids, -1, c.rows() * KEPT * sizeof *b.kept_ids);
    CHECKED(cudaMemset, b.kept_logprobs, -1, c.rows() * KEPT * sizeof *b.kept_logprobs);
    draw_nodes(b, c, fused);
    const auto expected = copy_out(b.kept, c.rows());
    const auto expected_ids = copy_out(b.kept_ids, c.rows() * KEPT);
    const auto expected_logprobs = copy_out(b.kept_logprobs, c.rows() * KEPT);
    double sum = 0;
    for (int64_t i = 0; i < c.rows(); i++) {
        const int32_t *first = &ids[i * KEPT];
        if (kept[i] < 1 || kept[i] > KEPT || kept[i] != expected[i])
            die("row %lld: %d tokens are kept, not %d", (long long)i, kept[i], expected[i]);
        if (memcmp(first, &expected_ids[i * KEPT], kept[i] * sizeof *first) != 0 ||
            memcmp(&logprobs[i * KEPT], &expected_logprobs[i * KEPT], kept[i] * sizeof(float)) != 0)
            die("row %lld: kept sets of a verification and of a draw differ", (long long)i);
        if (!std::binary_search(first, first + kept[i], drawn[i]))
            die("row %lld: token %d is not in the kept set", (long long)i, drawn[i]);
        sum += kept[i];
    }
    return sum / double(c.rows());
}

static kept_point measure_kept_sets(const bench &b, int64_t R, int64_t M, bool fused,
                                    void *workspace)
{
    const cycle c = make_cycle(R, M, workspace);
    for (row_outputs which : {TOKENS, LOGPROBS, KEPT_SETS})
        make_drafts(b, c, request_outputs(fused, which));
    const double mean_kept = check_kept_sets(b, c, fused);
    auto verify = [&](row_outputs which) { verify_drafts(b, c, request_outputs(fused, which)); };
    const captured tokens(b.rows.stream, [&] { verify(TOKENS); });
    const captured logprobs(b.rows.stream, [&] { verify(LOGPROBS); });
    const captured kept_sets(b.rows.stream, [&] { verify(KEPT_SETS); });
    const captured *const contestants[] = {&tokens, &logprobs, &kept_sets};
    const auto times = time_in_turns(b.rows.stream, contestants);
    free_cycle(c);
    return {R, M, fused, mean_kept, times};
}

static void print_kept_point(const kept_point &point)
{
    printf("%-7s R = %2lld, %lld drafts, n = %3lld: %s %8.1f us, log-probabilities %8.1f, "
           "kept sets %8.1f (%.3f); %.1f tokens kept\n",
           point.fused ? "fused" : "logits", (long long)point.R, (long long)point.M - 1,
           (long long)(point.R * point.M), QUESTIONS[0].name, point.times[TOKENS].median,
           point.times[LOGPROBS].median, point.times[KEPT_SETS].median, point.ratio(),
           point.mean_kept);
    fflush(stdout);
}

/* --------------------------------------------------------------------------------- results ---- */

static void write_kept_points(FILE *file, const std::vector<kept_point> &points)
{
    const char *comma = "";
    fprintf(file, "  \"kept_sets\": [");
    for (const kept_point &point : points) {
        fprintf(file, "%s\n    {\"requests\": %lld, \"drafts\": %lld, \"way\": \"%s\"", comma,
                (long long)point.R, (long long)point.M - 1, point.fused ? "fused" : "logits");
        fprintf(file, ", \"request\": \"%s\", \"mean_kept\": %.2f", QUESTIONS[0].name,
                point.mean_kept);
        for (int which = 0; which < ROW_OUTPUTS; which++) {
            fprintf(file, ", ");
            write_spread(file, OUTPUT_NAMES[which], point.times[which]);
        }
        fprintf(file, ", \"ratio\": %.4f}", point.ratio());
        comma = ",";
    }
    fprintf(file, "\n  ]");
}

static void write_points(FILE *file, const std::vector<verify_point> &points)
{
    const char *comma = "";
    fprintf(file, "  \"results\": [");
    for (const verify_point &point : points) {
        const struct {
            const char *name;
            const spread &times;
        } contestants[] = {{"plain", point.plain},
                           {"coupled", point.coupled},
                           {"rejection", point.rejection},
                           {name_other(point), point.other},
                           {"supplied", point.supplied}};
        fprintf(file, "%s\n    {\"requests\": %lld, \"drafts\": %lld, \"way\": \"%s\"", comma,
                (long long)point.R, (long long)point.M - 1, point.fused ? "fused" : "logits");
        for (size_t i = 0; i < (point.fused ? 5 : 4); i++) {
            fprintf(file, ", ");
            write_spread(file, contestants[i].name, contestants[i].times);
        }
        fprintf(file, "}");
        comma = ",";
    }
    fprintf(file, "\n  ]");
}

static void write_json(const char *path, const char *commit,
                       const std::vector<verify_point> &points,
                       const std::vector<kept_point> &kept_points)
{
    FILE *file = open_results(path, QUESTION_OF_DRAFTS, commit);
    fprintf(file, "  \"draft_hidden\": %lld,\n", (long long)DRAFT_HIDDEN);
    write_points(file, points);
    fprintf(file, ",\n");
    write_kept_points(file, kept_points);
    fprintf(file, "\n}\n");
    close_results(file, path);
}

int main(int argc, char **argv)
{
    const bench_options options = read_options(argc, argv);
    bench b = open_bench();
    std::vector<verify_point> points;
    std::vector<kept_point> kept_points;
    void *workspace = allocate<char>(VERIFY_WORKSPACE);
    verify_tokens(b, GAUSSIAN);
    printf("question: %s\n", QUESTION_OF_DRAFTS);
    set_parameters(b, QUESTIONS[0]);
    for (bool fused : {true, false})
        for (int64_t M : {4, 8})
            for (int64_t R : {1, 8, 16, 64}) {
                points.push_back(measure_rules(b, R, M, fused, workspace));
                print_point(points.back());
            }
    for (bool fused : {true, false})
        for (int64_t M : {4, 8})
            for (int64_t R : {1, 8, 64}) {
                kept_points.push_back(measure_kept_sets(b, R, M, fused, workspace));
                print_kept_point(kept_points.back());
            }
    if (options.json)
        write_json(options.json, options.commit, points, kept_points);
    return 0;
}

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
 */
#include "gumbel/drafts.h"

#include "request_calls.cuh"

static const char QUESTION_OF_DRAFTS[] = "what does verifying drafts cost on an NVIDIA GPU?";

/* Hidden size of the draft's LM head. */
constexpr int64_t DRAFT_HIDDEN = 1024;
/* The workspace holds the logits of both models if both have an LM head. */
constexpr size_t VERIFY_WORKSPACE = size_t(1) << 30;

/* R requests of M nodes: drafts and outputs. */
struct cycle {
    int64_t R, M;
    int32_t *drafted, *row_tokens, *tokens, *emitted;
    float *lse, *logprobs; /* of the draft's draws */
    void *workspace;
    int64_t rows() const { return R * M; }
};

/* The model that drew the drafts. */
struct drafter {
    gumbel_head head;
    gumbel_logits logits;
    gumbel_sampling sampling;
};

static cycle make_cycle(int64_t R, int64_t M, void *workspace)
{
    cycle c = {R, M};
    c.drafted = copy_in(std::vector<int32_t>(R * M, -1));
    c.row_tokens = allocate<int32_t>(R * M);
    c.tokens = allocate<int32_t>(R * M);
    c.emitted = allocate<int32_t>(R);
    c.lse = allocate<float>(R * M);
    c.logprobs = allocate<float>(R * M);
    c.workspace = workspace;
    return c;
}

static void free_cycle(const cycle &c)
{
    for (int32_t *array : {c.drafted, c.row_tokens, c.tokens, c.emitted})
        CHECKED(cudaFree, array);
    CHECKED(cudaFree, c.lse);
    CHECKED(cudaFree, c.logprobs);
}

/* Source of the draft's distribution if its model has an LM head. */
enum row_source { FROM_HEAD, STORED, SUPPLIED };

static gumbel_head describe_head(const bench &b, shape s, int64_t rows, int64_t size)
{
    gumbel_head head = {};
    head.struct_size = sizeof head;
    head.hidden = {b.hidden, GUMBEL_BFLOAT16, rows, size, 0};
    head.weight = {b.weight[s], GUMBEL_BFLOAT16, VOCAB, size, 0};
    return head;
}

static drafter describe_drafter(const bench &b, int64_t rows)
{
    drafter d = {};
    d.head = describe_head(b, PEAKED, rows, DRAFT_HIDDEN);
    d.logits = describe_logits(b.logits[PEAKED], rows);
    d.sampling = make_sampling(b.rows.temperature, nullptr, nullptr);
    d.sampling.domain = GUMBEL_DOMAIN_DRAFT;
    return d;
}

static void verify_drafts(const bench &b, const cycle &c, gumbel_rule rule, bool fused,
                          bool with_rows, row_source source = FROM_HEAD)
{
    const drafter d = describe_drafter(b, c.rows());
    gumbel_sampling sampling = make_sampling(b.rows.temperature, b.rows.seed, b.rows.position);
    gumbel_output rows = make_output(c.row_tokens, nullptr);
    gumbel_draft draft = {};
    draft.struct_size = sizeof draft;
    draft.requests = c.R;
    draft.max_nodes = int32_t(c.M);
    draft.rule = rule;
    draft.tokens = c.drafted;
    if (rule != GUMBEL_RULE_COUPLED) {
        const bool has_head = fused && source != STORED;
        draft.head = has_head ? &d.head : nullptr;
        draft.logits = has_head ? nullptr : &d.logits;
        draft.lse = source == SUPPLIED ? c.lse : nullptr;
        draft.logprobs = source == SUPPLIED ? c.logprobs : nullptr;
        draft.sampling = &d.sampling;
    }
    gumbel_verified verified = {};
    verified.struct_size = sizeof verified;
    verified.tokens = c.tokens;
    verified.emitted = c.emitted;
    verified.rows = with_rows ? &rows : nullptr;
    const gumbel_head head = describe_head(b, GAUSSIAN, c.rows(), HIDDEN);
    const gumbel_logits logits = describe_logits(b.logits[GAUSSIAN], c.rows());
    if (fused)
        CHECKED(gumbel_verify, b.rows.gpu, b.rows.stream, &head, &sampling, &draft, &verified,
                c.workspace, VERIFY_WORKSPACE, &error);
    else
        CHECKED(gumbel_verify_logits, b.rows.gpu, b.rows.stream, &logits, &sampling, &draft,
                &verified, c.workspace, VERIFY_WORKSPACE, &error);
}

/* Makes drafts, of which four in five equal the target's draw, and checks the emitted tokens. */
static void make_drafts(const bench &b, const cycle &c, bool fused)
{
    std::vector<int32_t> drafted(c.rows(), -1);
    verify_drafts(b, c, GUMBEL_RULE_COUPLED, fused, true);
    CHECKED(cudaStreamSynchronize, b.rows.stream);
    const auto drawn = copy_out(c.row_tokens, c.rows());
    for (int64_t i = 0; i < c.rows(); i++)
        if (i % c.M > 0)
            drafted[i] = i % 5 ? drawn[i - 1] : (drawn[i - 1] + 1) % int32_t(VOCAB);
    CHECKED(cudaMemcpy, c.drafted, drafted.data(), drafted.size() * sizeof(int32_t),
            cudaMemcpyHostToDevice);
    verify_drafts(b, c, GUMBEL_RULE_COUPLED, fused, false);
    CHECKED(cudaStreamSynchronize, b.rows.stream);
    const auto emitted = copy_out(c.emitted, c.R), tokens = copy_out(c.tokens, c.rows());
    for (int64_t r = 0; r < c.R; r++) {
        int64_t expected = 1;
        while (expected < c.M && (r * c.M + expected) % 5)
            expected++;
        if (emitted[r] != expected)
            die("request %lld: %d tokens are emitted, not %lld", (long long)r, emitted[r],
                (long long)expected);
        for (int64_t i = 0; i < expected; i++)
            if (tokens[r * c.M + i] != drawn[r * c.M + i])
                die("request %lld: token %lld is not the draw's", (long long)r, (long long)i);
    }
}

/* Writes the log-normaliser and log-probability of each draft, as the drafter's call does. */
static void supply_drafts(const bench &b, const cycle &c)
{
    const drafter d = describe_drafter(b, c.rows());
    std::vector<int32_t> drafts = copy_out(c.drafted, c.rows());
    drafts.erase(drafts.begin());
    drafts.push_back(-1);
    int32_t *on_gpu = copy_in(drafts);
    gumbel_sampling sampling = d.sampling;
    sampling.given = {on_gpu, 1};
    gumbel_output out = make_output(c.row_tokens, nullptr);
    out.lse = c.lse;
    out.logprobs = c.logprobs;
    CHECKED(gumbel_sample, b.rows.gpu, b.rows.stream, &d.head, &sampling, &out, c.workspace,
            VERIFY_WORKSPACE, &error);
    CHECKED(cudaStreamSynchronize, b.rows.stream);
    CHECKED(cudaFree, on_gpu);
}

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
    make_drafts(b, c, fused);
    const captured plain(stream, [&] {
        fused ? draw_fused(b, PLAIN, GAUSSIAN, c.rows())
              : draw_logits(b, PLAIN, GAUSSIAN, c.rows());
    });
    auto verify_by = [&](gumbel_rule rule) { verify_drafts(b, c, rule, fused, false); };
    const captured coupled(stream, [&] { verify_by(GUMBEL_RULE_COUPLED); });
    const captured rejection(stream, [&] { verify_by(GUMBEL_RULE_REJECTION); });
    const captured other(stream, [&] {
        fused ? verify_drafts(b, c, GUMBEL_RULE_REJECTION, true, false, STORED)
              : verify_by(GUMBEL_RULE_BLOCK);
    });
    if (fused)
        supply_drafts(b, c);
    const captured supplied(stream, [&] {
        verify_drafts(b, c, GUMBEL_RULE_REJECTION, fused, false, fused ? SUPPLIED : FROM_HEAD);
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

static void write_json(const char *path, const char *commit,
                       const std::vector<verify_point> &points)
{
    FILE *file = open_results(path, QUESTION_OF_DRAFTS, commit);
    const char *comma = "";
    fprintf(file, "  \"draft_hidden\": %lld,\n  \"results\": [", (long long)DRAFT_HIDDEN);
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
    fprintf(file, "\n  ]\n}\n");
    close_results(file, path);
}

int main(int argc, char **argv)
{
    const bench_options options = read_options(argc, argv);
    bench b = open_bench();
    std::vector<verify_point> points;
    void *workspace = allocate<char>(VERIFY_WORKSPACE);
    printf("question: %s\n", QUESTION_OF_DRAFTS);
    set_parameters(b, PLAIN);
    for (bool fused : {true, false})
        for (int64_t M : {4, 8})
            for (int64_t R : {1, 8, 16, 64})
                if (R * M <= MAX_BATCH) {
                    points.push_back(measure_rules(b, R, M, fused, workspace));
                    print_point(points.back());
                }
    if (options.json)
        write_json(options.json, options.commit, points);
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// The kernels that draw rows by their programs, from source on a CPU, their threads in a random
// order, against the CPU backend: clusters, or the CTAs of a cooperative launch, serve all rows, or
// those that a CTA does not serve from few of their blocks. Nearly all rows in which few tokens
// matter must be served from a list of these: a kernel that never is has the right outputs, too.
#include "launch_blocks.h"
#include "launch_cluster.h"
#include "sparse_blocks.h"
#include "truncated_rows.h"

#include "cuda/policy/cuda_policy.h"

extern "C" {
#include "core/row_program.h"
#include "prefixed_programs.h"
}

namespace
{

/* The kernels that serve rows by several CTAs. */
typedef std::vector<cluster_path> program_kernel(const cuda_truncated_params &, uint64_t *,
                                                 const char *);

/* Numbers of rows in which few tokens matter, and of those that a list served. */
struct row_counts {
    int by_blocks, served_by_blocks, by_clusters, listed_by_clusters;
    entropy_counts entropies; /* of all rows */
};
constexpr double kFewServed = 0.8;
/* A grid serves one of kGridEvery problems, too: twice as many threads run at the same time, which
 * takes five times as long. */
constexpr int kGridEvery = 5;
/* Smaller rows lie in few CTAs of a cluster, each of which gathers at most 128 tokens; 100, as it
 * may gather more than those that matter. */
constexpr int64_t kSliceVocab = 5200;
constexpr int kSliceTokens = 100;

struct test_problem {
    request *req;
    prefixed_programs programs;
    int32_t live_rows;
    std::vector<int32_t> given;
    uint64_t random;
    char what[500];
};

/* `usual`: lists serve most rows whose program begins with top_k. */
request_plan plan_of(uint64_t *random, bool usual)
{
    static const uint32_t vocabs[] = {70, 600, 5000, 20000};
    request_plan plan = {};
    plan.batch = 1 + random_below(random, 2);
    plan.vocab = 1 + random_below(random, vocabs[random_below(random, 4)]);
    choose_range(&plan, random);
    plan.ties = (gumbel_ties)random_below(random, 2);
    plan.kind = one_in(random, 2) ? 1 + ROW_GAUSSIAN : 0;
    plan.truncation = 1;
    plan.seed = random_bits(random) >> 20;
    plan.samples = 1 + one_in(random, 3);
    plan.num_top = one_in(random, 2) ? 1 + (int32_t)random_below(random, 128) : 0;
    plan.dtype = (gumbel_dtype)(1 + random_below(random, 3));
    plan.scale = one_in(random, 4) ? 0.5f : 0.0f;
    plan.soft_cap = one_in(random, 4) ? 5.0f : 0.0f;
    plan.logprobs_of = one_in(random, 5) ? GUMBEL_RAW : GUMBEL_PROCESSED;
    plan.transforms = one_in(random, 3);
    plan.history = one_in(random, 2);
    plan.given_noise = one_in(random, 8);
    plan.kept_capacity = one_in(random, 3) ? 1 + (int32_t)random_below(random, 700) : 0;
    plan.entropy = one_in(random, 2);
    if (usual) {
        plan.vocab = kSliceVocab + 1 + random_below(random, 5000);
        plan.kind = 1 + ROW_GAUSSIAN;
        plan.logprobs_of = GUMBEL_PROCESSED;
        plan.transforms = 0;
    }
    return plan;
}

/* Lets a temperature make different values equal between two rules that break ties by id. */
void tie_by_temperature(test_problem *test)
{
    static const uint8_t rules[GUMBEL_PROGRAM_LENGTH] = {
        GUMBEL_PROGRAM_TOP_K, GUMBEL_PROGRAM_TEMPERATURE, GUMBEL_PROGRAM_TOP_P};
    for (auto &program : test->programs.rules)
        std::copy(std::begin(rules), std::end(rules), program);
    static const float temperature = 0.7f, top_p = 0.5f;
    const gumbel_tensor &t = test->req->logits.logits;
    for (int64_t i = 0; i < t.rows * t.cols; i++) /* mostly different values */
        ((float *)t.data)[i / t.cols * t.stride + i % t.cols] =
            16.0f - 0x1p-20f * (float)((uint32_t)i * 2654435761u % 20011);
    test->req->truncation.ties = GUMBEL_TIES_EXACT;
    test->req->truncation.top_p = {&top_p, GUMBEL_SAME};
    test->req->sampling.temperature = {&temperature, GUMBEL_SAME};
    snprintf(test->programs.text, sizeof test->programs.text, "rules 3 1 4, adjacent");
}

void make_test(test_problem *test, int index, gumbel_device *cpu)
{
    test->random = (uint64_t)index + 1000;
    const bool usual = index % 2, tied = index % 8 == 1;
    request_plan plan = plan_of(&test->random, usual);
    plan.dtype = tied ? GUMBEL_FLOAT32 : plan.dtype;
    test->req = request_make(&plan, cpu);
    prefixed_programs_set(&test->programs, test->req, &test->random);
    for (int32_t &k : test->programs.top_k)
        k = usual ? 1 + k % 60 : k;
    if (one_in(&test->random, 2))
        test->req->transforms.banned = test->req->transforms.bias = {};
    if (one_in(&test->random, usual ? 6 : 3))
        set_adjacent_logits(test->req, &test->random);
    else if (!usual && one_in(&test->random, 3))
        set_hostile_logits(test->req, random_below(&test->random, REQUEST_SHAPES));
    if (tied)
        tie_by_temperature(test);
    test->live_rows = (int32_t)plan.batch - 1;
    if (one_in(&test->random, 8))
        test->req->sampling.live_rows = &test->live_rows;
}

/* z of all tokens of all rows, [B, V], before programs. */
std::vector<float> find_z_before_programs(const request *req, gumbel_device *cpu)
{
    std::vector<float> z((size_t)(req->plan.batch * req->plan.vocab));
    gumbel_sampling sampling = req->sampling;
    sampling.truncation = NULL;
    sampling.live_rows = NULL;
    if (request_process(cpu, &req->logits, &sampling, z.data()))
        exit(1);
    return z;
}

/* Whether the program of row b, with these z, begins with a top_k that keeps at most `most` tokens.
 */
bool few_matter(const gumbel_problem &q, int64_t b, const float *z, int most)
{
    if (gumbel_problem_row_flags(&q, b) || gumbel_problem_row(&q, b).greedy)
        return false;
    const gumbel_row_program program = gumbel_problem_program(&q, b);
    const int64_t k = gumbel_find_program_prefix(&program).top_k;
    std::vector<float> sorted(z, z + q.vocab);
    std::sort(sorted.begin(), sorted.end(), std::greater<float>());
    if (k == 0 || k >= q.vocab || k > CUDA_TRUNCATED_TOP_MAX || !(sorted[0] < INFINITY))
        return false;
    const float last = std::max(sorted[(size_t)k - 1], -FLT_MAX);
    return std::all_of(z, z + q.vocab, [](float x) { return !std::isnan(x); }) &&
           std::count_if(z, z + q.vocab, [&](float x) { return x >= last; }) <= most;
}

/* Whether no edit of row b keeps a CTA from serving it from blocks. */
bool suits_blocks(const gumbel_problem &q, int64_t b)
{
    const gumbel_penalties raised = gumbel_problem_penalties(&q, b);
    const bool penalties = q.features & GUMBEL_FEATURE_PENALTIES;
    return !(q.features & (GUMBEL_FEATURE_BANNED | GUMBEL_FEATURE_BIAS)) && q.scale > 0.0f &&
           (!penalties || (q.history.prompt && raised.repetition >= 1.0f &&
                           raised.frequency >= 0.0f && raised.presence >= 0.0f));
}

/* Serves rows from few blocks; returns whether the others are untouched, and all others agree. */
bool blocks_agree(test_problem *test, const outcome *host, cuda_truncated_params *p,
                  const std::vector<float> &z, row_counts *counts)
{
    const gumbel_problem &q = p->problem;
    const size_t rows = (size_t)q.batch;
    const int multiprocessors = 1 + (int)random_below(&test->random, 3);
    const int64_t origin = CUDA_MAXIMA_ORIGIN(q.first_token);
    outcome *untouched = request_outcome(test->req);
    bool good = true;
    p->blocks = (q.end_token - origin + CUDA_MAXIMA_BLOCK - 1) / CUDA_MAXIMA_BLOCK;
    p->has_block_maxima = one_in(&test->random, 2);
    p->split_size = p->has_block_maxima
                        ? p->blocks
                        : cuda_blocks_per_split(p->blocks, q.batch, multiprocessors);
    p->splits = (int32_t)((p->blocks + p->split_size - 1) / p->split_size);
    p->tag = 1 + (uint64_t)q.batch;
    std::vector<float> maxima = find_block_maxima(q, p->blocks, false);
    if (!p->has_block_maxima)
        std::fill(maxima.begin(), maxima.end(), NAN);
    p->block_maxima = maxima.data();
    p->counters = (uint64_t *)poisoned_workspace(rows * CUDA_THRESHOLD_WORDS * sizeof(uint64_t));
    emulate_program_blocks(*p, &test->random, test->what);
    free(p->counters);
    for (int64_t b = 0; good && b < q.batch; b++) {
        const bool served = p->row_states[b] == CUDA_ROW_SERVED;
        const bool few = suits_blocks(q, b) &&
                         few_matter(q, b, &z[(size_t)(b * q.vocab)], CUDA_TRUNCATED_THREADS);
        good = row_agrees(served ? host : untouched, p->output, b, test->what) &&
               (served || p->row_states[b] == CUDA_ROW_FALLBACK);
        counts->by_blocks += few;
        counts->served_by_blocks += few && served;
    }
    outcome_free(untouched);
    return good;
}

/* Draws the rows; returns whether all agree with the CPU backend. */
bool draws_agree(test_problem *test, gumbel_device *cpu, cuda_truncated_params p,
                 program_kernel *kernel, row_counts *counts)
{
    const gumbel_problem &q = p.problem;
    outcome *host = request_outcome(test->req);
    bool good = request_draw(cpu, test->req, host) == GUMBEL_OK;
    const std::vector<float> z = find_z_before_programs(test->req, cpu);
    cuda_truncated_params blocks = p;
    if (!(q.features & GUMBEL_FEATURE_RAW) && q.end_token > q.first_token &&
        one_in(&test->random, 2)) {
        p.row_states = blocks.row_states =
            (int32_t *)poisoned_workspace((size_t)q.batch * sizeof *p.row_states);
        good = good && blocks_agree(test, host, &blocks, z, counts);
    }
    const std::vector<cluster_path> paths = kernel(p, &test->random, test->what);
    for (int64_t b = 0; good && b < q.batch; b++) {
        const bool few = q.end_token - q.first_token > kSliceVocab &&
                         few_matter(q, b, &z[(size_t)(b * q.vocab)], kSliceTokens) &&
                         (!p.row_states || p.row_states[b] == CUDA_ROW_FALLBACK);
        good = row_agrees(host, p.output, b, test->what);
        counts->entropies.add(host, p.output, b);
        counts->by_clusters += few;
        counts->listed_by_clusters += few && paths[(size_t)b] == CLUSTER_BEFORE_PROGRAM;
    }
    free(p.row_states);
    outcome_free(host);
    return good;
}

/* Processes the rows; returns whether all have the CPU backend's bits. */
bool processed_agree(test_problem *test, gumbel_device *cpu, cuda_truncated_params p,
                     program_kernel *kernel)
{
    const gumbel_problem &q = p.problem;
    p.processed_stride = q.vocab;
    p.processed_dtype = one_in(&test->random, 2) ? q.logits.dtype : GUMBEL_FLOAT32;
    processed_rows host(q.batch, q.vocab, p.processed_dtype, 0.0f), ours = host;
    if (request_process_into(cpu, &test->req->logits, &test->req->sampling, host.data(),
                             p.processed_dtype, 0))
        return false;
    p.processed = ours.data();
    kernel(p, &test->random, test->what);
    for (int64_t i = 0; i < q.batch * q.vocab; i++)
        if (!same_float(host.load(0, i), ours.load(0, i))) {
            printf("%s: processed[%d] is %a, not %a\n", test->what, (int)i, (double)ours.load(0, i),
                   (double)host.load(0, i));
            return false;
        }
    return true;
}

bool passes(int index, gumbel_device *cpu, program_kernel *kernel, row_counts *counts)
{
    test_problem test = {};
    make_test(&test, index, cpu);
    const bool processed = one_in(&test.random, 3) && !test.req->sampling.live_rows;
    outcome *ours = request_outcome(test.req);
    gumbel_output none = {};
    cuda_truncated_params p =
        params_of(*test.req, processed ? none : choose_outputs(ours, &test.random));
    const gumbel_problem &q = p.problem;
    const int64_t origin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    p.splits = CUDA_CLUSTER_CTAS;
    p.split_size = cuda_cluster_slice(std::max<int64_t>(q.end_token - origin, 1));
    snprintf(test.what, sizeof test.what, "problem %d, %s, %s: %s: %s", index,
             kernel == emulate_program_grid ? "grid" : "cluster", processed ? "processed" : "drawn",
             request_describe(&test.req->plan), test.programs.text);
    const bool good = processed ? processed_agree(&test, cpu, p, kernel)
                                : draws_agree(&test, cpu, p, kernel, counts);
    outcome_free(ours);
    request_free(test.req);
    return good;
}

} // namespace

/* usage: test_program_cluster [FIRST [COUNT]], problems by number */
int main(int argc, char **argv)
{
    gumbel_device *cpu = open_device((gumbel_isa)0, 1, 0);
    row_counts n = {}, by_grid = {};
    const int failed = run_problems(argc, argv, 120, 3000, [&](int i) {
        const bool good = passes(i, cpu, emulate_programs, &n);
        if (i / 8 % kGridEvery)
            return good;
        return passes(i, cpu, emulate_program_grid, &by_grid) && good;
    });
    printf("few tokens matter in %d rows tried from blocks, %d served; %d rows of clusters, %d "
           "served from a list; %d of cooperative launches, %d from a list\n",
           n.by_blocks, n.served_by_blocks, n.by_clusters, n.listed_by_clusters,
           by_grid.by_clusters, by_grid.listed_by_clusters);
    const bool leaves = n.by_blocks >= 10 && n.by_clusters >= 5 &&
                        (n.served_by_blocks < kFewServed * n.by_blocks ||
                         n.listed_by_clusters < kFewServed * n.by_clusters ||
                         by_grid.listed_by_clusters < kFewServed * by_grid.by_clusters);
    if (leaves)
        printf("lists serve too few rows\n");
    const bool idle = !n.entropies.check("programs", n.by_blocks >= 10 ? 2 : 0);
    gumbel_close(cpu);
    return failed != 0 || leaves || idle;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * How much longer does a draw from hidden states take if it also returns entropies and the two
 * likeliest tokens, compared with cuBLAS multiplying alone?
 *
 * usage: bench_statistics [--json FILE] [--commit TEXT]; script/bench-gpu --statistics builds and
 * runs it.
 *
 * "denoise" is a step of a diffusion language model: rows are greedy, the mask token is banned, and
 * the outputs are tokens, log-probabilities, the two likeliest tokens and entropies. "stored" is
 * that call by the kernels that store all logits, with which its outputs are compared before
 * anything is timed. Medians are of 30 replays of 5 calls. The ways take turns, except "stored",
 * which is timed after them: it uses little power, and the next way would run at a higher clock
 * rate.
 */
#include "bench/result_file.cuh"

#include <cuda_bf16.h>

static const char QUESTION[] =
    "how much longer does a draw from hidden states with statistics of each row take?";

constexpr int64_t VOCAB = 151936, HIDDEN = 4096, MAX_ROWS = 2048, VERIFIED_ROWS = 300;
constexpr int32_t BANNED = 151666, TOP = 2;
static const int64_t BATCHES[] = {1, 8, 64, 128, 256, MAX_ROWS};

enum way { GEMM, DRAW, DRAW_ENTROPY, DENOISE, STORED, WAYS };
static const char *const WAY_NAMES[WAYS] = {"gemm", "draw", "draw_entropy", "denoise",
                                            "denoise_stored"};

/* Outputs of the statistics, on the GPU. */
struct statistics {
    float *lse, *logprobs, *entropy, *top_logprobs;
    int32_t *tokens, *top_ids;
};

struct bench {
    gpu_rows rows;
    gumbel_device *storing; /* never uses the kernel with statistics */
    cublasHandle_t blas;
    __nv_bfloat16 *weight, *hidden, *product;
    float *greedy;            /* [1]: temperature 0 */
    gumbel_token_lists lists; /* the banned token, for each row */
    statistics out, stored_out;
};

static statistics make_statistics()
{
    return {allocate<float>(MAX_ROWS),   allocate<float>(MAX_ROWS),
            allocate<float>(MAX_ROWS),   allocate<float>(MAX_ROWS * TOP),
            allocate<int32_t>(MAX_ROWS), allocate<int32_t>(MAX_ROWS * TOP)};
}

static bench open_bench()
{
    bench b = {open_rows(MAX_ROWS, HIDDEN)};
    gumbel_device_options options = {};
    options.struct_size = sizeof options;
    options.device = "cuda:0";
    options.rungs = "-hopper-statistics";
    CHECKED(gumbel_open, &options, &b.storing, &error);
    b.blas = open_blas(b.rows.stream);
    b.weight = allocate<__nv_bfloat16>(VOCAB * HIDDEN);
    b.hidden = allocate<__nv_bfloat16>(MAX_ROWS * HIDDEN);
    b.product = allocate<__nv_bfloat16>(MAX_ROWS * VOCAB);
    make_random(b.hidden, MAX_ROWS * HIDDEN, 1, 1);
    make_random(b.weight, VOCAB * HIDDEN, 3, 2.5f / sqrtf(float(HIDDEN)));
    std::vector<int64_t> offsets(MAX_ROWS + 1);
    for (int64_t i = 0; i <= MAX_ROWS; i++)
        offsets[i] = i;
    b.lists.offsets = copy_in(offsets);
    b.lists.ids = copy_in(std::vector<int32_t>(MAX_ROWS, BANNED));
    b.greedy = copy_in(std::vector<float>{0.0f});
    b.out = make_statistics();
    b.stored_out = make_statistics();
    gumbel_limits limits = {};
    limits.struct_size = sizeof limits;
    limits.batch = MAX_ROWS;
    limits.vocab_size = VOCAB;
    limits.hidden_size = HIDDEN;
    limits.requests = 1;
    CHECKED(cudaFree, b.rows.workspace);
    CHECKED(gumbel_workspace_most, b.rows.gpu, &limits, &b.rows.workspace_bytes, &error);
    b.rows.workspace = allocate<char>(b.rows.workspace_bytes);
    return b;
}

static void queue_way(const bench &b, way which, int64_t batch)
{
    const gpu_rows &r = b.rows;
    const statistics &to = which == STORED ? b.stored_out : b.out;
    gumbel_head head = {};
    gumbel_transforms transforms = {};
    gumbel_sampling how = make_sampling(r.temperature, r.seed, r.position);
    gumbel_output output = make_output(to.tokens, to.logprobs);
    if (which == GEMM) {
        queue_gemm(b.blas, b.weight, b.hidden, b.product, batch, VOCAB, HIDDEN);
        return;
    }
    head.struct_size = sizeof head;
    head.hidden = {b.hidden, GUMBEL_BFLOAT16, batch, HIDDEN, 0};
    head.weight = {b.weight, GUMBEL_BFLOAT16, VOCAB, HIDDEN, 0};
    output.lse = to.lse;
    if (which != DRAW)
        output.entropy = to.entropy;
    if (which == DENOISE || which == STORED) {
        transforms.struct_size = sizeof transforms;
        transforms.banned = b.lists;
        how.transforms = &transforms;
        how.temperature = {b.greedy, GUMBEL_SAME};
        output.top_ids = to.top_ids;
        output.top_logprobs = to.top_logprobs;
        output.num_top = TOP;
    }
    CHECKED(gumbel_sample, which == STORED ? b.storing : r.gpu, r.stream, &head, &how, &output,
            r.workspace, r.workspace_bytes, &error);
}

/* Ends the program unless the outputs of the two kernels agree. Returns the largest difference of
 * two entropies. */
static float verify(const bench &b)
{
    const int64_t rows = VERIFIED_ROWS;
    queue_way(b, DENOISE, rows);
    queue_way(b, STORED, rows);
    CHECKED(cudaStreamSynchronize, b.rows.stream);
    if (copy_out(b.out.tokens, rows) != copy_out(b.stored_out.tokens, rows) ||
        copy_out(b.out.top_ids, rows * TOP) != copy_out(b.stored_out.top_ids, rows * TOP))
        die("tokens differ from those of stored logits");
    const auto lse = copy_out(b.out.lse, rows), stored_lse = copy_out(b.stored_out.lse, rows);
    const auto found = copy_out(b.out.entropy, rows), other = copy_out(b.stored_out.entropy, rows);
    float largest = 0.0f;
    for (int64_t i = 0; i < rows; i++) {
        largest = std::max(largest, fabsf(found[i] - other[i]));
        if (!(fabsf(found[i] - other[i]) < 1e-4f) || !(fabsf(lse[i] - stored_lse[i]) < 1e-4f))
            die("row %d: entropy %g, %g of stored logits; log-normaliser %g, %g", (int)i, found[i],
                other[i], lse[i], stored_lse[i]);
    }
    return largest;
}

struct point {
    int64_t batch;
    std::array<spread, WAYS> times; /* microseconds of a call */
};

static point measure(const bench &b, int64_t batch)
{
    const captured gemm(b.rows.stream, [&] { queue_way(b, GEMM, batch); });
    const captured draw(b.rows.stream, [&] { queue_way(b, DRAW, batch); });
    const captured entropy(b.rows.stream, [&] { queue_way(b, DRAW_ENTROPY, batch); });
    const captured denoise(b.rows.stream, [&] { queue_way(b, DENOISE, batch); });
    const captured stored(b.rows.stream, [&] { queue_way(b, STORED, batch); });
    const captured *const ways[] = {&gemm, &draw, &entropy, &denoise}, *const last[] = {&stored};
    const auto times = time_in_turns(b.rows.stream, ways);
    return {batch, {times[0], times[1], times[2], times[3], time_in_turns(b.rows.stream, last)[0]}};
}

static void write_json(const char *path, const char *commit, const std::vector<point> &points,
                       float difference)
{
    FILE *file = begin_results(path, QUESTION, commit);
    fprintf(file, "  \"vocab\": %lld,\n  \"hidden\": %lld,\n", (long long)VOCAB, (long long)HIDDEN);
    fprintf(file, "  \"entropy_difference\": %.3g,\n  \"statistics\": [", difference);
    for (size_t i = 0; i < points.size(); i++) {
        fprintf(file, "%s\n    {\"batch\": %lld", i ? "," : "", (long long)points[i].batch);
        for (int which = 0; which < WAYS; which++) {
            fprintf(file, ", ");
            write_spread(file, WAY_NAMES[which], points[i].times[which]);
        }
        fprintf(file, "}");
    }
    fprintf(file, "\n  ]\n}\n");
    close_results(file, path);
}

int main(int argc, char **argv)
{
    const bench_options options = read_options(argc, argv);
    const bench b = open_bench();
    const float difference = verify(b);
    std::vector<point> points;
    printf("question: %s\nentropies differ by at most %.2g from those of stored logits\n", QUESTION,
           difference);
    printf("us of a call, V = %lld, D = %lld, and the ratio to cuBLAS\n", (long long)VOCAB,
           (long long)HIDDEN);
    printf("    B     gemm            draw         entropy         denoise          stored\n");
    for (int64_t batch : BATCHES) {
        points.push_back(measure(b, batch));
        const std::array<spread, WAYS> &times = points.back().times;
        printf("%5lld %8.1f", (long long)batch, times[GEMM].median);
        for (int which = DRAW; which < WAYS; which++)
            printf(" %8.1f (%.3f)", times[which].median, times[which].median / times[GEMM].median);
        printf("\n");
        fflush(stdout);
    }
    if (options.json)
        write_json(options.json, options.commit, points, difference);
    return 0;
}

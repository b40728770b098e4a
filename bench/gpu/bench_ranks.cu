/* SPDX-License-Identifier: Apache-2.0
 *
 * How much longer does a draw over ranks take than the draw of one rank's shard?
 *
 * usage: bench_ranks [RANKS] [--parts] [--one] [--tokens] [--json FILE] [--commit TEXT];
 *        script/bench-gpu --ranks builds it. --parts: times of the steps of a plain draw by NCCL,
 *        and of the local top-64 candidates for k, p. --one: D = 4096 alone. --tokens: draws,
 *        the shard's included, return tokens alone; by default log-probabilities, too.
 *
 * One process a GPU, V = 151936 split evenly, D = 4096; and V = 128256, D = 8192. The ways take
 * turns at each replay, each with 5 calls in a captured graph: the fused draw of the shard alone;
 * the draw over ranks, by NCCL's gathers and by peer memory, plain and with k = 50, p = .95; and
 * cuBLAS on the shard followed by an NCCL gather of its logits, without a draw. All ranks replay at
 * once; times are those of rank 0.
 */
#include <cstring>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cuda_bf16.h>

#include "bench/cuda_measure.cuh"
#include <gumbel/dist.h>

static const char QUESTION[] = "what does a draw over ranks cost beyond that of one shard?";
constexpr int64_t BATCH = 256;
struct shape {
    int64_t vocab, hidden;
};
constexpr shape SHAPES[] = {{151936, 4096}, {128256, 8192}};
constexpr int RANKS_MAX = 8;

struct board {
    char ids[8][GUMBEL_NCCL_ID_BYTES];
    volatile int ids_written;
};

struct ranks_bench : gpu_rows {
    cublasHandle_t blas;
    __nv_bfloat16 *weight, *hidden, *product, *gathered;
    gumbel_transport transport; /* of the first group */
    gumbel_group *nccl, *peers;
    shape of;
    int64_t first, rows;
    int32_t *top_k;
    float *top_p;
};

static gumbel_group *open_group(ranks_bench &b, board *shared, int which, int rank, int ranks,
                                gumbel_peer_memory peers)
{
    gumbel_group *group;
    gumbel_transport transport;
    if (rank == 0) {
        CHECKED(gumbel_nccl_id, shared->ids[which], &error);
        __sync_synchronize();
        shared->ids_written = which + 1;
    }
    while (shared->ids_written <= which)
        usleep(1000);
    CHECKED(gumbel_nccl_transport, NULL, shared->ids[which], rank, ranks, 0, &transport, &error);
    gumbel_group_options options = {};
    options.struct_size = sizeof options;
    options.first_token = b.first;
    options.rows = b.rows;
    options.peer_memory = peers;
    CHECKED(gumbel_group_open, &transport, b.gpu, &options, &group, &error);
    if (peers == GUMBEL_PEERS_OFF)
        b.transport = transport;
    return group;
}

static int tokens_alone;

static ranks_bench open_bench(board *shared, int turn, int rank, int ranks)
{
    const shape of = SHAPES[turn];
    ranks_bench b = {open_rows(BATCH, of.hidden)};
    int64_t blocks = of.vocab / 64;
    b.of = of;
    b.first = blocks * rank / ranks * 64;
    b.rows = blocks * (rank + 1) / ranks * 64 - b.first;
    b.blas = open_blas(b.stream);
    b.weight = allocate<__nv_bfloat16>(size_t(b.rows) * of.hidden);
    b.hidden = allocate<__nv_bfloat16>(BATCH * of.hidden);
    b.product = allocate<__nv_bfloat16>(size_t(BATCH) * (of.vocab / ranks + 64));
    b.gathered = allocate<__nv_bfloat16>(size_t(BATCH) * (of.vocab / ranks + 64) * ranks);
    make_random(b.hidden, BATCH * of.hidden, 1, 1);
    make_random(b.weight, size_t(b.rows) * of.hidden, 3 + rank, 2.5f / sqrtf(float(of.hidden)));
    b.top_k = allocate<int32_t>(1);
    b.top_p = allocate<float>(1);
    const int32_t k = 50;
    const float p = .95f;
    CHECKED(cudaMemcpy, b.top_k, &k, sizeof k, cudaMemcpyHostToDevice);
    CHECKED(cudaMemcpy, b.top_p, &p, sizeof p, cudaMemcpyHostToDevice);
    b.logprobs = tokens_alone ? NULL : b.logprobs;
    b.nccl = open_group(b, shared, 2 * turn, rank, ranks, GUMBEL_PEERS_OFF);
    b.peers = open_group(b, shared, 2 * turn + 1, rank, ranks, GUMBEL_PEERS_REQUIRE);
    return b;
}

static gumbel_head head_of(const ranks_bench &b, int64_t B)
{
    gumbel_head head = {};
    head.struct_size = sizeof head;
    head.hidden = {b.hidden, GUMBEL_BFLOAT16, B, b.of.hidden, 0};
    head.weight = {b.weight, GUMBEL_BFLOAT16, b.rows, b.of.hidden, 0};
    head.first_token = b.first;
    return head;
}

/* Queues a draw over ranks, or computes its workspace size if it has no workspace yet. */
static void draw_ranks(const ranks_bench &b, gumbel_group *group, int64_t B, int cut,
                       void *workspace, size_t *bytes)
{
    gumbel_head head = head_of(b, B);
    gumbel_sampling sampling = make_sampling(b.temperature, b.seed, b.position);
    gumbel_output output = make_output(b.tokens, b.logprobs);
    gumbel_truncation truncation = {};
    truncation.struct_size = sizeof truncation;
    truncation.top_k = {b.top_k, GUMBEL_SAME};
    truncation.top_p = {b.top_p, GUMBEL_SAME};
    if (cut)
        sampling.truncation = &truncation;
    if (workspace)
        CHECKED(gumbel_group_sample, group, b.stream, &head, &sampling, &output, workspace, *bytes,
                &error);
    else
        CHECKED(gumbel_group_workspace_size, group, &head, NULL, &sampling, &output, bytes, &error);
}

static void gather_logits(const ranks_bench &b, int64_t B)
{
    char why[GUMBEL_WHY_BYTES] = "";
    queue_gemm(b.blas, b.weight, b.hidden, b.product, B, b.rows, b.of.hidden);
    size_t bytes = size_t(B) * size_t(b.of.vocab / 64 / b.transport.ranks * 64) * 2;
    if (b.transport.stream_all_gather(b.transport.context, b.stream, b.product, b.gathered, bytes,
                                      0, why)) {
        fprintf(stderr, "%s\n", why);
        exit(1);
    }
}

/* Measures all ways for one batch size. */
static void measure_draws(const ranks_bench &b, int64_t B, int rank, FILE *file,
                          const char **separator)
{
    struct way {
        const char *name;
        gumbel_group *group;
        int cut;
        size_t bytes;
        char *workspace;
    } ways[] = {{"nccl", b.nccl, 0},
                {"peers", b.peers, 0},
                {"nccl_k50_p95", b.nccl, 1},
                {"peers_k50_p95", b.peers, 1}};
    for (way &w : ways) {
        draw_ranks(b, w.group, B, w.cut, NULL, &w.bytes);
        w.workspace = allocate<char>(w.bytes);
    }
    const captured shard(b.stream, [&] { queue_draw(b, head_of(b, B), b.logprobs); });
    const captured logits(b.stream, [&] { gather_logits(b, B); });
    auto queue = [&](way &w) { draw_ranks(b, w.group, B, w.cut, w.workspace, &w.bytes); };
    const captured nccl(b.stream, [&] { queue(ways[0]); });
    const captured peers(b.stream, [&] { queue(ways[1]); });
    const captured nccl_cut(b.stream, [&] { queue(ways[2]); });
    const captured peers_cut(b.stream, [&] { queue(ways[3]); });
    auto t = time_in_turns(b.stream, {&shard, &logits, &nccl, &peers, &nccl_cut, &peers_cut});
    if (rank == 0)
        printf("V %lld D %lld B %3lld  shard %6.1f (%.1f..%.1f)  product and gather of logits "
               "%6.1f\n",
               (long long)b.of.vocab, (long long)b.of.hidden, (long long)B, t[0].median, t[0].p10,
               t[0].p90, t[1].median);
    if (file)
        fprintf(file,
                "%s{\"V\": %lld, \"D\": %lld, \"B\": %lld, \"shard_us\": %.2f, "
                "\"gather_us\": %.2f",
                *separator, (long long)b.of.vocab, (long long)b.of.hidden, (long long)B,
                t[0].median, t[1].median);
    *separator = ",\n";
    for (int i = 0; i < 4; i++) {
        if (rank == 0)
            printf("  %-14s %6.1f (%.1f..%.1f)  +%.1f\n", ways[i].name, t[2 + i].median,
                   t[2 + i].p10, t[2 + i].p90, t[2 + i].median - t[0].median);
        if (file)
            fprintf(file, ", \"%s_us\": %.2f", ways[i].name, t[2 + i].median);
        CHECKED(cudaFree, ways[i].workspace);
    }
    if (file)
        fprintf(file, "}");
    fflush(stdout); /* the rank's process ends by _exit(), which does not flush */
}

/* Times of the steps of a plain draw by NCCL: the shard's summaries, their gather, the finish. */
static void measure_parts(const ranks_bench &b, int64_t B, int rank)
{
    size_t bytes;
    char why[GUMBEL_WHY_BYTES] = "";
    gumbel_head head = head_of(b, B);
    gumbel_sampling sampling = make_sampling(b.temperature, b.seed, b.position);
    gumbel_output output = make_output(b.tokens, b.logprobs);
    CHECKED(gumbel_workspace_size, b.gpu, &head, NULL, &sampling, NULL, &bytes, &error);
    char *workspace = allocate<char>(bytes);
    gumbel_summary *own = allocate<gumbel_summary>(B),
                   *all = allocate<gumbel_summary>(B * RANKS_MAX);
    auto part = [&] {
        CHECKED(gumbel_partial, b.gpu, b.stream, &head, &sampling, own, workspace, bytes, &error);
    };
    auto gather = [&] {
        if (b.transport.stream_all_gather(b.transport.context, b.stream, own, all,
                                          size_t(B) * sizeof *own, 0, why)) {
            fprintf(stderr, "%s\n", why);
            exit(1);
        }
    };
    auto finish = [&] {
        CHECKED(gumbel_finish, b.gpu, b.stream, all, b.transport.ranks, B, 1, &output, &error);
    };
    const captured whole(b.stream, [&] { queue_draw(b, head, b.logprobs); });
    const captured parts(b.stream, part);
    const captured gathers(b.stream, gather);
    const captured ends(b.stream, [&] { gather(), finish(); });
    const captured gathered(b.stream, [&] { part(), gather(); });
    const captured finished(b.stream, [&] { part(), finish(); });
    const captured draws(b.stream, [&] { part(), gather(), finish(); });
    auto t =
        time_in_turns(b.stream, {&whole, &parts, &gathers, &ends, &gathered, &finished, &draws});
    if (rank == 0)
        printf("B %3lld  draw %6.1f  part %6.1f (%.1f..%.1f)  gather %5.1f  gather+end %5.1f  "
               "part+gather %+5.1f  part+end %+5.1f  all three %+5.1f (%.1f..%.1f)\n",
               (long long)B, t[0].median, t[1].median, t[1].p10, t[1].p90, t[2].median, t[3].median,
               t[4].median - t[1].median, t[5].median - t[1].median, t[6].median - t[1].median,
               t[6].p10 - t[1].median, t[6].p90 - t[1].median);
    CHECKED(cudaFree, workspace);
    CHECKED(cudaFree, own);
    CHECKED(cudaFree, all);
    fflush(stdout);
}

/* Measures a rank's top-64 candidates for k = 50, p = .95: from stored logits, as ranks compute
 * them, and by a request with the product; and a draw of 0 rows. */
static void measure_lists(const ranks_bench &b, int64_t B, int rank)
{
    const float one = 1, zero = 0;
    const int32_t k = 64, none = 0;
    float *logits = allocate<float>(size_t(B) * b.of.vocab), *values = allocate<float>(B * k);
    int32_t *most = allocate<int32_t>(1), *live = allocate<int32_t>(1),
            *ids = allocate<int32_t>(B * k);
    CHECKED(cudaMemcpy, most, &k, sizeof k, cudaMemcpyHostToDevice);
    CHECKED(cudaMemcpy, live, &none, sizeof none, cudaMemcpyHostToDevice);
    for (int64_t at = 0; at + b.rows <= b.of.vocab; at += b.rows)
        CHECKED(cublasGemmEx, b.blas, CUBLAS_OP_T, CUBLAS_OP_N, int(b.rows), int(B),
                int(b.of.hidden), &one, b.weight, CUDA_R_16BF, int(b.of.hidden), b.hidden,
                CUDA_R_16BF, int(b.of.hidden), &zero, logits + B * at, CUDA_R_32F, int(b.rows),
                CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    gumbel_head head = head_of(b, B);
    gumbel_logits shard = {}, whole = {};
    shard.struct_size = whole.struct_size = sizeof shard;
    shard.logits = {logits, GUMBEL_FLOAT32, B, b.rows, 0};
    whole.logits = {logits, GUMBEL_FLOAT32, B, b.of.vocab, 0};
    gumbel_truncation lists = {}, cuts = {};
    lists.struct_size = cuts.struct_size = sizeof lists;
    lists.top_k = {most, GUMBEL_SAME};
    cuts.top_k = {b.top_k, GUMBEL_SAME};
    cuts.top_p = {b.top_p, GUMBEL_SAME};
    gumbel_sampling listing = make_sampling(b.temperature, b.seed, b.position), empty = listing;
    gumbel_output output = make_output(b.tokens, NULL), drawn = make_output(b.tokens, b.logprobs);
    listing.truncation = &lists;
    empty.truncation = &cuts;
    empty.live_rows = live;
    output.num_top = k;
    output.top_ids = ids;
    output.top_logits = values;
    size_t most_bytes = 0, bytes;
    auto count = [&](const gumbel_head *h, const gumbel_logits *l, const gumbel_sampling *s,
                     const gumbel_output *o) {
        CHECKED(gumbel_workspace_size, b.gpu, h, l, s, o, &bytes, &error);
        most_bytes = std::max(most_bytes, bytes);
    };
    count(&head, NULL, &listing, &output);
    count(NULL, &shard, &listing, &output);
    count(NULL, &whole, &empty, &drawn);
    char *workspace = allocate<char>(most_bytes);
    const captured draws(b.stream, [&] { queue_draw(b, head, b.logprobs); });
    const captured multiplied(b.stream, [&] {
        CHECKED(gumbel_sample, b.gpu, b.stream, &head, &listing, &output, workspace, most_bytes,
                &error);
    });
    const captured stored(b.stream, [&] {
        CHECKED(gumbel_sample_logits, b.gpu, b.stream, &shard, &listing, &output, workspace,
                most_bytes, &error);
    });
    const captured nothing(b.stream, [&] {
        CHECKED(gumbel_sample_logits, b.gpu, b.stream, &whole, &empty, &drawn, workspace,
                most_bytes, &error);
    });
    auto t = time_in_turns(b.stream, {&draws, &multiplied, &stored, &nothing});
    if (rank == 0)
        printf("       lists: with the product %+5.1f, from logits %5.1f; a draw of no row %5.1f\n",
               t[1].median - t[0].median, t[2].median, t[3].median);
    for (void *used : {(void *)logits, (void *)values, (void *)most, (void *)live, (void *)ids,
                       (void *)workspace})
        CHECKED(cudaFree, used);
    fflush(stdout);
}

static int run_rank(board *shared, int rank, int ranks, int parts, int shapes, const char *json,
                    const char *commit)
{
    char which[16];
    snprintf(which, sizeof which, "%d", rank);
    setenv("CUDA_VISIBLE_DEVICES", which, 1);
    FILE *file = rank == 0 && json ? fopen(json, "w") : NULL;
    if (rank == 0)
        printf("question: %s\ncommit: %s, %d ranks, medians in us (p10..p90)\n", QUESTION, commit,
               ranks);
    const char *separator = "";
    cudaDeviceProp gpu;
    CHECKED(cudaGetDeviceProperties, &gpu, 0);
    for (int turn = 0; turn < shapes; turn++) {
        ranks_bench b = open_bench(shared, turn, rank, ranks);
        if (file && turn == 0)
            fprintf(file, "{\"commit\": \"%s\", \"machine\": \"%s\", \"ranks\": %d, \"rows\": [\n",
                    commit, gpu.name, ranks);
        for (int64_t B : {1, 8, 16, 64, 256})
            if (parts) {
                measure_parts(b, B, rank);
                measure_lists(b, B, rank);
            } else {
                measure_draws(b, B, rank, file, &separator);
            }
        gumbel_group_close(b.nccl);
        gumbel_group_close(b.peers);
        CHECKED(cudaFree, b.weight);
    }
    if (file) {
        fprintf(file, "\n]}\n");
        fclose(file);
    }
    return 0;
}

int main(int argc, char **argv)
{
    int ranks = 2, parts = 0, shapes = 2, result = 0;
    const char *json = NULL, *commit = "unknown";
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
            json = argv[++i];
        else if (strcmp(argv[i], "--commit") == 0 && i + 1 < argc)
            commit = argv[++i];
        else if (strcmp(argv[i], "--parts") == 0)
            parts = shapes = 1;
        else if (strcmp(argv[i], "--one") == 0)
            shapes = 1;
        else if (strcmp(argv[i], "--tokens") == 0)
            tokens_alone = 1;
        else
            ranks = atoi(argv[i]);
    void *memory =
        mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ranks < 1 || ranks > RANKS_MAX || memory == MAP_FAILED)
        return 2;
    for (int rank = 0; rank < ranks; rank++)
        if (fork() == 0)
            _exit(run_rank(static_cast<board *>(memory), rank, ranks, parts, shapes, json, commit));
    for (int status; wait(&status) > 0;)
        result |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    return result;
}

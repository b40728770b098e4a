/* SPDX-License-Identifier: Apache-2.0
 *
 * What does a draw over ranks cost beyond the draw of one rank's shard?
 *
 * usage: bench_ranks [RANKS] [--json FILE] [--commit TEXT]; script/bench-gpu --ranks builds it.
 *
 * A process a GPU, V = 151936 split evenly, D = 4096. Three ways take turns, replay by replay, each
 * of 5 calls in a captured graph: the fused draw of the shard alone; the draw over ranks, by one
 * NCCL gather of 48 bytes a row; and cuBLAS on the shard with an NCCL gather of its logits, behind
 * which nothing is drawn. All ranks replay at once; times are those of rank 0.
 */
#include <cstring>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cuda_bf16.h>

#include "bench/cuda_measure.cuh"
#include <gumbel/dist.h>

static const char QUESTION[] = "what does a draw over ranks cost beyond that of one shard?";
constexpr int64_t VOCAB = 151936, HIDDEN = 4096, BATCH = 256;
constexpr int RANKS_MOST = 8;

struct board {
    char id[GUMBEL_NCCL_ID_BYTES];
    volatile int made;
};

struct ranks_bench : gpu_rows {
    cublasHandle_t blas;
    __nv_bfloat16 *weight, *hidden, *product, *gathered;
    gumbel_transport transport;
    gumbel_group *group;
    int64_t first, rows;
};

static ranks_bench open_bench(board *shared, int rank, int ranks)
{
    ranks_bench b = {open_rows(BATCH, HIDDEN)};
    int64_t blocks = VOCAB / 64;
    b.first = blocks * rank / ranks * 64;
    b.rows = blocks * (rank + 1) / ranks * 64 - b.first;
    CHECKED(cublasCreate, &b.blas);
    CHECKED(cublasSetStream, b.blas, b.stream);
    CHECKED(cublasSetWorkspace, b.blas, make<char>(64 << 20), 64 << 20);
    b.weight = make<__nv_bfloat16>(size_t(b.rows) * HIDDEN);
    b.hidden = make<__nv_bfloat16>(BATCH * HIDDEN);
    b.product = make<__nv_bfloat16>(size_t(BATCH) * (VOCAB / ranks + 64));
    b.gathered = make<__nv_bfloat16>(size_t(BATCH) * (VOCAB / ranks + 64) * ranks);
    make_random(b.hidden, BATCH * HIDDEN, 1, 1);
    make_random(b.weight, size_t(b.rows) * HIDDEN, 3 + rank, 2.5f / sqrtf(float(HIDDEN)));
    if (rank == 0) {
        CHECKED(gumbel_nccl_id, shared->id, &error);
        __sync_synchronize();
        shared->made = 1;
    }
    while (!shared->made)
        usleep(1000);
    CHECKED(gumbel_nccl_transport, NULL, shared->id, rank, ranks, 0, &b.transport, &error);
    gumbel_group_options options = {};
    options.struct_size = sizeof options;
    options.first_token = b.first;
    options.rows = b.rows;
    CHECKED(gumbel_group_open, &b.transport, b.gpu, &options, &b.group, &error);
    return b;
}

static gumbel_head head_of(const ranks_bench &b, int64_t B)
{
    gumbel_head head = {};
    head.struct_size = sizeof head;
    head.hidden = {b.hidden, GUMBEL_BFLOAT16, B, HIDDEN, 0};
    head.weight = {b.weight, GUMBEL_BFLOAT16, b.rows, HIDDEN, 0};
    head.first_token = b.first;
    return head;
}

static void draw_ranks(const ranks_bench &b, int64_t B, void *workspace, size_t bytes)
{
    gumbel_head head = head_of(b, B);
    gumbel_sampling sampling = make_sampling(b.temperature, b.seed, b.position);
    gumbel_output output = make_output(b.tokens, b.logprobs);
    CHECKED(gumbel_group_sample, b.group, b.stream, &head, &sampling, &output, workspace, bytes,
            &error);
}

static size_t ranks_bytes(const ranks_bench &b, int64_t B)
{
    size_t bytes;
    gumbel_head head = head_of(b, B);
    gumbel_sampling sampling = make_sampling(b.temperature, b.seed, b.position);
    gumbel_output output = make_output(b.tokens, b.logprobs);
    CHECKED(gumbel_group_workspace_size, b.group, &head, NULL, &sampling, &output, &bytes, &error);
    return bytes;
}

static void gather_logits(const ranks_bench &b, int64_t B)
{
    const float one = 1, zero = 0;
    char why[GUMBEL_WHY_BYTES] = "";
    CHECKED(cublasGemmEx, b.blas, CUBLAS_OP_T, CUBLAS_OP_N, int(b.rows), int(B), int(HIDDEN), &one,
            b.weight, CUDA_R_16BF, int(HIDDEN), b.hidden, CUDA_R_16BF, int(HIDDEN), &zero,
            b.product, CUDA_R_16BF, int(b.rows), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    size_t bytes = size_t(B) * size_t(VOCAB / 64 / b.transport.ranks * 64) * 2;
    if (b.transport.queue(b.transport.context, b.stream, b.product, b.gathered, bytes, 0, why)) {
        fprintf(stderr, "%s\n", why);
        exit(1);
    }
}

static int run_rank(board *shared, int rank, int ranks, const char *json, const char *commit)
{
    char which[16];
    snprintf(which, sizeof which, "%d", rank);
    setenv("CUDA_VISIBLE_DEVICES", which, 1);
    ranks_bench b = open_bench(shared, rank, ranks);
    FILE *file = rank == 0 && json ? fopen(json, "w") : NULL;
    if (rank == 0)
        printf("question: %s\ncommit: %s, %d ranks, V %lld D %lld, medians in us (p10..p90)\n",
               QUESTION, commit, ranks, (long long)VOCAB, (long long)HIDDEN);
    if (file)
        fprintf(file, "{\"commit\": \"%s\", \"ranks\": %d, \"rows\": [", commit, ranks);
    const char *separator = "";
    for (int64_t B : {1, 64, 256}) {
        size_t bytes = ranks_bytes(b, B);
        char *workspace = make<char>(bytes);
        const captured shard(b.stream, [&] { draw(b, head_of(b, B), b.logprobs); });
        const captured over(b.stream, [&] { draw_ranks(b, B, workspace, bytes); });
        const captured logits(b.stream, [&] { gather_logits(b, B); });
        auto t = time_in_turns(b.stream, {&shard, &over, &logits});
        if (rank == 0)
            printf("B %3lld  shard %6.1f (%.1f..%.1f)  ranks %6.1f (%.1f..%.1f) +%.1f  "
                   "product and gather of logits %6.1f (%.1f..%.1f)\n",
                   (long long)B, t[0].median, t[0].p10, t[0].p90, t[1].median, t[1].p10, t[1].p90,
                   t[1].median - t[0].median, t[2].median, t[2].p10, t[2].p90);
        if (file)
            fprintf(file,
                    "%s{\"B\": %lld, \"shard_us\": %.2f, \"ranks_us\": %.2f, \"gather_us\": %.2f}",
                    separator, (long long)B, t[0].median, t[1].median, t[2].median);
        separator = ", ";
        CHECKED(cudaFree, workspace);
    }
    if (file) {
        fprintf(file, "]}\n");
        fclose(file);
    }
    gumbel_group_close(b.group);
    return 0;
}

int main(int argc, char **argv)
{
    int ranks = 2, result = 0;
    const char *json = NULL, *commit = "unknown";
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
            json = argv[++i];
        else if (strcmp(argv[i], "--commit") == 0 && i + 1 < argc)
            commit = argv[++i];
        else
            ranks = atoi(argv[i]);
    void *memory =
        mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ranks < 1 || ranks > RANKS_MOST || memory == MAP_FAILED)
        return 2;
    for (int rank = 0; rank < ranks; rank++)
        if (fork() == 0)
            _exit(run_rank(static_cast<board *>(memory), rank, ranks, json, commit));
    for (int status; wait(&status) > 0;)
        result |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    return result;
}

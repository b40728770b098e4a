/* SPDX-License-Identifier: Apache-2.0
 *
 * A vocabulary split over the GPUs of one machine: a process a GPU, one NCCL gather of 48 bytes a
 * row, and every rank has the token on its GPU.
 *
 *     ranks_nccl [GPUs]
 */
#define _GNU_SOURCE
#define GUMBEL_UNSTABLE 1
#include <gumbel/dist.h>

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 4, VOCAB = 32000, WIDTH = 256, STEPS = 3 };

/* Memory of all processes: the id of their communicator. */
typedef struct board {
    char id[GUMBEL_NCCL_ID_BYTES];
    volatile int id_is_set;
} board;

static void require(gumbel_status status, const gumbel_error *error)
{
    if (status != GUMBEL_OK) {
        fprintf(stderr, "%s: %s: %s\n", gumbel_status_string(status), error->field, error->message);
        exit(1);
    }
}

static void *copy_to_gpu(const void *from, size_t bytes)
{
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes) != cudaSuccess ||
        (from && cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice) != cudaSuccess)) {
        fprintf(stderr, "the GPU has no %zu bytes\n", bytes);
        exit(1);
    }
    return memory;
}

/* `count` numbers from the `first` of a fixed list, on the GPU. */
static float *make_numbers(long first, long count)
{
    float *values = malloc((size_t)count * sizeof *values);
    for (long i = 0; i < count; i++)
        values[i] = (float)((unsigned long)(first + i) * 2654435761u % 1000003u) / 500001.5f - 1.0f;
    float *copy = copy_to_gpu(values, (size_t)count * sizeof *values);
    free(values);
    return copy;
}

static int run_rank(board *shared, int rank, int ranks)
{
    gumbel_error error;
    gumbel_device *device;
    gumbel_transport transport;
    gumbel_group *group;
    char name[16];
    snprintf(name, sizeof name, "cuda:%d", rank);
    cudaSetDevice(rank);
    const gumbel_device_options which = {.struct_size = sizeof which, .device = name};
    require(gumbel_open(&which, &device, &error), &error);
    if (rank == 0) {
        require(gumbel_nccl_id(shared->id, &error), &error);
        shared->id_is_set = 1;
    }
    while (!shared->id_is_set)
        usleep(1000);
    require(gumbel_nccl_transport(NULL, shared->id, rank, ranks, rank, &transport, &error), &error);

    long blocks = VOCAB / 64, first = blocks * rank / ranks * 64;
    long rows = blocks * (rank + 1) / ranks * 64 - first;
    const gumbel_group_options shard = {
        .struct_size = sizeof shard, .first_token = first, .rows = rows, .timeout_ms = 10000};
    require(gumbel_group_open(&transport, device, &shard, &group, &error), &error);

    const uint64_t seed = 7;
    uint64_t *position = copy_to_gpu(NULL, sizeof *position);
    int32_t *tokens = copy_to_gpu(NULL, ROWS * sizeof *tokens), drawn[ROWS];
    gumbel_head head = {
        .struct_size = sizeof head,
        .hidden = {make_numbers(0, ROWS * WIDTH), GUMBEL_FLOAT32, ROWS, WIDTH, 0, {0, 0}},
        .weight =
            {make_numbers(first * WIDTH, rows * WIDTH), GUMBEL_FLOAT32, rows, WIDTH, 0, {0, 0}},
        .first_token = first};
    gumbel_sampling how = {.struct_size = sizeof how,
                           .seed = {copy_to_gpu(&seed, sizeof seed), GUMBEL_SAME},
                           .position = {position, GUMBEL_SAME}};
    gumbel_output out = {.struct_size = sizeof out, .tokens = tokens};
    size_t bytes;
    require(gumbel_group_workspace_size(group, &head, NULL, &how, &out, &bytes, &error), &error);
    void *workspace = copy_to_gpu(NULL, bytes + 1);

    for (uint64_t step = 0; step < STEPS; step++) {
        cudaMemcpy(position, &step, sizeof step, cudaMemcpyHostToDevice);
        require(gumbel_group_sample(group, NULL, &head, &how, &out, workspace, bytes, &error),
                &error);
        require(gumbel_group_wait(group, NULL, &error), &error); /* detects a lost rank */
        cudaMemcpy(drawn, tokens, sizeof drawn, cudaMemcpyDeviceToHost);
        for (int b = 0; b < ROWS && rank == 0; b++)
            printf("step %d row %d: token %d\n", (int)step, b, (int)drawn[b]);
    }
    gumbel_group_close(group);
    gumbel_close(device);
    return 0;
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 ? atoi(argv[1]) : 2, failed = 0;
    void *memory =
        mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    for (int rank = 0; rank < ranks; rank++)
        if (fork() == 0) /* before anything of CUDA */
            exit(run_rank(memory, rank, ranks));
    for (int status; wait(&status) > 0;)
        failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    return failed;
}

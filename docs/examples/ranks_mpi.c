/* SPDX-License-Identifier: Apache-2.0
 *
 * A vocabulary split over ranks: each rank holds some rows of the head, and all get the tokens that
 * one process with the whole head would draw.
 *
 *     mpirun -n 4 ranks_mpi
 */
#define GUMBEL_UNSTABLE 1
#include <gumbel/dist_mpi.h>

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 3, VOCAB = 32000, WIDTH = 64, STEPS = 4 };

static void require(gumbel_status status, const gumbel_error *error)
{
    if (status != GUMBEL_OK) {
        fprintf(stderr, "%s: %s: %s\n", gumbel_status_string(status), error->field, error->message);
        exit(1);
    }
}

/* Stands for weights and hidden states: the same numbers on every rank. */
static float number(long i)
{
    unsigned long x = (unsigned long)i * 2654435761u % 1000003u;
    return (float)x / 500001.5f - 1.0f;
}

int main(int argc, char **argv)
{
    gumbel_error error;
    gumbel_device *device;
    gumbel_transport transport;
    gumbel_group *group;
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    /* Whole blocks of 64 tokens a rank, so that summaries alone travel. */
    long blocks = VOCAB / 64, first = blocks * rank / ranks * 64;
    long rows = blocks * (rank + 1) / ranks * 64 - first;
    float *weight = malloc(sizeof *weight * (size_t)(rows * WIDTH + 1));
    for (long i = 0; i < rows * WIDTH; i++)
        weight[i] = number(first * WIDTH + i);

    const gumbel_device_options threads = {.struct_size = sizeof threads, .threads = 1};
    const gumbel_group_options shard = {
        .struct_size = sizeof shard, .first_token = first, .rows = rows, .timeout_ms = 10000};
    require(gumbel_open(&threads, &device, &error), &error);
    require(gumbel_mpi_transport(MPI_COMM_WORLD, &transport, &error), &error);
    require(gumbel_group_open(&transport, device, &shard, &group, &error), &error);

    float hidden[ROWS * WIDTH], logprobs[ROWS];
    int32_t tokens[ROWS];
    const uint64_t seed = 7;
    const int32_t k = 50;
    const float p = 0.95f;
    uint64_t position;
    const gumbel_truncation cut = {
        .struct_size = sizeof cut, .top_k = {&k, GUMBEL_SAME}, .top_p = {&p, GUMBEL_SAME}};
    gumbel_head head = {.struct_size = sizeof head,
                        .hidden = {hidden, GUMBEL_FLOAT32, ROWS, WIDTH, 0, {0, 0}},
                        .weight = {weight, GUMBEL_FLOAT32, rows, WIDTH, 0, {0, 0}},
                        .first_token = first};
    gumbel_sampling how = {.struct_size = sizeof how,
                           .seed = {&seed, GUMBEL_SAME},
                           .position = {&position, GUMBEL_SAME},
                           .truncation = &cut};
    gumbel_output out = {.struct_size = sizeof out, .tokens = tokens, .logprobs = logprobs};
    size_t bytes;
    require(gumbel_group_workspace_size(group, &head, NULL, &how, &out, &bytes, &error), &error);
    void *workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);

    for (position = 0; position < STEPS; position++) {
        for (long i = 0; i < ROWS * WIDTH; i++)
            hidden[i] = number(i + 1000 * (long)position);
        require(gumbel_group_sample(group, NULL, &head, &how, &out, workspace, bytes, &error),
                &error);
        for (int b = 0; b < ROWS && rank == 0; b++)
            printf("step %d row %d: token %d, log-probability %.4f\n", (int)position, b,
                   (int)tokens[b], (double)logprobs[b]);
    }
    gumbel_traffic sent = {.struct_size = sizeof sent};
    require(gumbel_group_traffic(group, &sent), &error);
    if (rank == 0)
        printf("%lld exchanges of %lld calls, %lld bytes sent by each rank, %lld rows gathered\n",
               (long long)sent.exchanges, (long long)sent.calls, (long long)sent.bytes,
               (long long)sent.rows_by_rows);

    gumbel_group_close(group);
    gumbel_close(device);
    free(workspace);
    free(weight);
    MPI_Finalize();
    return 0;
}

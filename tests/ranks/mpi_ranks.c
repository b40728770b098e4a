/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: mpirun -n N mpi_ranks agree ROUNDS | hang | kill | differ
 *
 * Ranks that are processes. Their draws equal the draw of each rank from the whole; if one rank
 * stops, is killed or passes different parameters, the others return an error. Every rank prints a
 * line. Exit code 0: success.
 */
#define _POSIX_C_SOURCE 200809L
#include "shards.h"

#include <gumbel/dist_mpi.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TIMEOUT = 2000 };

static gumbel_group *open_group(gumbel_device *device, const shard_split *split, int rank,
                                int64_t timeout_ms)
{
    gumbel_transport transport;
    gumbel_error error = {"", ""};
    gumbel_group *group = NULL;
    const gumbel_group_options options = {.struct_size = sizeof options,
                                          .first_token = split->first[rank],
                                          .rows = split->rows[rank],
                                          .timeout_ms = timeout_ms};
    if (gumbel_mpi_transport(MPI_COMM_WORLD, &transport, &error) != GUMBEL_OK ||
        gumbel_group_open(&transport, device, &options, &group, &error) != GUMBEL_OK)
        die("rank %d: %s: %s", rank, error.field, error.message);
    return group;
}

/* Draws requests of every kind from the whole and by ranks; returns 1 if all bits are equal. */
static int compare_draws(gumbel_device *device, int rank, int ranks, int rounds)
{
    uint64_t random = 91;
    int well = 1;
    for (int i = 0; i < rounds && well; i++) {
        gumbel_error error = {"", ""};
        request_plan plan = request_plan_at_random(i * 11 + 2, i % 3 == 0);
        plan.vocab += 64 * ranks;
        plan.kept_capacity = i % 2 ? 100 : 0;
        plan.entropy = i % 3 == 1;
        request *req = request_make(&plan, device);
        shard_split split = split_vocabulary(plan.first_token, plan.vocab, ranks, i % 2, &random);
        shard_outcome expected = shards_outcome(req, i % 4 > 0);
        shard_outcome found = shards_outcome(req, i % 4 > 0);
        gumbel_group *group = open_group(device, &split, rank, 60000);
        if (shards_draw_whole(device, req, plan.hidden_size > 0, &expected) != GUMBEL_OK)
            die("the whole cannot be drawn");
        gumbel_status status =
            shards_draw(group, req, &split, rank, plan.hidden_size > 0, &found, &error);
        if (status != GUMBEL_OK)
            printf("rank %d: %s: %s\n", rank, error.field, error.message);
        well = status == GUMBEL_OK && shards_same(&expected, &found, request_describe(&plan));
        gumbel_group_close(group);
        shards_outcome_free(&expected);
        shards_outcome_free(&found);
        request_free(req);
    }
    return well;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* The last rank fails by `how` in its second call; returns 1 if this rank returns an error in
 * time. */
static int fail_rank(gumbel_device *device, int rank, int ranks, const char *how)
{
    uint64_t random = 92;
    gumbel_error error = {"", ""};
    request_plan plan = {.batch = 3, .vocab = 64 * ranks + 50, .samples = 1, .seed = 4};
    request *req = request_make(&plan, device);
    shard_split split = split_vocabulary(0, plan.vocab, ranks, 1, &random);
    shard_outcome found = shards_outcome(req, 0);
    gumbel_group *group = open_group(device, &split, rank, TIMEOUT);
    int odd = rank == ranks - 1, differs = strcmp(how, "differ") == 0;
    static const float warm = 2;
    if (shards_draw(group, req, &split, rank, 0, &found, &error) != GUMBEL_OK)
        die("rank %d: %s: %s", rank, error.field, error.message);
    if (odd && strcmp(how, "hang") == 0) {
        sleep(3 * TIMEOUT / 1000);
        _Exit(0);
    }
    if (odd && strcmp(how, "kill") == 0)
        raise(SIGKILL);
    if (odd)
        req->sampling.temperature = (gumbel_row_f32){&warm, GUMBEL_SAME};
    int64_t start = now_ms();
    gumbel_status status = shards_draw(group, req, &split, rank, 0, &found, &error);
    int64_t took = now_ms() - start;
    const char *field = differs ? "sampling.temperature" : "group";
    int well = status == GUMBEL_ERROR_GROUP && strcmp(error.field, field) == 0 &&
               took < (differs ? TIMEOUT : 4 * TIMEOUT);
    printf("rank %d: %s after %d ms: %s: %s\n", rank, well ? "well" : "WRONG", (int)took,
           error.field, error.message);
    fflush(stdout);
    if (!differs) /* MPI_Finalize() would hang after the death of a rank */
        _Exit(!well);
    gumbel_group_close(group);
    shards_outcome_free(&found);
    request_free(req);
    return well;
}

int main(int argc, char **argv)
{
    int rank = 0, ranks = 1, well;
    signal(SIGUSR1, SIG_IGN); /* sent by MPICH's launcher when a rank dies */
    if (argc < 2 || MPI_Init(&argc, &argv) != MPI_SUCCESS)
        return 2;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks > SHARDS_RANKS)
        return 2;
    gumbel_device *device = open_device(GUMBEL_ISA_AUTO, 1, 0);
    if (strcmp(argv[1], "agree") == 0)
        well = compare_draws(device, rank, ranks, argc > 2 ? atoi(argv[2]) : 10);
    else
        well = fail_rank(device, rank, ranks, argv[1]);
    if (!well)
        printf("rank %d of %d: WRONG\n", rank, ranks);
    gumbel_close(device);
    MPI_Finalize();
    return !well;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * All-gathers over MPI with a time-out. A collective that waits for a dead rank cannot be
 * cancelled: its buffers are copies, which MPI then keeps.
 */
#define _POSIX_C_SOURCE 200809L
#include "gumbel/dist_mpi.h"

#include "ranks/transports/clock.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Polls of a pending exchange before its thread sleeps between two polls: some 20 us. */
#define EAGER_POLLS 200
#define SLEEP_NS    50000

/* Whether gumbel_mpi_world() initialised MPI, of which a process has one, and whether an abandoned
 * exchange keeps it from being finalised. */
static int world_initialised, world_abandoned;

typedef struct mpi_context {
    MPI_Comm communicator;
    int ranks;
    size_t room;
    unsigned char *send; /* [room], then [ranks, room] received */
    int abandoned;       /* an exchange goes on, and MPI keeps its memory */
} mpi_context;

static int report_error(char *why, const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    snprintf(why, GUMBEL_WHY_BYTES, "%s: %.80s", what, text);
    return 1;
}

/* Polls until the request is done or timed out. */
static int wait_for_request(MPI_Request *request, int64_t timeout_ms, char *why)
{
    const struct timespec pause = {0, SLEEP_NS};
    int64_t end = ranks_now_ms() + timeout_ms;
    for (int64_t polls = 0;; polls++) {
        int done = 0, code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS)
            return report_error(why, "MPI_Test", code);
        if (done)
            return 0;
        if (ranks_now_ms() >= end) {
            snprintf(why, GUMBEL_WHY_BYTES, "a rank does not answer");
            return 1;
        }
        if (polls > EAGER_POLLS)
            nanosleep(&pause, NULL);
    }
}

static int reserve_buffer(mpi_context *c, size_t bytes, char *why)
{
    if (bytes <= c->room)
        return 0;
    unsigned char *more = NULL;
    if (bytes <= SIZE_MAX / ((size_t)c->ranks + 1))
        more = malloc(bytes * ((size_t)c->ranks + 1));
    if (!more) {
        snprintf(why, GUMBEL_WHY_BYTES, "no memory for %zu bytes of each rank", bytes);
        return 1;
    }
    free(c->send);
    c->send = more;
    c->room = bytes;
    return 0;
}

static int gather_by_mpi(void *context, void *stream, const void *send, void *receive, size_t bytes,
                         int64_t timeout_ms, char *why)
{
    mpi_context *c = context;
    MPI_Request request;
    (void)stream;
    if (c->abandoned || bytes > INT_MAX || reserve_buffer(c, bytes, why))
        return 1;
    memcpy(c->send, send, bytes);
    int code = MPI_Iallgather(c->send, (int)bytes, MPI_BYTE, c->send + bytes, (int)bytes, MPI_BYTE,
                              c->communicator, &request);
    if (code != MPI_SUCCESS) {
        c->abandoned = 1;
        return report_error(why, "MPI_Iallgather", code);
    }
    if (wait_for_request(&request, timeout_ms, why)) {
        c->abandoned = 1;
        return 1;
    }
    memcpy(receive, c->send + bytes, bytes * (size_t)c->ranks);
    return 0;
}

static void destroy_transport(void *context)
{
    mpi_context *c = context;
    int finalised = 1;
    if (c->abandoned) { /* MPI may write to the buffers; freeing would wait */
        world_abandoned = 1;
        return;
    }
    MPI_Finalized(&finalised);
    if (!finalised)
        MPI_Comm_free(&c->communicator);
    free(c->send);
    free(c);
}

static gumbel_status set_error(gumbel_error *error, gumbel_status status, const char *field,
                               const char *message)
{
    if (error) {
        snprintf(error->field, sizeof error->field, "%s", field);
        snprintf(error->message, sizeof error->message, "%s", message);
    }
    return status;
}

gumbel_status gumbel_mpi_transport(MPI_Comm communicator, gumbel_transport *transport,
                                   gumbel_error *error)
{
    int initialised = 0, rank = 0;
    if (!transport)
        return set_error(error, GUMBEL_ERROR_ARGUMENT, "transport", "is NULL");
    MPI_Initialized(&initialised);
    if (!initialised || communicator == MPI_COMM_NULL)
        return set_error(error, GUMBEL_ERROR_ARGUMENT, "communicator",
                         initialised ? "communicator is MPI_COMM_NULL" : "MPI is not initialised");
    mpi_context *c = calloc(1, sizeof *c);
    if (!c)
        return set_error(error, GUMBEL_ERROR_MEMORY, "transport", "out of memory");
    if (MPI_Comm_dup(communicator, &c->communicator) != MPI_SUCCESS) {
        free(c);
        return set_error(error, GUMBEL_ERROR_GROUP, "communicator",
                         "the communicator cannot be duplicated");
    }
    MPI_Comm_set_errhandler(c->communicator, MPI_ERRORS_RETURN);
    MPI_Comm_rank(c->communicator, &rank);
    MPI_Comm_size(c->communicator, &c->ranks);
    *transport = (gumbel_transport){.struct_size = sizeof *transport,
                                    .rank = rank,
                                    .ranks = c->ranks,
                                    .all_gather = gather_by_mpi,
                                    .destroy = destroy_transport,
                                    .context = c};
    return GUMBEL_OK;
}

gumbel_status gumbel_mpi_world(gumbel_transport *transport, gumbel_error *error)
{
    int initialised = 0, provided;
    MPI_Initialized(&initialised);
    if (!initialised) {
        if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
            return set_error(error, GUMBEL_ERROR_UNSUPPORTED, "transport",
                             "MPI cannot be initialised");
        world_initialised = 1;
    }
    return gumbel_mpi_transport(MPI_COMM_WORLD, transport, error);
}

void gumbel_mpi_world_end(void)
{
    int finalised = 1;
    MPI_Finalized(&finalised);
    if (world_initialised && !world_abandoned && !finalised)
        MPI_Finalize();
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * All-gathers over NCCL: of device memory, queued on the caller's stream; of device memory by the
 * group's worker (host collectives); and of host memory, by way of a buffer on the GPU. The last
 * two have streams of their own, which are polled until they time out. The build requires neither
 * NCCL's headers nor CUDA's: the functions are declared here, by their stable ABIs.
 */
#define _GNU_SOURCE
#include "gumbel/dist.h"

#include "core/fail.h"
#include "ranks/transports/clock.h"
#include "ranks/transports/timed_call.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NCCL_INT8 0
#define NOT_READY 600 /* CUDA_ERROR_NOT_READY */
#define SLEEP_NS  20000

/* Bytes of the first host collective, for which NCCL allocates. */
#define WARM_BYTES ((size_t)1 << 20)

/* Time-out for all ranks to arrive and for NCCL's set-up. */
#define CONNECT_MS 60000

typedef struct nccl_id {
    char bytes[GUMBEL_NCCL_ID_BYTES];
} nccl_id;

/* Functions, by their symbols. */
#define NCCL_FUNCTIONS(F)                                                                          \
    F(get_id, "ncclGetUniqueId", (nccl_id *))                                                      \
    F(init, "ncclCommInitRank", (void **, int, nccl_id, int))                                      \
    F(split, "ncclCommSplit", (void *, int, int, void **, void *))                                 \
    F(destroy, "ncclCommDestroy", (void *))                                                        \
    F(abort_communicator, "ncclCommAbort", (void *))                                               \
    F(async_error, "ncclCommGetAsyncError", (void *, int *))                                       \
    F(count, "ncclCommCount", (void *, int *))                                                     \
    F(rank, "ncclCommUserRank", (void *, int *))                                                   \
    F(ordinal, "ncclCommCuDevice", (void *, int *))                                                \
    F(all_gather, "ncclAllGather", (const void *, void *, size_t, int, void *, void *))
#define CUDA_FUNCTIONS(F)                                                                          \
    F(initialise, "cuInit", (unsigned))                                                            \
    F(retain, "cuDevicePrimaryCtxRetain", (void **, int))                                          \
    F(release, "cuDevicePrimaryCtxRelease_v2", (int))                                              \
    F(push, "cuCtxPushCurrent_v2", (void *))                                                       \
    F(pop, "cuCtxPopCurrent_v2", (void **))                                                        \
    F(make, "cuMemAlloc_v2", (uint64_t *, size_t))                                                 \
    F(drop, "cuMemFree_v2", (uint64_t))                                                            \
    F(put, "cuMemcpyHtoDAsync_v2", (uint64_t, const void *, size_t, void *))                       \
    F(fetch, "cuMemcpyDtoHAsync_v2", (void *, uint64_t, size_t, void *))                           \
    F(stream, "cuStreamCreate", (void **, unsigned))                                               \
    F(urgent_stream, "cuStreamCreateWithPriority", (void **, unsigned, int))                       \
    F(priorities, "cuCtxGetStreamPriorityRange", (int *, int *))                                   \
    F(capture_mode, "cuThreadExchangeStreamCaptureMode", (int *))                                  \
    F(end_stream, "cuStreamDestroy_v2", (void *))                                                  \
    F(query, "cuStreamQuery", (void *))
#define MEMBER(name, symbol, parameters) int(*name) parameters;
typedef struct nccl_library {
    NCCL_FUNCTIONS(MEMBER)
} nccl_library;
typedef struct cuda_library {
    CUDA_FUNCTIONS(MEMBER)
} cuda_library;
#undef MEMBER

typedef struct nccl_context {
    nccl_library nccl;
    cuda_library cuda;
    void *communicator;
    void *host_communicator; /* for host memory, so that exchanges of different calls do not meet */
    int owned;               /* the transport destroys the communicator */
    int aborted;             /* both communicators: no exchange is possible */
    int ranks, rank, ordinal;
    void *context, *stream;
    void *worker_communicator, *worker_stream; /* of host collectives, on another thread */
    int worker_aborted;                        /* that communicator alone */
    uint64_t buffer;                           /* on the GPU: [1 + ranks, room] */
    size_t room;
    void *given; /* the caller's communicator, or NULL */
    nccl_id id;  /* of a new communicator otherwise */
    gumbel_status status;
    gumbel_error error; /* result of connecting */
    ranks_timed_call connecting;
    int abandoned; /* connected after the time-out */
} nccl_context;

static void *open_library(const char *name, gumbel_error *error, gumbel_status *status)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        *status = gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "transport", "%.180s", dlerror());
    return library;
}

static gumbel_status load_libraries(nccl_library *nccl, cuda_library *cuda, gumbel_error *error)
{
    gumbel_status status = GUMBEL_OK;
    void *found, *library = open_library("libnccl.so.2", error, &status);
    if (!library)
        return status;
#define LOAD_INTO(into, name, symbol)                                                              \
    found = dlsym(library, symbol);                                                                \
    if (!found)                                                                                    \
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "transport", "the library lacks %s",   \
                           symbol);                                                                \
    memcpy(&(into)->name, &found, sizeof found);
#define LOAD(name, symbol, parameters) LOAD_INTO(nccl, name, symbol)
    NCCL_FUNCTIONS(LOAD)
#undef LOAD
    if (!cuda)
        return GUMBEL_OK;
    library = open_library("libcuda.so.1", error, &status);
    if (!library)
        return status;
#define LOAD(name, symbol, parameters) LOAD_INTO(cuda, name, symbol)
    CUDA_FUNCTIONS(LOAD)
#undef LOAD
    return GUMBEL_OK;
}

static int report_error(char *why, const char *call, int code)
{
    snprintf(why, GUMBEL_WHY_BYTES, "%s gives error %d", call, code);
    return 1;
}

/* Aborts both communicators: their kernels end, on every rank that does so. */
static int abort_communicators(nccl_context *c, char *why, const char *words)
{
    snprintf(why, GUMBEL_WHY_BYTES, "%s", words);
    c->nccl.abort_communicator(c->communicator);
    c->nccl.abort_communicator(c->host_communicator);
    c->aborted = 1;
    return 1;
}

/* Polls a stream, in the context, until it is done; 0 on success. On a time-out or an error of NCCL
 * *why is set, and the caller must abort the communicator; a driver's error goes to *code. */
static int poll_stream(const nccl_context *c, void *stream, void *used, int64_t timeout_ms,
                       int *code, const char **why)
{
    const struct timespec pause = {0, SLEEP_NS};
    int64_t end = ranks_now_ms() + timeout_ms;
    *why = NULL;
    while (!*why) {
        int state = 0;
        *code = c->cuda.query(stream);
        if (*code != NOT_READY)
            return *code != 0;
        if (c->nccl.async_error(used, &state) != 0 || state != 0)
            *why = "NCCL reports an error of a rank";
        else if (ranks_now_ms() >= end)
            *why = "a rank does not answer";
        else
            nanosleep(&pause, NULL);
    }
    return 1;
}

static int wait_for_stream(nccl_context *c, void *stream, int64_t timeout_ms, char *why)
{
    int code;
    const char *words;
    void *used = stream == c->stream ? c->host_communicator : c->communicator;
    if (poll_stream(c, stream, used, timeout_ms, &code, &words) == 0)
        return 0;
    return words ? abort_communicators(c, why, words) : report_error(why, "cuStreamQuery", code);
}

static int queue_gather(void *context, void *stream, const void *send, void *receive, size_t bytes,
                        int64_t timeout_ms, char *why)
{
    nccl_context *c = context;
    void *popped;
    int code;
    (void)timeout_ms;
    if (c->aborted)
        return report_error(why, "an earlier exchange", 0);
    if ((code = c->cuda.push(c->context)) != 0)
        return report_error(why, "cuCtxPushCurrent", code);
    code = c->nccl.all_gather(send, receive, bytes, NCCL_INT8, c->communicator, stream);
    c->cuda.pop(&popped);
    return code ? report_error(why, "ncclAllGather", code) : 0;
}

static int wait_for_caller(void *context, void *stream, int64_t timeout_ms, char *why)
{
    nccl_context *c = context;
    void *popped;
    int code;
    if (c->aborted)
        return report_error(why, "an earlier exchange", 0);
    if ((code = c->cuda.push(c->context)) != 0)
        return report_error(why, "cuCtxPushCurrent", code);
    code = wait_for_stream(c, stream, timeout_ms, why);
    c->cuda.pop(&popped);
    return code;
}

/* Runs the gather of a host collective, in the context. */
static int gather_in_worker(nccl_context *c, const void *send, void *receive, size_t bytes,
                            int64_t timeout_ms, char *why)
{
    const char *words;
    int code = c->nccl.all_gather(send, receive, bytes, NCCL_INT8, c->worker_communicator,
                                  c->worker_stream);
    if (code != 0)
        return report_error(why, "ncclAllGather", code);
    if (poll_stream(c, c->worker_stream, c->worker_communicator, timeout_ms, &code, &words) == 0)
        return 0;
    if (!words)
        return report_error(why, "cuStreamQuery", code);
    snprintf(why, GUMBEL_WHY_BYTES, "%s", words);
    c->nccl.abort_communicator(c->worker_communicator);
    c->worker_aborted = 1;
    return 1;
}

static int run_host_collective(void *context, void *stream, const void *send, void *receive,
                               size_t bytes, int64_t timeout_ms, char *why)
{
    nccl_context *c = context;
    void *popped;
    int code;
    (void)stream;
    if (c->worker_aborted)
        return report_error(why, "an earlier exchange", 0);
    if ((code = c->cuda.push(c->context)) != 0)
        return report_error(why, "cuCtxPushCurrent", code);
    /* In another mode, polling a stream would invalidate captures of other threads. */
    int mode = 2 /* CU_STREAM_CAPTURE_MODE_RELAXED */;
    code = c->cuda.capture_mode(&mode);
    code = code ? report_error(why, "cuThreadExchangeStreamCaptureMode", code)
                : gather_in_worker(c, send, receive, bytes, timeout_ms, why);
    c->cuda.capture_mode(&mode);
    c->cuda.pop(&popped);
    return code;
}

static int reserve_buffer(nccl_context *c, size_t bytes, char *why)
{
    uint64_t more = 0;
    int code;
    if (bytes <= c->room)
        return 0;
    if ((code = c->cuda.make(&more, bytes * ((size_t)c->ranks + 1))) != 0)
        return report_error(why, "cuMemAlloc", code);
    if (c->buffer)
        c->cuda.drop(c->buffer);
    c->buffer = more;
    c->room = bytes;
    return 0;
}

/* Runs a gather of host memory, in the context. */
static int gather_host_memory(nccl_context *c, const void *send, void *receive, size_t bytes,
                              int64_t timeout_ms, char *why)
{
    int code;
    if (reserve_buffer(c, bytes, why))
        return 1;
    uint64_t all = c->buffer + bytes;
    if ((code = c->cuda.put(c->buffer, send, bytes, c->stream)) != 0)
        return report_error(why, "cuMemcpyHtoDAsync", code);
    code = c->nccl.all_gather((const void *)(uintptr_t)c->buffer, (void *)(uintptr_t)all, bytes,
                              NCCL_INT8, c->host_communicator, c->stream);
    if (code != 0)
        return report_error(why, "ncclAllGather", code);
    if (wait_for_stream(c, c->stream, timeout_ms, why))
        return 1;
    if ((code = c->cuda.fetch(receive, all, bytes * (size_t)c->ranks, c->stream)) != 0)
        return report_error(why, "cuMemcpyDtoHAsync", code);
    return wait_for_stream(c, c->stream, timeout_ms, why);
}

static int gather_by_nccl(void *context, void *stream, const void *send, void *receive,
                          size_t bytes, int64_t timeout_ms, char *why)
{
    nccl_context *c = context;
    void *popped;
    int code;
    (void)stream;
    if (c->aborted)
        return report_error(why, "an earlier exchange", 0);
    if ((code = c->cuda.push(c->context)) != 0)
        return report_error(why, "cuCtxPushCurrent", code);
    code = gather_host_memory(c, send, receive, bytes, timeout_ms, why);
    c->cuda.pop(&popped);
    return code;
}

static void destroy_transport(void *context)
{
    nccl_context *c = context;
    void *popped;
    if (c->context && c->cuda.push(c->context) == 0) {
        /* Destroying a communicator could wait for a lost rank; aborting it does not. */
        int lost = c->aborted || c->worker_aborted || c->abandoned;
        int (*end)(void *) = lost ? c->nccl.abort_communicator : c->nccl.destroy;
        if (c->worker_communicator && !c->worker_aborted)
            end(c->worker_communicator);
        if (c->host_communicator && !c->aborted)
            end(c->host_communicator);
        if (c->owned && c->communicator && !c->aborted)
            end(c->communicator);
        if (c->buffer)
            c->cuda.drop(c->buffer);
        if (c->stream)
            c->cuda.end_stream(c->stream);
        if (c->worker_stream)
            c->cuda.end_stream(c->worker_stream);
        c->cuda.pop(&popped);
        c->cuda.release(c->ordinal);
    }
    free(c);
}

/* Creates the communicator and the stream of host collectives. Two gathers make NCCL allocate here
 * for short and long messages: later it could wait for a GPU that waits for a host collective. */
static gumbel_status connect_worker(nccl_context *c, gumbel_error *error)
{
    static const size_t lengths[] = {256, WARM_BYTES};
    char why[GUMBEL_WHY_BYTES] = "";
    int least, greatest,
        code = c->nccl.split(c->communicator, 0, c->rank, &c->worker_communicator, NULL);
    if (code != 0)
        return gumbel_fail(error, GUMBEL_ERROR_DEVICE, "transport", "ncclCommSplit gives error %d",
                           code);
    /* A GPU has few queues for streams. Streams of another priority have queues of their own, where
     * a host collective is not queued after the launches that wait for it. */
    code = c->cuda.priorities(&least, &greatest);
    if (code == 0)
        code = c->cuda.urgent_stream(&c->worker_stream, 1 /* CU_STREAM_NON_BLOCKING */, greatest);
    if (code != 0)
        return gumbel_fail(error, GUMBEL_ERROR_DEVICE, "transport",
                           "cuStreamCreateWithPriority gives error %d", code);
    int failed = reserve_buffer(c, WARM_BYTES, why);
    const void *send = (const void *)(uintptr_t)c->buffer;
    void *receive = (void *)(uintptr_t)(c->buffer + WARM_BYTES);
    for (int i = 0; i < 2 && !failed; i++)
        failed = gather_in_worker(c, send, receive, lengths[i], CONNECT_MS, why);
    return failed ? gumbel_fail(error, GUMBEL_ERROR_DEVICE, "transport", "%.100s", why) : GUMBEL_OK;
}

/* Creates the communicators and their streams, with the GPU's context current. */
static gumbel_status connect_ranks(nccl_context *c, gumbel_error *error)
{
    int code = 0;
    if (c->given) {
        c->communicator = c->given;
    } else {
        c->owned = 1;
        code = c->nccl.init(&c->communicator, c->ranks, c->id, c->rank);
    }
    if (code != 0)
        return gumbel_fail(error, GUMBEL_ERROR_DEVICE, "transport",
                           "ncclCommInitRank gives error %d", code);
    code = c->nccl.split(c->communicator, 0, c->rank, &c->host_communicator, NULL);
    if (code != 0)
        return gumbel_fail(error, GUMBEL_ERROR_DEVICE, "transport", "ncclCommSplit gives error %d",
                           code);
    code = c->cuda.stream(&c->stream, 1 /* CU_STREAM_NON_BLOCKING */);
    if (code != 0)
        return gumbel_fail(error, GUMBEL_ERROR_DEVICE, "transport", "cuStreamCreate gives error %d",
                           code);
    return c->ranks <= GUMBEL_PEERS_MAX ? connect_worker(c, error) : GUMBEL_OK;
}

static gumbel_status enter_and_connect(nccl_context *c, gumbel_error *error)
{
    void *popped;
    int code = c->cuda.initialise(0);
    if (c->given &&
        (c->nccl.count(c->given, &c->ranks) != 0 || c->nccl.rank(c->given, &c->rank) != 0 ||
         c->nccl.ordinal(c->given, &c->ordinal) != 0))
        return gumbel_fail(error, GUMBEL_ERROR_ARGUMENT, "communicator",
                           "NCCL does not accept the communicator");
    if (code == 0)
        code = c->cuda.retain(&c->context, c->ordinal);
    if (code != 0)
        c->context = NULL;
    if (code == 0)
        code = c->cuda.push(c->context);
    if (code != 0)
        return gumbel_fail(error, GUMBEL_ERROR_DEVICE, "transport",
                           "GPU %d cannot be used: error %d", c->ordinal, code);
    gumbel_status status = connect_ranks(c, error);
    c->cuda.pop(&popped);
    return status;
}

static void connect_work(void *context)
{
    nccl_context *c = context;
    c->status = enter_and_connect(c, &c->error);
}

static void drop_abandoned(void *context)
{
    nccl_context *c = context;
    c->abandoned = 1;
    destroy_transport(c);
}

/* Connects on another thread, as NCCL waits for ranks without end. A thread that is abandoned owns
 * the context. */
static gumbel_status connect_within(nccl_context *c, gumbel_error *error)
{
    ranks_call_end ended =
        ranks_call_within(&c->connecting, CONNECT_MS, connect_work, drop_abandoned, c);
    if (ended == RANKS_CALL_ABANDONED)
        return gumbel_fail(error, GUMBEL_ERROR_DEVICE, "transport",
                           "NCCL did not connect within %d ms: a rank did not arrive", CONNECT_MS);
    gumbel_status status = c->status;
    if (ended == RANKS_CALL_NOT_STARTED)
        status = gumbel_fail(error, GUMBEL_ERROR_MEMORY, "transport", "could not create a thread");
    else if (status != GUMBEL_OK && error)
        *error = c->error;
    if (status != GUMBEL_OK)
        destroy_transport(c);
    return status;
}

gumbel_status gumbel_nccl_id(char id[GUMBEL_NCCL_ID_BYTES], gumbel_error *error)
{
    nccl_library nccl;
    nccl_id created;
    GUMBEL_REFUSE_IF(!id, error, "id", "is NULL");
    GUMBEL_FORWARD(load_libraries(&nccl, NULL, error));
    int code = nccl.get_id(&created);
    if (code != 0)
        return gumbel_fail(error, GUMBEL_ERROR_DEVICE, "id", "ncclGetUniqueId gives error %d",
                           code);
    memcpy(id, created.bytes, sizeof created.bytes);
    return GUMBEL_OK;
}

gumbel_status gumbel_nccl_transport(void *communicator, const char *id, int32_t rank, int32_t ranks,
                                    int32_t ordinal, gumbel_transport *transport,
                                    gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!transport, error, "transport", "is NULL");
    GUMBEL_REFUSE_IF(!communicator == !id, error, "communicator",
                     "set either communicator or id, and not both");
    GUMBEL_REFUSE_IF(id && (ranks < 1 || ranks > GUMBEL_RANKS_MAX), error, "ranks",
                     "is %d; it must be in 1..%d", (int)ranks, GUMBEL_RANKS_MAX);
    GUMBEL_REFUSE_IF(id && (rank < 0 || rank >= ranks), error, "rank", "is %d; it must be in 0..%d",
                     (int)rank, (int)ranks - 1);
    GUMBEL_REFUSE_IF(id && ordinal < 0, error, "ordinal", "is %d", (int)ordinal);
    nccl_context *c = calloc(1, sizeof *c);
    if (!c)
        return gumbel_fail(error, GUMBEL_ERROR_MEMORY, "transport", "out of memory");
    c->ranks = ranks;
    c->rank = rank;
    c->ordinal = ordinal;
    c->given = communicator;
    if (id)
        memcpy(c->id.bytes, id, sizeof c->id.bytes);
    gumbel_status status = load_libraries(&c->nccl, &c->cuda, error);
    if (status != GUMBEL_OK) {
        destroy_transport(c);
        return status;
    }
    GUMBEL_FORWARD(connect_within(c, error));
    *transport = (gumbel_transport){.struct_size = sizeof *transport,
                                    .rank = c->rank,
                                    .ranks = c->ranks,
                                    .all_gather = gather_by_nccl,
                                    .destroy = destroy_transport,
                                    .context = c,
                                    .stream_all_gather = queue_gather,
                                    .wait = wait_for_caller,
                                    .blocking_all_gather =
                                        c->worker_communicator ? run_host_collective : NULL};
    return GUMBEL_OK;
}

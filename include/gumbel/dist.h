/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel_dist: sampling from a vocabulary that is split over ranks.
 *
 * Each of R ranks holds a shard: some rows of the head, or some columns of the logits. Every rank
 * makes the same call with its own shard, and every rank gets the whole result. Tokens, scores,
 * log-probabilities, kept counts, ranks and lists have, bit for bit, the values that one device
 * with the whole vocabulary gives, if all devices compute the same bits (gumbel_group_open()).
 * Ranks exchange partial results, and whole rows of logits only in the cases listed below.
 *
 * Example: rank `rank` of `ranks` draws from its shard of the head, over MPI (dist_mpi.h).
 *
 *     gumbel_group *group;
 *     gumbel_transport transport = {.struct_size = sizeof transport};
 *     gumbel_group_options options = {.struct_size = sizeof options};
 *     options.first_token = head.first_token; // the shard: rows of the head that this rank holds
 *     options.rows = head.weight.rows;
 *     check(gumbel_mpi_world(&transport, &error));
 *     check(gumbel_group_open(&transport, device, &options, &group, &error));
 *     check(gumbel_group_workspace_size(group, &head, NULL, &how, &out, &bytes, &error));
 *     void *workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
 *     check(gumbel_group_sample(group, NULL, &head, &how, &out, workspace, bytes, &error));
 *     gumbel_group_close(group); // after the last step
 *
 * Exchanges on CPUs
 *
 *   call                                       exchanges  bytes sent per rank and row
 *   plain, greedy, samples, log-probabilities  1          48 S
 *     also with scale, soft-cap, bias, masks,
 *     penalties
 *   min-p, top-k, top-p of top-k's survivors;  1          16 + 8 C; rows without truncation 48 S
 *     lists                                                 more
 *   top-p of the whole row; for rows without   2          as above, and 16 + 8 S
 *     truncation, ranks of tokens and raw
 *     log-probabilities
 *   fallback rows; given tokens or noise       1 or 2     4 V' (1 + raw + S noise)
 *                                                more
 *
 *   S      The number of samples of a row, num_samples.
 *   C      The number of tokens that each rank sends for a row, at most 1024: the maximum of the
 *          batch's top_k, of num_top, and of 128 if a row has min-p or top-p only; and 14 to 16
 *          tokens more, which show whether the last values are tied. For k = 50, C is 64, and a
 *          row takes 528 bytes.
 *   V'     The number of tokens of the largest shard.
 *   raw    1 if the call requires unmodified logits (top_logits, raw log-probabilities or
 *          entropies), else 0. If a row takes 16 + 8 C bytes, unmodified logits add 4 C bytes, and
 *          raw log-probabilities add 48.
 *   noise  1 if noise is given, else 0.
 *
 *   A row is a fallback row if the C tokens of each rank do not determine its result, for example
 *   because many values are equal. Ranks then exchange the whole row; no result is approximate. If
 *   a boundary between shards is not a multiple of 64, ranks also exchange whole rows for raw
 *   log-probabilities, and for log-probabilities of rows without truncation. The first exchange of
 *   a call carries 256 more bytes, by which ranks compare their arguments. Data that exceed the
 *   first exchange's frame take one more exchange. gumbel_group_traffic() counts exchanges and
 *   bytes.
 *
 * Kept sets, entropies. Calls with kept_ids or entropy exchange whole rows.
 *
 * Exchanges on GPUs. All calls that are not in the table exchange whole rows: 4 V' bytes per rank
 * and row. gumbel_group_explain() names the method of a call, and why faster ones do not apply.
 *
 *   call                     required                                    bytes per rank and row
 *   plain                                                                48 S
 *   min-p, top-k, top-p:     at least 64 tokens in each shard; and       516: 64 tokens per rank;
 *     8 to 1024 rows (with     peer memory, or at most 16 ranks and a      fallback rows 4 V' more
 *     peer memory and min-p    transport of host collectives
 *     or top-k: 1 to 1024)
 *   given noise;             not supported: GUMBEL_ERROR_UNSUPPORTED
 *     top_logits, raw          names the field
 *     log-probabilities or
 *     entropies with
 *     transforms, scale or
 *     soft-cap
 *
 * Groups on CPUs and on GPUs. The ranks of a group are all on CPUs, or all on GPUs.
 *
 *   property          on CPUs                       on GPUs
 *   transport         any                           any with peer memory; else one of device
 *                                                     memory, such as gumbel_nccl_transport()
 *   rows of a shard   0 or more                     1 or more
 *   a call            returns when it is done       queues its work and its exchanges on `stream`
 *   streams           none                          one; or several that wait for each other
 *   graphs            none                          capture after one call outside a graph
 *   ranks compare     values of all parameters,     arguments in host memory, if they differ from
 *                       in every call                 those of the call before; device memory is
 *                                                     not compared
 *   error before      returned on all ranks         returned on that rank; on the other ranks the
 *     the exchange                                    exchange times out
 *   lost rank         the call returns an error     gumbel_group_wait() returns an error, and with
 *                                                     peer memory every later call does; until then
 *                                                     the tokens are -1 with peer memory, and
 *                                                     undefined without
 *   fallback rows     sent by the call              with peer memory sent by kernels; else by a
 *                                                     thread of the group, which polls its GPU's
 *                                                     requests every 0.5 ms or more often, while
 *                                                     the GPU waits
 *
 *   While a call without peer memory runs, no thread may block in a driver call that stops other
 *   threads from launching work, such as a copy to pageable memory: the exchange of fallback rows
 *   would time out. Call gumbel_group_wait() before such a copy.
 *
 * Agreement. Before a draw, all ranks compare digests of their arguments. If the parameters of one
 *   rank differ from the others', or on CPUs its call is invalid, every rank gets an error that
 *   names the field and the rank; the group stays usable. Arguments that belong to a shard are not
 *   compared: tensors, masks, histories, banned tokens, biases, token lists of penalties. Hidden
 *   states must be equal on all ranks, but are not compared either.
 *
 * Time-outs. An exchange ends within the group's time-out. If a rank dies, hangs, or makes a
 *   different call, the call fails on all other ranks, and the group is broken: every further call
 *   on it returns GUMBEL_ERROR_GROUP at once. After GUMBEL_ERROR_GROUP the outputs of the call are
 *   undefined.
 *
 * Threads. Each rank makes one call of a group at a time, and all ranks make the calls of a group
 *   in the same order. Several groups at once do not affect each other.
 *
 * The sections of gumbel.h on memory, streams, errors and structs apply here, too.
 */
#ifndef GUMBEL_DIST_H
#define GUMBEL_DIST_H

#ifndef GUMBEL_UNSTABLE
#error "gumbel/dist.h is unstable, as explained in gumbel.h: define GUMBEL_UNSTABLE to use it"
#endif

#include <gumbel/drafts.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GUMBEL_RANKS_MAX 65536

/* ----------------------------------------------------------------------------- transports ---- */

/* An all-gather that an engine provides: copies `bytes` bytes from `send` of every rank r to
 * receive + r * bytes on all ranks. The function returns 0 on success. If the exchange fails, or is
 * not done within timeout_ms milliseconds, the function returns another value without waiting
 * longer, and may write the reason to `why`, [GUMBEL_WHY_BYTES], a NUL-terminated sentence.
 * `stream` is the call's stream. */
#define GUMBEL_WHY_BYTES 128
typedef int (*gumbel_all_gather)(void *context, void *stream, const void *send, void *receive,
                                 size_t bytes, int64_t timeout_ms, char *why);

/* How the ranks of a group communicate. gumbel_nccl_transport() below and the functions of
 * gumbel/dist_mpi.h make transports. */
typedef struct gumbel_transport {
    size_t struct_size;
    int32_t rank;                   /* 0..ranks - 1 */
    int32_t ranks;                  /* R, 1..GUMBEL_RANKS_MAX */
    gumbel_all_gather all_gather;   /* of host memory; `stream` is NULL */
    void (*destroy)(void *context); /* called by gumbel_group_close(); may be NULL */
    void *context;                  /* passed to all functions */
    /* Queues an all-gather of device memory on `stream`, and returns 0 without waiting for it.
     * NULL: not supported. */
    gumbel_all_gather stream_all_gather;
    /* Waits for all work queued on `stream`, at most timeout_ms, and returns 0. On a time-out the
     * function aborts pending exchanges and returns another value. NULL if stream_all_gather is
     * NULL. */
    int (*wait)(void *context, void *stream, int64_t timeout_ms, char *why);
    /* An all-gather of device memory that is complete when the function returns 0. `stream` is
     * NULL, and `send` may be receive + rank * bytes. A thread of the group calls the function, in
     * the same order on all ranks, while kernels queued on the caller's stream wait for the result:
     * a host collective. The function must therefore use a communicator of its own, and must not
     * wait for any stream of the caller. NULL: not supported. */
    gumbel_all_gather blocking_all_gather;
} gumbel_transport;

/* gumbel_nccl_transport(): make a transport over an NCCL communicator, on the communicator's GPU.
 *  All ranks make the call.
 *  communicator  an ncclComm_t. The caller owns it; it must outlive the group, and no other call
 *                may use it while a call of the group runs. NULL: the transport makes a
 *                communicator from `id` on `ordinal`. Two more communicators are split off, for
 *                exchanges of host memory and for fallback rows.
 *  id            [GUMBEL_NCCL_ID_BYTES] from gumbel_nccl_id(), the same on all ranks; NULL with a
 *                communicator, in which case rank, ranks and ordinal are not read
 *  library       libnccl.so.2 and libcuda.so.1 are opened at run time
 *  waits         at most 60 s for all ranks to arrive and for NCCL's set-up, which runs on a thread
 *                of its own. After a time-out this thread is abandoned until NCCL returns; it uses
 *                the caller's communicator until then, so abort that communicator.
 *  aborts        An exchange that times out aborts the communicator (ncclCommAbort), also the
 *                caller's.
 *  returns       GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_UNSUPPORTED (no NCCL, no driver),
 *                GUMBEL_ERROR_MEMORY, GUMBEL_ERROR_DEVICE.                             since 0.2 */
#define GUMBEL_NCCL_ID_BYTES 128
GUMBEL_CALL gumbel_nccl_transport(void *communicator, const char *id, int32_t rank, int32_t ranks,
                                  int32_t ordinal, gumbel_transport *transport,
                                  gumbel_error *error);

/* gumbel_nccl_id(): make the id of a new communicator. One rank calls it, and sends the id to the
 *  other ranks.
 *  returns  as gumbel_nccl_transport().                                                since 0.2 */
GUMBEL_CALL gumbel_nccl_id(char id[GUMBEL_NCCL_ID_BYTES], gumbel_error *error);

/* --------------------------------------------------------------------------------- groups ---- */

typedef struct gumbel_group gumbel_group;

/* Peer memory: exchanges without a collective, for at most 16 ranks of one host whose GPUs reach
 * each other's memory (NVLink, PCIe). Kernels write to peer-to-peer buffers on the other ranks, and
 * read their own. The buffers take 4 * ranks * peer_bytes of device memory a rank. The group
 * allocates them and maps those of other processes by CUDA IPC handles, or the engine provides
 * them. */
typedef enum gumbel_peer_memory {
    GUMBEL_PEERS_OFF = 0,
    GUMBEL_PEERS_ALLOW = 1, /* if all ranks support it; else the transport's `stream_all_gather` */
    GUMBEL_PEERS_REQUIRE = 2, /* GUMBEL_ERROR_UNSUPPORTED on all ranks if one does not */
} gumbel_peer_memory;
#define GUMBEL_PEERS_MAX 16

typedef struct gumbel_group_options {
    size_t struct_size;
    int64_t first_token; /* global id of this rank's row 0 */
    int64_t rows;        /* rows of this rank's shard, V of its calls; 0: the rank holds no tokens
                          * but takes part in all calls, and its mask is not read */
    int64_t timeout_ms;  /* of one exchange, 1..2^31; 0 means 30,000 */
    size_t frame_bytes;  /* size of a call's first exchange, 256..2^30, the same on all ranks; 0
                          * means 4096. A plain call of (frame_bytes - 256) / 48 draws fits into
                          * it */
    /* CUDA only: how device memory is exchanged. All ranks must pass equal values. */
    gumbel_peer_memory peer_memory;
    int32_t reserved;  /* 0 */
    size_t peer_bytes; /* the most bytes that a rank sends in one exchange by peer memory, a
                        * multiple of 48, at most 2^30; longer data are sent in several exchanges.
                        * 0 means 3 MiB */
    /* [ranks] The engine's own peer-to-peer buffers, of gumbel_peer_buffer_bytes() each: device
     * pointers by which this rank reaches the buffer of each rank, its own included. The buffers
     * must be zero before any rank opens the group, and must not be written until all ranks have
     * closed it. NULL: the group allocates them. */
    void *const *peer_buffers;
} gumbel_group_options;

/* Returns the size of a peer-to-peer buffer in bytes; 0 if an argument is out of range.
 * since 0.2 */
GUMBEL_API size_t gumbel_peer_buffer_bytes(int32_t ranks, size_t peer_bytes);

/* gumbel_group_open(): open a group, on all ranks at once.
 *  transport  On success the group owns its context; on an error the caller still does.
 *  device     this rank's device, which must outlive the group: a CPU on all ranks, or a GPU on all
 *             ranks. Outputs equal those of one device, bit for bit, if all devices compute the
 *             same bits, as all CPUs do.
 *  options    The shards must cover one range of tokens without gaps or overlaps. The order of
 *             ranks and the sizes are arbitrary.
 *  returns    on every rank: GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_MEMORY,
 *             GUMBEL_ERROR_UNSUPPORTED (the device, CPUs and GPUs in one group, GPUs that neither
 *             peer memory nor the transport connects, or another version of libgumbel),
 *             GUMBEL_ERROR_GROUP (gaps or overlaps of shards, ranks disagree, a rank does not
 *             respond).
 *                                                                                      since 0.2 */
GUMBEL_CALL gumbel_group_open(const gumbel_transport *transport, gumbel_device *device,
                              const gumbel_group_options *options, gumbel_group **group,
                              gumbel_error *error);

/* gumbel_group_close(): free a group and destroy its transport. NULL is allowed. The call makes no
 *  exchange. With peer memory, no call of the group may still be running on ranks of the same
 *  process.                                                                            since 0.2 */
GUMBEL_API void gumbel_group_close(gumbel_group *group);

/* gumbel_group_wait(): wait until all work queued on `stream` is done, within the group's time-out.
 *  On a time-out the group is broken, and no rank's kernels hang. On a CPU, whose calls are done on
 *  return, the call returns at once.
 *  returns  GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_GROUP.                      since 0.2 */
GUMBEL_CALL gumbel_group_wait(gumbel_group *group, void *stream, gumbel_error *error);

/* gumbel_group_has_peer_memory(): whether the ranks exchange data through peer memory.
 *  returns  1: through peer memory; 0: by the transport, or `group` is NULL.           since 0.3 */
GUMBEL_API int gumbel_group_has_peer_memory(const gumbel_group *group);

/* Counters of this rank since the group was opened; replays of graphs are not counted. */
typedef struct gumbel_traffic {
    size_t struct_size;
    int64_t calls;        /* calls that reached an exchange */
    int64_t exchanges;    /* all-gathers, the one of gumbel_group_open() included */
    int64_t bytes;        /* bytes that this rank sent in them */
    int64_t rows;         /* rows drawn or scored */
    int64_t rows_by_rows; /* those of `rows` whose whole logits were gathered */
} gumbel_traffic;

/* gumbel_group_traffic(): read the counters; writes at most traffic->struct_size bytes.
 *  returns  GUMBEL_OK, GUMBEL_ERROR_ARGUMENT.                                          since 0.2 */
GUMBEL_CALL gumbel_group_traffic(const gumbel_group *group, gumbel_traffic *traffic);

/* ---------------------------------------------------------------------------------- calls ---- */

/* gumbel_group_workspace_size(): as gumbel_workspace_size(), for this rank's part of a call.
 *  `output` must not be NULL.
 *  returns  GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_UNSUPPORTED.                since 0.2 */
GUMBEL_CALL gumbel_group_workspace_size(const gumbel_group *group, const gumbel_head *head,
                                        const gumbel_logits *logits,
                                        const gumbel_sampling *sampling,
                                        const gumbel_output *output, size_t *bytes,
                                        gumbel_error *error);

/* gumbel_group_explain(): as gumbel_explain(), for this rank's part of a call: how the ranks draw,
 *  and why faster methods do not apply. No exchange takes place. `output` must not be NULL.
 *  returns  GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_UNSUPPORTED.                since 0.3 */
GUMBEL_CALL gumbel_group_explain(const gumbel_group *group, const gumbel_head *head,
                                 const gumbel_logits *logits, const gumbel_sampling *sampling,
                                 const gumbel_output *output, char *text, size_t size,
                                 gumbel_error *error);

/* gumbel_group_sample(): gumbel_sample() over the whole vocabulary.             [Lemma 4.9]
 *  head       this rank's shard. first_token and weight.rows must equal those of the group's
 *             options; a rank without rows passes a weight without rows. vocab_size is that of the
 *             whole vocabulary; 0 means the end of the last shard. Set it if the shards include
 *             padding.
 *  sampling   The same on all ranks, apart from the arguments of a shard ("Agreement" above). Token
 *             lists may hold the ids of the whole vocabulary or of the shard; `allowed` must hold
 *             all ids. A mask and a history have the shape that gumbel_sample() of the shard
 *             requires; only the shard's bits and counts are read. Noise is that of the shard,
 *             [B, S, V]. Given tokens may be any tokens of the whole vocabulary.
 *  output     Every rank gets the whole output, and all ranks request the same fields.
 *  workspace  gumbel_group_workspace_size() bytes; else as gumbel_sample()
 *  returns    as gumbel_sample(), and GUMBEL_ERROR_GROUP.                              since 0.2 */
GUMBEL_CALL gumbel_group_sample(gumbel_group *group, void *stream, const gumbel_head *head,
                                const gumbel_sampling *sampling, const gumbel_output *output,
                                void *workspace, size_t workspace_bytes, gumbel_error *error);

/* gumbel_group_sample_logits(): as gumbel_group_sample(), from this rank's columns of the logits.
 *                                                                                      since 0.2 */
GUMBEL_CALL gumbel_group_sample_logits(gumbel_group *group, void *stream,
                                       const gumbel_logits *logits, const gumbel_sampling *sampling,
                                       const gumbel_output *output, void *workspace,
                                       size_t workspace_bytes, gumbel_error *error);

/* gumbel_group_verify(): gumbel_verify() over the whole vocabulary, with GUMBEL_RULE_COUPLED. All
 *  ranks pass the same draft, which is compared. Rules that use a draft's distribution return
 *  GUMBEL_ERROR_UNSUPPORTED.
 *  else       as gumbel_group_sample() and gumbel_verify().                            since 0.2 */
GUMBEL_CALL gumbel_group_verify(gumbel_group *group, void *stream, const gumbel_head *head,
                                const gumbel_sampling *sampling, const gumbel_draft *draft,
                                const gumbel_verified *verified, void *workspace,
                                size_t workspace_bytes, gumbel_error *error);
GUMBEL_CALL gumbel_group_verify_logits(gumbel_group *group, void *stream,
                                       const gumbel_logits *logits, const gumbel_sampling *sampling,
                                       const gumbel_draft *draft, const gumbel_verified *verified,
                                       void *workspace, size_t workspace_bytes,
                                       gumbel_error *error);

/* gumbel_group_verify_workspace_size(): the workspace, in bytes, of gumbel_group_verify() with
 *  `head`, or of gumbel_group_verify_logits() with `logits`. since 0.2 */
GUMBEL_CALL gumbel_group_verify_workspace_size(const gumbel_group *group, const gumbel_head *head,
                                               const gumbel_logits *logits,
                                               const gumbel_sampling *sampling,
                                               const gumbel_draft *draft,
                                               const gumbel_verified *verified, size_t *bytes,
                                               gumbel_error *error);

/* -------------------------------------------------------------- draws of other samplers ---- */

/* Grouped draws of the FlashSampling paper combine tokens that other samplers drew from parts of a
 * vocabulary (ranks, chunks). For each part the caller passes its log-mass, ln sum exp(z), and the
 * token drawn from it. The calls below draw a part with probability proportional to its mass, and
 * return the part's token. The tokens have the distribution of one draw from the whole vocabulary,
 * but are not the tokens of gumbel_sample(), because the noise is drawn for parts, in noise domains
 * of its own. The draws within the parts must be independent of each other and of this noise. Of
 * `sampling` the calls use seed, position, slots, num_samples and first_sample. On a GPU each call
 * is one launch, queued and capturable, and gives the same bits as on the host. */

/* gumbel_draw_group(): draw one of many parts, and return its token.
 *                      [FlashSampling, Algorithms B.2 and B.4]
 *  device       NULL or a CPU: all data are in host memory. A GPU: all data but the structs are in
 *               its memory.
 *  stream       as in gumbel_sample(); NULL without a GPU
 *  parts        1..GUMBEL_PARTS_MAX
 *  log_masses   [parts, B], as ranks gather them; -inf for an empty part
 *  tokens       [parts, B, S] the token that each part drew; not read for an empty part
 *  drawn        [B, S] the token; -1 in a row that is not GUMBEL_ROW_OK
 *  which        [B, S] the part that was drawn; may be NULL
 *  lse          [B] ln of the sum of all masses; may be NULL
 *  status       [B] a gumbel_row_status, which reports a NaN or +inf log-mass, or that all parts
 *               are empty; on a GPU also a slot out of range; may be NULL
 *  threads      re-entrant
 *  returns      GUMBEL_OK, GUMBEL_ERROR_ARGUMENT; on a GPU also GUMBEL_ERROR_UNSUPPORTED (B * S >=
 *               2^31) and GUMBEL_ERROR_DEVICE.                                         since 0.2 */
GUMBEL_CALL gumbel_draw_group(gumbel_device *device, void *stream, int32_t parts, int64_t batch,
                              const float *log_masses, const int32_t *tokens,
                              const gumbel_sampling *sampling, int32_t *drawn, int32_t *which,
                              float *lse, int32_t *status, gumbel_error *error);

/* State of a streamed draw, for one row and sample. Plain data; all zero is not a valid state. */
typedef struct gumbel_stream_draw {
    double log_mass; /* of the parts so far */
    int32_t token;   /* the token so far; -1: none */
    uint32_t flags;  /* bit 0: a NaN mass, bit 1: a +inf mass */
} gumbel_stream_draw;

/* gumbel_stream_draw_clear(): initialise `count` states in host memory as empty. For a GPU, copy
 *  cleared states to its memory. since 0.2 */
GUMBEL_API void gumbel_stream_draw_clear(gumbel_stream_draw *draws, int64_t count);

/* gumbel_stream_draw_add(): add one part. Its token replaces the token so far with a probability of
 *  the part's mass divided by the mass of all parts so far.   [FlashSampling, Algorithm B.3]
 *  device       and `stream`, as in gumbel_draw_group()
 *  part         the part's index in the stream, 0..2^30 - 1, different in each call
 *  log_masses   [B], as in gumbel_draw_group()
 *  tokens       [B, S], as in gumbel_draw_group()
 *  draws        [B, S], read and written; on a GPU a row with a slot out of range keeps its states
 *  threads      re-entrant if `draws` differ
 *  returns      as gumbel_draw_group().                                                since 0.2 */
GUMBEL_CALL gumbel_stream_draw_add(gumbel_device *device, void *stream, int32_t part, int64_t batch,
                                   const float *log_masses, const int32_t *tokens,
                                   const gumbel_sampling *sampling, gumbel_stream_draw *draws,
                                   gumbel_error *error);

#ifdef __cplusplus
}
#endif
#endif /* GUMBEL_DIST_H */

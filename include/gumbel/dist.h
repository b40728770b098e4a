/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel_dist: a vocabulary split over ranks, one token.
 *
 * Each of R ranks holds a shard of the head's rows, or of the logits' columns. Every rank makes the
 * same call with its own shard, and every rank gets the answer: the tokens, scores,
 * log-probabilities, kept counts, ranks and lists, bit for bit, that one device with the whole
 * vocabulary gives. Ranks exchange what their shards come to, not their logits:
 *
 *   request                                   exchanges  bytes that a rank sends a row
 *   plain, greedy, samples, log-probabilities 1          48 S
 *     also with scale, soft-cap, bias, masks,
 *     penalties
 *   min-p, top-k, top-p behind top-k; lists   1          16 + 8 C, where nothing cuts 48 S more
 *   top-p of all tokens; ranks of tokens and  2          those, and 16 + 8 S
 *     raw log-probabilities where nothing cuts
 *   a row whose cut C tokens do not tell;     1 or 2     4 V' (1 + raw + S noise)
 *     given tokens or noise                   more
 *
 * C is the largest top_k of the batch's rows, 128 of a row with another cut alone, or num_top, and
 * 14 to 16 more, which tell that no token of equal value is missing: 64 for k = 50, 528 bytes. It
 * ends at 1024. Logits as they are (top_logits, raw log-probabilities) add 4 C, raw ones 48 more. A
 * row that C tokens do not tell, as one of many equal values, goes on with its whole row: nothing
 * is approximate. V' is the largest shard, `raw` 1 where logits as they are count. The first
 * exchange has also 256 bytes by which ranks agree; what does not fit into its frame goes with one
 * exchange more. Where shards meet at other tokens than multiples of 64, log-probabilities of rows
 * that nothing cuts, and raw ones, are served by whole rows. gumbel_group_traffic() counts all of
 * it.
 *
 * What gumbel.h says of memory, strides, CUDA, errors and structs holds here, too.
 *
 * Agreement.  Before anything is drawn, all ranks compare digests of what they were given. Where
 *             one passes other parameters than the rest, or a call that is refused, every rank
 *             gets an error that names the field and the rank, and the group serves on. What
 *             belongs to a shard is not compared: tensors, masks, histories, banned tokens,
 *             biases, lists of tokens that penalties count; nor are hidden states, of which ranks
 *             hold the same.
 * Time-outs.  An exchange ends within the group's time-out. A rank that died, hangs, or made
 *             another call is an error of the call on all others; then the group is spent: each
 *             further call on it returns GUMBEL_ERROR_GROUP at once. Outputs of a call that
 *             returned GUMBEL_ERROR_GROUP are undefined.
 * CUDA.       On a device "cuda:N" plain calls are as the table has them. All others are served by
 *             whole rows, 4 V' bytes a row and rank; but 8 to 1024 rows that min-p, top-k or top-p
 *             cut by 64 tokens a rank, 516 bytes, where these tell a row (without peer memory up to
 *             16 ranks, by a transport that has `aside`, as NCCL's). Which rows they do not tell is
 *             known on the GPUs alone. With peer memory kernels exchange these rows; else a thread
 *             of the group does, which looks every 0.5 ms or sooner whether its GPU asks for any,
 *             while the GPU waits for it. So a graph may be replayed, and no host reads what was
 *             drawn. But until such a call is done no thread may wait in the driver where that
 *             keeps others from launching, as a copy to pageable memory does: gumbel_group_wait()
 *             comes first, or the exchange runs over its time. Given noise, and beside transforms,
 *             scale or soft-cap raw logits and raw log-probabilities, are GUMBEL_ERROR_UNSUPPORTED,
 *             by the field's name. Each rank has a row or more. A call queues its work and its
 *             exchanges, and may be captured; calls of a group are queued on one stream, or on
 *             several that wait for each other. Ranks compare what the host knows of a call, in one
 *             blocking exchange of host memory, where that is not what the call before had; so a
 *             call is made once before it is captured. What device memory holds is not compared. A
 *             call does not wait for other ranks, and so it does not see that one is gone:
 *             gumbel_group_wait() does, and with peer memory each later call. Until then tokens of
 *             such a draw are -1, or undefined without peer memory.
 * Mixed.      Where a rank is on a CPU and another on a GPU, or one on a GPU has neither peer
 *             memory nor a transport of device memory (MPI, an engine's own all-gather), what ranks
 *             say lies in host memory. A rank on a GPU then makes its shard's summaries and rows
 *             there and brings them over; its parameters are brought over, too, and checked as
 *             those of a CPU, its outputs put back. Its calls wait for their stream before and
 *             behind, within the time-out, and cannot be captured; memory of the host is kept for
 *             them in the group. They serve what CPUs serve. From logits all bits are those of one
 *             CPU. Behind heads all ranks have the same answer, by one noise; a token's score is
 *             that of the device which holds it, as a GPU's products are rounded otherwise than a
 *             CPU's.
 * Threads.    One call of a group at a time, on each rank; all ranks make the calls of a group in
 *             the same order. Several groups at once do not disturb each other.
 */
#ifndef GUMBEL_DIST_H
#define GUMBEL_DIST_H

#include <gumbel/drafts.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GUMBEL_RANKS_MOST 65536

/* ----------------------------------------------------------------------------- transports ---- */

/* An all-gather that an engine has: `bytes` from `send` of every rank r go to receive + r * bytes
 * of all ranks. It returns 0 when that is done, and another value where it could not be within
 * timeout_ms milliseconds; then it may have written `why`, of GUMBEL_WHY_BYTES bytes, a sentence
 * that ends in NUL. It must not wait longer, whatever other ranks do. `stream` is the call's. */
#define GUMBEL_WHY_BYTES 128
typedef int (*gumbel_all_gather)(void *context, void *stream, const void *send, void *receive,
                                 size_t bytes, int64_t timeout_ms, char *why);

/* How the ranks of a group reach each other. Makers: gumbel_nccl_transport() below, and
 * gumbel/dist_mpi.h. */
typedef struct gumbel_transport {
    size_t struct_size;
    int32_t rank;                   /* 0..ranks - 1 */
    int32_t ranks;                  /* R, 1..GUMBEL_RANKS_MOST */
    gumbel_all_gather all_gather;   /* of host memory; `stream` is NULL */
    void (*destroy)(void *context); /* called by gumbel_group_close(); may be NULL */
    void *context;                  /* handed to all */
    gumbel_all_gather queue; /* of device memory, queued on `stream`; NULL where there is none. It
                              * does not wait; 0: it is queued */
    /* Likewise: wait for all that is queued on `stream`, timeout_ms at most. Where that is too
     * long, what ranks have not done is given up, and the return is not 0. */
    int (*wait)(void *context, void *stream, int64_t timeout_ms, char *why);
    /* May be NULL: an all-gather of device memory that is done when it returns, 0; `stream` is
     * NULL, and `send` may be its own place in `receive`. A thread of the group's calls it, in the
     * same order on all ranks, while what `queue` has queued waits for it: it goes another way, and
     * waits for no stream of the caller's. */
    gumbel_all_gather aside;
} gumbel_transport;

/* gumbel_nccl_transport(): a transport over an NCCL communicator, on its GPU.
 *  communicator  an ncclComm_t, which stays the caller's and must outlive the group; no other call
 *                may use it while one of the group is under way. NULL: the transport makes its own
 *                of `id`, on `ordinal`. Two more are split off, for exchanges of host memory and
 *                for rows that only GPUs know to be needed: all ranks make the call.
 *  id            [GUMBEL_NCCL_ID_BYTES] of gumbel_nccl_id(), the same on all ranks; NULL with a
 *                communicator, where rank, ranks and ordinal are not read
 *  library       libnccl.so.2 and libcuda.so.1 are opened at run time
 *  waits         60 s at most for all ranks to come and for what NCCL makes, which it does on a
 *                thread of its own. Where time is over this thread is left behind until NCCL lets
 *                it go; a caller's communicator is in its use until then, and is best aborted. An
 *                exchange that runs over its time has the communicator aborted (ncclCommAbort), the
 *                caller's too.
 *  returns       GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_UNSUPPORTED (no NCCL, no driver),
 *                GUMBEL_ERROR_MEMORY, GUMBEL_ERROR_DEVICE.                             since 0.2 */
#define GUMBEL_NCCL_ID_BYTES 128
GUMBEL_CALL gumbel_nccl_transport(void *communicator, const char *id, int32_t rank, int32_t ranks,
                                  int32_t ordinal, gumbel_transport *transport,
                                  gumbel_error *error);

/* Make an id for the ranks of one communicator; one of them makes it, and tells the others.
 *  returns  as gumbel_nccl_transport().                                               since 0.2 */
GUMBEL_CALL gumbel_nccl_id(char id[GUMBEL_NCCL_ID_BYTES], gumbel_error *error);

/* --------------------------------------------------------------------------------- groups ---- */

typedef struct gumbel_group gumbel_group;

/* Ranks of one host, 16 at most, whose GPUs reach each other's memory (NVLink, PCIe) can do without
 * a collective: kernels store what a rank has to say into mailboxes of the others, and take up what
 * they say: 4 * ranks * peer_bytes of device memory a rank. Mailboxes are made with the group, and
 * reached by CUDA's handles for memory of other processes (CUDA IPC), or are an engine's own. */
typedef enum gumbel_peer_memory {
    GUMBEL_PEERS_OFF = 0,
    GUMBEL_PEERS_ALLOW = 1,   /* where all ranks can; else the transport's `queue` */
    GUMBEL_PEERS_REQUIRE = 2, /* where one cannot, it is GUMBEL_ERROR_UNSUPPORTED on all */
} gumbel_peer_memory;
#define GUMBEL_PEERS_MOST 16

typedef struct gumbel_group_options {
    size_t struct_size;
    int64_t first_token; /* global id of this rank's row 0 */
    int64_t rows;        /* rows of its shard, V of its calls; 0: it has none, and takes part. A
                          * mask of such a rank is not read */
    int64_t timeout_ms;  /* of one exchange, 1..2^31; 0: 30,000 */
    size_t frame_bytes;  /* what a call's first exchange carries, 256..2^30; 0: 4096. A plain call
                          * of (frame_bytes - 256) / 48 draws fits into it. Same on all ranks */
    /* On CUDA devices: how device memory is exchanged. The same on all ranks. */
    gumbel_peer_memory peer_memory;
    int32_t reserved;  /* 0 */
    size_t peer_bytes; /* that a rank says in one exchange of peer memory, a multiple of 48,
                              * to 2^30; what is more takes several. 0: 3 MiB */
    void *const *peer_mailboxes; /* [ranks] an engine's own, of gumbel_peer_mailbox_bytes() each,
                              * as this rank's device reaches them, its own at its place; all zero
                              * bytes before any rank opens the group, and left alone until all
                              * have closed it. NULL: the group makes its own */
} gumbel_group_options;

/* Bytes of a mailbox; 0 where an argument is out of range. since 0.2 */
GUMBEL_API size_t gumbel_peer_mailbox_bytes(int32_t ranks, size_t peer_bytes);

/* gumbel_group_open(): make a group, on all ranks at once.
 *  transport  the group owns its context from success on; on an error it stays the caller's
 *  device     of this rank, which must outlive the group. Ranks' devices may differ; bits are one
 *             device's where all have the same bits, as CPUs have.
 *  options    Shards tile a range of tokens without holes, in any order of ranks, of any sizes.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_MEMORY, GUMBEL_ERROR_UNSUPPORTED (the
 *             device, or another version of libgumbel), GUMBEL_ERROR_GROUP (shards do not tile,
 *             ranks disagree, one does not answer): on every rank.                    since 0.2 */
GUMBEL_CALL gumbel_group_open(const gumbel_transport *transport, gumbel_device *device,
                              const gumbel_group_options *options, gumbel_group **group,
                              gumbel_error *error);

/* Free a group and destroy its transport. NULL is allowed. No exchange is made; with peer memory no
 * call of the group is under way any more on ranks of the same process. since 0.2 */
GUMBEL_API void gumbel_group_close(gumbel_group *group);

/* gumbel_group_wait(): wait until all that is queued on `stream` is done, within the group's
 *                      time-out. Where it is not, the group is spent, and no rank's kernels hang.
 *  On a CPU, whose calls are done on return, there is nothing to wait for.
 *  returns  GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_GROUP.                     since 0.2 */
GUMBEL_CALL gumbel_group_wait(gumbel_group *group, void *stream, gumbel_error *error);

/* What a group has sent from this rank since it was opened; replays of graphs are not seen. */
typedef struct gumbel_traffic {
    size_t struct_size;
    int64_t calls;        /* that came to an exchange */
    int64_t exchanges;    /* all-gathers, that of gumbel_group_open() included */
    int64_t bytes;        /* that this rank handed to them */
    int64_t rows;         /* drawn, or scored */
    int64_t rows_by_rows; /* of these, rows whose logits were gathered */
} gumbel_traffic;

/* Writes at most traffic->struct_size bytes.
 *  returns  GUMBEL_OK, GUMBEL_ERROR_ARGUMENT.                                         since 0.2 */
GUMBEL_CALL gumbel_group_traffic(const gumbel_group *group, gumbel_traffic *traffic);

/* ---------------------------------------------------------------------------------- calls ---- */

/* gumbel_group_workspace_size(): as gumbel_workspace_size(), of this rank's part of a call.
 *  returns  GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_UNSUPPORTED.                since 0.2 */
GUMBEL_CALL gumbel_group_workspace_size(const gumbel_group *group, const gumbel_head *head,
                                        const gumbel_logits *logits,
                                        const gumbel_sampling *sampling,
                                        const gumbel_output *output, size_t *bytes,
                                        gumbel_error *error);

/* gumbel_group_sample(): gumbel_sample() of the whole vocabulary.             [Lemma 4.9]
 *  head       this rank's shard: first_token and weight.rows are those of the group's options; a
 *             rank without rows passes a weight without rows. vocab_size is of the whole
 *             vocabulary, 0 its end: a vocabulary padded to the group has it less.
 *  sampling   the same on all ranks, but for what belongs to a shard: see above. Lists of tokens
 *             may be whole or the shard's alone; `allowed` is whole. A mask and a history have
 *             the shape that gumbel_sample() of the shard asks for, and only the shard's bits and
 *             counts are read. Noise is the shard's, [B, S, V]. Given tokens are of the whole.
 *  output     every rank has it whole; all ranks ask for the same.
 *  workspace  gumbel_group_workspace_size() bytes; else as gumbel_sample()
 *  returns    as gumbel_sample(), and GUMBEL_ERROR_GROUP.                              since 0.2 */
GUMBEL_CALL gumbel_group_sample(gumbel_group *group, void *stream, const gumbel_head *head,
                                const gumbel_sampling *sampling, const gumbel_output *output,
                                void *workspace, size_t workspace_bytes, gumbel_error *error);

/* gumbel_group_sample_logits(): the same from this rank's columns of the logits. since 0.2 */
GUMBEL_CALL gumbel_group_sample_logits(gumbel_group *group, void *stream,
                                       const gumbel_logits *logits, const gumbel_sampling *sampling,
                                       const gumbel_output *output, void *workspace,
                                       size_t workspace_bytes, gumbel_error *error);

/* gumbel_group_verify(): gumbel_verify() of the whole vocabulary, by GUMBEL_RULE_COUPLED. All ranks
 *  pass the same draft, which is compared; other rules with a draft's distribution are
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

/* gumbel_group_verify_workspace_size(): of either. since 0.2 */
GUMBEL_CALL gumbel_group_verify_workspace_size(const gumbel_group *group, const gumbel_head *head,
                                               const gumbel_logits *logits,
                                               const gumbel_sampling *sampling,
                                               const gumbel_draft *draft,
                                               const gumbel_verified *verified, size_t *bytes,
                                               gumbel_error *error);

/* ------------------------------------------------------- groups whose draws are not ours ---- */

/* The paper's grouped draws, for parts of a vocabulary (ranks, chunks) whose samplers are black
 * boxes: of each part the log-mass, ln sum exp(z), and a token that it has drawn of itself are
 * known. A part is drawn by its log-mass, and its token taken. Tokens have the law of one draw from
 * all, but are not the tokens that gumbel_sample() draws: noise is of the parts, in domains of its
 * own. What parts draw must be independent of each other and of these domains. Both calls take of
 * `sampling` seed, position, slots, num_samples and first_sample. On a GPU each is one launch,
 * queued and capturable, and gives the host's bits. */

/* gumbel_draw_group(): draw a part of many, and take its token.   [FlashSampling, Algorithms B.2
 *                      and B.4]
 *  device       NULL or a CPU: all is in host memory; a GPU: all but the structs is in its memory
 *  stream       as in gumbel_sample(); NULL without a GPU
 *  parts        1..GUMBEL_PARTS_MOST
 *  log_masses   [parts, B], as ranks gather them; -inf of a part that is empty
 *  tokens       [parts, B, S] what each part drew; not read of an empty part
 *  drawn        [B, S] the token; -1 of a row that is not GUMBEL_ROW_OK
 *  which        [B, S] the part; may be NULL
 *  lse          [B] ln of the whole mass; may be NULL
 *  status       [B] a gumbel_row_status: a NaN or +inf among the masses, or no mass; on a GPU a bad
 *               slot, too; may be NULL
 *  threads      re-entrant
 *  returns      GUMBEL_OK, GUMBEL_ERROR_ARGUMENT; on a GPU also GUMBEL_ERROR_UNSUPPORTED (B * S
 *               is 2^31 or more) and GUMBEL_ERROR_DEVICE.                              since 0.2 */
GUMBEL_CALL gumbel_draw_group(gumbel_device *device, void *stream, int32_t parts, int64_t batch,
                              const float *log_masses, const int32_t *tokens,
                              const gumbel_sampling *sampling, int32_t *drawn, int32_t *which,
                              float *lse, int32_t *status, gumbel_error *error);

/* What a stream of parts has come to, of one row and sample. Plain data; all zero is no state. */
typedef struct gumbel_stream_draw {
    double log_mass; /* of the parts so far */
    int32_t token;   /* -1: none yet */
    uint32_t flags;  /* bit 0: a NaN was seen, bit 1: a +inf */
} gumbel_stream_draw;

/* Make `count` of them, in host memory, empty. On a GPU copies of such do. since 0.2 */
GUMBEL_API void gumbel_stream_draw_clear(gumbel_stream_draw *draws, int64_t count);

/* gumbel_stream_draw_add(): one part more: its token replaces the one so far with chance its mass
 *                           over all mass.                       [FlashSampling, Algorithm B.3]
 *  device       and stream as above
 *  part         its number in the stream, 0..2^30 - 1, another one in each call
 *  log_masses   [B]; tokens [B, S], as above
 *  draws        [B, S], read and written; on a GPU those of a row with a bad slot stay
 *  threads      re-entrant where draws differ
 *  returns      as gumbel_draw_group().                                                since 0.2 */
GUMBEL_CALL gumbel_stream_draw_add(gumbel_device *device, void *stream, int32_t part, int64_t batch,
                                   const float *log_masses, const int32_t *tokens,
                                   const gumbel_sampling *sampling, gumbel_stream_draw *draws,
                                   gumbel_error *error);

#ifdef __cplusplus
}
#endif
#endif /* GUMBEL_DIST_H */

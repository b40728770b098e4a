/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of functions by which the public entry points call a backend. Entry points validate
 * arguments; backends assert that they are valid. If the host cannot read a backend's memory, row
 * parameters and token lists reach the backend unchecked.
 *
 * problem->features holds one bit for each feature that a call uses beyond plain sampling. If
 * `supports` lacks a bit, the entry points return an error that names its field, so a new bit
 * reaches a backend only after the backend's table lists it.
 */
#ifndef GUMBEL_CORE_BACKEND_H
#define GUMBEL_CORE_BACKEND_H

#include "core/ranks/host_collective.h"
#include "core/problem.h"
#include "core/rungs/rung.h"
#include "gumbel/screen.h"
#include "maths/screen_bound.h"

typedef struct gumbel_verification gumbel_verification; /* drafts/draft_rows.h */
typedef struct gumbel_proposal gumbel_proposal;         /* drafts/proposal.h */
typedef struct gumbel_recent_call gumbel_recent_call;   /* core/recent_row.h */
typedef struct gumbel_lists_call gumbel_lists_call;
typedef struct gumbel_watermark_call gumbel_watermark_call; /* drafts/watermark_rows.h */

/* Arguments of finish(): summaries, and the outputs or summaries that they are merged into. */
typedef struct gumbel_finish_call {
    const gumbel_summary *summaries; /* [parts, batch, num_samples] */
    int32_t parts;
    int64_t batch;
    int32_t num_samples;
    gumbel_summary *merged;      /* [batch, num_samples]; NULL: outputs are written instead */
    const gumbel_output *output; /* all fields of this version */
} gumbel_finish_call;

/* Rows [B, V] that a call writes: row b starts at element b * stride. */
typedef struct gumbel_row_array {
    void *data;
    gumbel_dtype dtype;
    int64_t stride; /* >= V */
} gumbel_row_array;

/* Arguments of draw_group(): parts of a vocabulary, one of which is drawn by its log-mass
 * (gumbel/dist.h); or one part that is added to a streamed draw. */
typedef struct gumbel_parts_call {
    const gumbel_problem *problem;    /* batch, stream, sampling with its domain */
    int32_t parts;                    /* number of parts; with `draws` the part's index */
    const float *log_masses;          /* [parts, B] */
    const int32_t *tokens;            /* [parts, B, S] */
    int32_t *drawn, *which;           /* [B, S]; `which` may be NULL */
    float *lse;                       /* [B] or NULL */
    int32_t *status;                  /* [B] or NULL */
    struct gumbel_stream_draw *draws; /* [B, S] states of a streamed draw; or NULL */
} gumbel_parts_call;

/* A draw from rows that are sharded over ranks, by the top GUMBEL_RANK_TOP tokens of each shard. */
typedef struct gumbel_top64_call {
    const gumbel_problem *rows;  /* this rank's shard, without edits: a head, or y as logits */
    const gumbel_problem *whole; /* the whole vocabulary; its features are truncation, ranks of
                                  * tokens and kept counts */
    const gumbel_output *output; /* of `whole` */
    /* This rank's candidates: [B] row status, [B, GUMBEL_RANK_TOP] ids, -1 after the last, and
     * [B, GUMBEL_RANK_TOP] values. */
    uint32_t *candidates;
    /* [B, V] at `stride`, as store_edited() writes them: logits that may win, all logits of an
     * unresolved row, -inf elsewhere. */
    float *logits;
    int64_t stride;
    void *workspace;
    int32_t *unresolved; /* [B + 1]: 1 for a row that the candidates do not determine; then a 0 */
} gumbel_top64_call;

/* Operations of devices on which ranks draw. Each queues its work on a stream, unless its
 * comment begins with "Synchronous". */
typedef struct gumbel_rank_calls {
    /* Writes y, the value of z before the temperature, to rows [B, V] at `stride`, an even number.
     * The features are GUMBEL_FEATURE_TRANSFORMS only. Padding tokens are not written. batch > 0;
     * the workspace is that of summaries, and of a head's product. */
    gumbel_status (*store_edited)(gumbel_device *device, const gumbel_problem *problem, float *rows,
                                  int64_t stride, void *workspace, gumbel_error *error);
    /* Synchronous: creates or frees the request block of host collectives, at its host address
     * `here` and its device address `there`. */
    gumbel_status (*create_host_collective)(gumbel_device *device, gumbel_host_collective **here,
                                            gumbel_host_collective **there, gumbel_error *error);
    void (*free_host_collective)(gumbel_device *device, gumbel_host_collective *here);
    /* Copies this rank's chosen rows, if there are any, to its place in rows->gathered, then
     * requests the host collective and waits for it. */
    gumbel_status (*request_rows)(gumbel_device *device, void *stream,
                                  const gumbel_gathered_rows *rows, gumbel_error *error);
    /* Scatters gathered rows into whole rows. */
    gumbel_status (*scatter_rows)(gumbel_device *device, void *stream,
                                  const gumbel_gathered_rows *rows, gumbel_error *error);
    /* Synchronous: creates this rank's peer buffer, for peers->words from each of peers->ranks,
     * unless buffers[rank] is set already, and the buffer's handle. */
    gumbel_status (*create_peers)(gumbel_device *device, gumbel_peers *peers,
                                  gumbel_peer_handle *handle, gumbel_error *error);
    /* Synchronous: maps the buffers of all other ranks by their handles. */
    gumbel_status (*connect_peers)(gumbel_device *device, gumbel_peers *peers,
                                   const gumbel_peer_handle *handles, gumbel_error *error);
    /* Synchronous: unmaps these buffers, and frees this rank's buffer if the group owns it. Accepts
     * partly created peers. */
    void (*release_peers)(gumbel_device *device, gumbel_peers *peers);
    /* Synchronous: sets *done to whether all work queued on the stream is complete. */
    gumbel_status (*poll_stream)(gumbel_device *device, void *stream, int *done,
                                 gumbel_error *error);
    /* Exchanges the summaries of a draw with peers, merges those of all ranks, and writes the
     * results as finish() does. */
    gumbel_status (*exchange_summaries)(gumbel_device *device, void *stream,
                                        const gumbel_peers *peers, const gumbel_finish_call *call,
                                        gumbel_error *error);
    /* Exchanges rows with peers. */
    gumbel_status (*exchange_rows)(gumbel_device *device, void *stream, const gumbel_peers *peers,
                                   const gumbel_peer_rows *rows, gumbel_error *error);
    /* Bytes of workspace of find_top64(). */
    gumbel_status (*top64_size)(const gumbel_device *device, const gumbel_problem *rows,
                                size_t *bytes, gumbel_error *error);
    /* Writes this rank's candidates. */
    gumbel_status (*find_top64)(gumbel_device *device, const gumbel_top64_call *call,
                                gumbel_error *error);
    /* After find_top64(): draws from the candidates of all ranks. The candidates of rank r begin at
     * word r * stride. */
    gumbel_status (*draw_top64)(gumbel_device *device, const gumbel_top64_call *call,
                                const uint32_t *candidates, int64_t stride, int32_t ranks,
                                gumbel_error *error);
    /* find_top64() and draw_top64() in one launch, by an exchange with peers of
     * batch * GUMBEL_RANK_WORDS words; batch <= GUMBEL_PEERS_TOP64_ROWS. */
    gumbel_status (*exchange_top64)(gumbel_device *device, const gumbel_top64_call *call,
                                    const gumbel_peers *peers, gumbel_error *error);
    /* sample() for the unresolved rows, usually none; *sampling.live_rows is their number. The
     * workspace is that of sample(). */
    gumbel_status (*draw_unresolved)(gumbel_device *device, const gumbel_problem *problem,
                                     const gumbel_output *output, void *workspace,
                                     gumbel_error *error);
    /* Scatters the first *count rows of outputs [B, S]: row i of `from` to row list[i] of `to`. */
    gumbel_status (*scatter_outputs)(gumbel_device *device, void *stream, const gumbel_output *from,
                                     const gumbel_output *to, int64_t batch, int32_t num_samples,
                                     const int32_t *list, const int32_t *count,
                                     gumbel_error *error);
    /* Draws one of several parts, or adds a part to a streamed draw. batch > 0. */
    gumbel_status (*draw_group)(gumbel_device *device, const gumbel_parts_call *call,
                                gumbel_error *error);
} gumbel_rank_calls;

typedef struct gumbel_backend {
    /* Returns one past the last id that is not padding, in the whole vocabulary if the problem
     * holds a shard. NULL: that is problem->end_token. */
    int64_t (*vocabulary_end)(const gumbel_device *device, const gumbel_problem *problem);
    uint32_t supports; /* gumbel_feature bits */
    void (*close)(gumbel_device *device);
    void (*describe)(const gumbel_device *device, gumbel_device_info *info);
    int host_memory; /* the host can read all data */
    /* Bytes of workspace sufficient for every call within the limits; SIZE_MAX on overflow. */
    size_t (*max_workspace_size)(const gumbel_device *device, const gumbel_limits *limits);
    /* Plans a call: its rungs and workspace. `purpose` holds the required capabilities that do not
     * follow from the problem: 0 for sample(), else SUMMARIES, ROWS or PRODUCT. batch > 0. */
    gumbel_status (*plan)(const gumbel_device *device, const gumbel_problem *problem,
                          uint64_t purpose, gumbel_plan *plan, gumbel_error *error);
    /* Describes the rungs that a draw of this problem uses, and why the rungs before them in the
     * table do not serve it. */
    gumbel_status (*explain)(const gumbel_device *device, const gumbel_problem *problem,
                             gumbel_text *text, gumbel_error *error);

    /* Functions with a `plan` argument run that plan, which was made for the same problem and
     * purpose. If it is NULL, they plan the call themselves. */

    /* Fills summaries [B, S]; without with_mass, their masses are 0. The features are
     * GUMBEL_FEATURE_TRANSFORMS only. Purpose SUMMARIES. */
    gumbel_status (*draw_partial)(gumbel_device *device, const gumbel_problem *problem,
                                  const gumbel_plan *plan, gumbel_summary *summaries,
                                  void *workspace, gumbel_error *error);
    /* Draws, and fills the outputs. */
    gumbel_status (*sample)(gumbel_device *device, const gumbel_problem *problem,
                            const gumbel_plan *plan, const gumbel_output *output, void *workspace,
                            gumbel_error *error);
    /* Writes z to `processed`, -inf for tokens that cannot be drawn. The problem has logits; on a
     * CPU it may have a head instead, if the rows are float32. batch > 0; `processed` may be the
     * logits. Purpose ROWS. */
    gumbel_status (*store_processed)(gumbel_device *device, const gumbel_problem *problem,
                                     const gumbel_plan *plan, gumbel_row_array processed,
                                     void *workspace, gumbel_error *error);
    /* Writes softmax(z) to float32 rows, as store_processed(). */
    gumbel_status (*store_probabilities)(gumbel_device *device, const gumbel_problem *problem,
                                         const gumbel_plan *plan, gumbel_row_array probabilities,
                                         void *workspace, gumbel_error *error);
    /* Computes every tile of logits and discards it, to time the product. Purpose PRODUCT. */
    gumbel_status (*multiply)(gumbel_device *device, const gumbel_problem *problem,
                              const gumbel_plan *plan, void *workspace, gumbel_error *error);

    /* Writes unmodified logits l, including a head's bias, to rows [B, V] at `stride`, an even
     * number. The problem has no features, and a head; on a CPU it may have logits instead.
     * batch > 0. */
    gumbel_status (*store_logits)(gumbel_device *device, const gumbel_problem *problem, float *rows,
                                  int64_t stride, void *workspace, gumbel_error *error);
    /* Clears rows [0, batch) of a history, then counts the tokens of the lists. batch > 0. */
    gumbel_status (*history_start)(gumbel_device *device, void *stream,
                                   const gumbel_history *history, int64_t batch,
                                   const gumbel_slots *slots, const gumbel_token_lists *prompts,
                                   const gumbel_token_lists *outputs, gumbel_error *error);
    /* Counts more tokens. batch > 0. */
    gumbel_status (*history_update)(gumbel_device *device, void *stream,
                                    const gumbel_history *history, int64_t batch,
                                    const gumbel_slots *slots, const int32_t *tokens,
                                    int64_t token_stride, const int32_t *counts,
                                    gumbel_error *error);
    /* Clears rings of recent tokens, then appends the tokens of the lists. batch > 0. */
    gumbel_status (*recent_start)(gumbel_device *device, void *stream,
                                  const gumbel_recent_call *call, gumbel_error *error);
    /* Appends tokens to rings. batch > 0. */
    gumbel_status (*recent_append)(gumbel_device *device, void *stream,
                                   const gumbel_recent_call *call, gumbel_error *error);
    /* Writes the lists that follow from rings. batch > 0. */
    gumbel_status (*make_lists)(gumbel_device *device, void *stream, const gumbel_lists_call *call,
                                gumbel_error *error);
    /* Writes the seeds and positions of watermarked draws. NULL if host_memory is 1. rows > 0. */
    gumbel_status (*watermark)(gumbel_device *device, void *stream,
                               const gumbel_watermark_call *call, gumbel_error *error);
    /* Fills noise [B, S, V]. The problem has a batch, a token range and sampling, no tensors. */
    gumbel_status (*store_noise)(gumbel_device *device, const gumbel_problem *problem, float *noise,
                                 int64_t noise_stride, gumbel_error *error);
    /* Fills noise [B, S, V] of the tokens sampling.token_ids [V]; first_token is 0. `mask`, unless
     * NULL, receives a bit for each id, set if it is a token's. batch > 0. */
    gumbel_status (*store_table_noise)(gumbel_device *device, const gumbel_problem *problem,
                                       float *noise, int64_t noise_stride, uint32_t *mask,
                                       gumbel_error *error);
    /* Replaces rows of the weights by their token_ids in outputs that hold tokens. batch > 0. */
    gumbel_status (*map_token_ids)(gumbel_device *device, const gumbel_problem *problem,
                                   const gumbel_output *output, gumbel_error *error);
    /* Ends a decode step: stores its tokens and increments positions. batch > 0. */
    gumbel_status (*advance)(gumbel_device *device, void *stream, const gumbel_step *step,
                             gumbel_error *error);
    /* Updates row parameters after a draw, with explicit strides. batch > 0. */
    gumbel_status (*update_rules)(gumbel_device *device, void *stream,
                                  const gumbel_rule_updates *updates, gumbel_error *error);
    /* Merges summaries [parts, B, S] in device memory into outputs or into summaries [B, S]. NULL
     * if host_memory is 1. batch > 0. */
    gumbel_status (*finish)(gumbel_device *device, void *stream, const gumbel_finish_call *call,
                            gumbel_error *error);
    /* Before a verification's draw: writes the request, slot and position of each row. `proposal`
     * is the distribution that drew the drafts; NULL for COUPLED. The function is NULL if
     * host_memory is 1. rows > 0; requests > 0. */
    gumbel_status (*expand_drafts)(gumbel_device *device, void *stream,
                                   const gumbel_verification *verification,
                                   const gumbel_proposal *proposal, gumbel_error *error);
    /* After the draw: walks each request's nodes and writes the emitted tokens. Else as
     * expand_drafts(). */
    gumbel_status (*accept_drafts)(gumbel_device *device, void *stream,
                                   const gumbel_verification *verification,
                                   const gumbel_proposal *proposal, gumbel_error *error);
    /* Bytes of workspace of accept_drafts() for REJECTION and BLOCK. NULL if host_memory is 1.
     * rows > 0. */
    size_t (*rule_workspace_size)(const gumbel_device *device,
                                  const gumbel_verification *verification,
                                  const gumbel_proposal *proposal);
    const gumbel_rank_calls *ranks; /* NULL if host_memory is 1 */
    gumbel_screen_layout screen_layout;
    /* Writes the screen of the problem's weights [V, D] to `screen`; NULL: not supported. */
    gumbel_status (*screen_prepare)(gumbel_device *device, const gumbel_problem *problem,
                                    const gumbel_screen_options *options, void *screen,
                                    gumbel_error *error);
    /* Returns an error if a bound of problem->screen does not hold for the current weights. */
    gumbel_status (*screen_verify)(gumbel_device *device, const gumbel_problem *problem,
                                   gumbel_error *error);
} gumbel_backend;

/* Whether y, the value of z before the temperature, may differ from the logits. */
static inline int gumbel_problem_edits(const gumbel_problem *p)
{
    return (p->features & GUMBEL_FEATURE_TRANSFORMS) || p->scale != 1.0f || p->soft_cap > 0.0f;
}

/* Asserts the invariants of a problem whose memory backends read. */
#ifdef GUMBEL_ASSERTIONS
void gumbel_problem_assert(const gumbel_problem *problem);
#else
static inline void gumbel_problem_assert(const gumbel_problem *problem) { (void)problem; }
#endif

/* The first member of every backend's device struct. */
struct gumbel_device {
    const gumbel_backend *backend;
    int32_t capability; /* CUDA: 10 * major + minor; CPU: 0 */
};

#endif

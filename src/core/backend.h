/* SPDX-License-Identifier: Apache-2.0
 *
 * What a backend offers to the public entry points. They validate; a backend may assert.
 *
 * A backend whose memory the host cannot read has its row parameters and lists unchecked.
 *
 * What a call asks for beyond plain sampling are the bits of problem->request. A call with a bit
 * that `serves` lacks is refused by the field's name before a backend sees it, so a new bit there
 * is all that a backend needs to begin to offer a thing. `more` are needs (rung.h) that a problem
 * does not show: what the call is made for.
 */
#ifndef GUMBEL_CORE_BACKEND_H
#define GUMBEL_CORE_BACKEND_H

#include "core/ranks/host_collective.h"
#include "core/problem.h"
#include "core/rungs/rung.h"
#include "maths/screen_bound.h"

typedef struct gumbel_verification gumbel_verification; /* drafts/draft_rows.h */
typedef struct gumbel_proposal gumbel_proposal;         /* drafts/proposal.h */

/* Summaries and where what they come to goes. */
typedef struct gumbel_finish_call {
    const gumbel_summary *summaries; /* [parts, batch, num_samples] */
    int32_t parts;
    int64_t batch;
    int32_t num_samples;
    gumbel_summary *merged;      /* [batch, num_samples]: merged into; NULL: outputs are written */
    const gumbel_output *output; /* in full length */
} gumbel_finish_call;

/* Parts of a vocabulary drawn by their log-masses (gumbel/dist.h), or one added to a stream. */
typedef struct gumbel_parts_call {
    const gumbel_problem *problem; /* batch, stream, sampling with its domain */
    int32_t parts;                 /* how many; in a stream its number */
    const float *log_masses;       /* [parts, B] */
    const int32_t *tokens;         /* [parts, B, S] */
    int32_t *drawn, *which;        /* [B, S] */
    float *lse;                    /* [B], as the next one may be NULL, and `which` */
    int32_t *status;
    struct gumbel_stream_draw *draws; /* [B, S] of a stream, or NULL */
} gumbel_parts_call;

/* Rows that are split over ranks, and drawn from by the first tokens of each rank's part. */
typedef struct gumbel_listing {
    const gumbel_problem *rows;  /* this rank's, which nothing edits: a head, or y as logits */
    const gumbel_problem *whole; /* of a request truncation, ranks and kept counts */
    const gumbel_output *output; /* of the whole */
    /* What this rank says: [B] is a row's status, behind it are [B, GUMBEL_RANK_TOP] ids, -1
     * where there are none, and as many values. */
    uint32_t *said;
    /* [B, V] at `stride`, where a head's logits are stored, as edit() would: of a row what can
     * matter to it, and of one that is left all, -inf for what cannot. */
    float *own;
    int64_t stride;
    void *workspace;
    int32_t *left; /* [B + 1]: 1 where lists do not tell a row, and 0 follows */
} gumbel_listing;

/* What a device has that ranks on GPUs draw by. Each queues its work, unless it says otherwise. */
typedef struct gumbel_rank_calls {
    /* Fill rows [B, V] at `stride`, an even one, with y: what z is before the temperature. Of a
     * request only GUMBEL_REQUEST_TRANSFORMS. Tokens that do not count are not written. batch > 0;
     * the workspace is that of a part, and of a head's product. */
    gumbel_status (*edit)(gumbel_device *device, const gumbel_problem *problem, float *rows,
                          int64_t stride, void *workspace, gumbel_error *error);
    /* At once: make what errands are asked for by, as the host and as the device reach it; free
     * it. */
    gumbel_status (*make_errand)(gumbel_device *device, gumbel_host_collective **here,
                                 gumbel_host_collective **there, gumbel_error *error);
    void (*free_errand)(gumbel_device *device, gumbel_host_collective *here);
    /* Put this rank's chosen rows, where there are any, in its place among those gathered, and wait
     * until the errand is done; lay gathered rows side by side. */
    gumbel_status (*ask)(gumbel_device *device, void *stream, const gumbel_gathered_rows *rows,
                         gumbel_error *error);
    gumbel_status (*lay)(gumbel_device *device, void *stream, const gumbel_gathered_rows *rows,
                         gumbel_error *error);
    /* At once: make a mailbox for peers->words of each of peers->ranks, unless mailboxes[rank] is
     * there, and a card that says where it is; reach those of all other ranks by their cards; let
     * them go and free what is owned, of peers that may be half made. */
    gumbel_status (*make)(gumbel_device *device, gumbel_peers *peers, gumbel_peer_handle *card,
                          gumbel_error *error);
    gumbel_status (*join)(gumbel_device *device, gumbel_peers *peers,
                          const gumbel_peer_handle *cards, gumbel_error *error);
    void (*part)(gumbel_device *device, gumbel_peers *peers);
    /* At once: whether all that is queued on a stream is done, 0 or 1. */
    gumbel_status (*look)(gumbel_device *device, void *stream, int *done, gumbel_error *error);
    /* Exchange with peers: a draw's summaries, merged over all ranks and written out as finish()
     * does; rows. */
    gumbel_status (*exchange)(gumbel_device *device, void *stream, const gumbel_peers *peers,
                              const gumbel_finish_call *call, gumbel_error *error);
    gumbel_status (*exchange_rows)(gumbel_device *device, void *stream, const gumbel_peers *peers,
                                   const gumbel_peer_rows *rows, gumbel_error *error);
    /* Bytes of workspace that lists take. */
    gumbel_status (*list_size)(const gumbel_device *device, const gumbel_problem *rows,
                               size_t *bytes, gumbel_error *error);
    /* Say the first tokens of each row. */
    gumbel_status (*list)(gumbel_device *device, const gumbel_listing *l, gumbel_error *error);
    /* Behind that, draw by what all ranks said, each at `stride` words. */
    gumbel_status (*draw_listed)(gumbel_device *device, const gumbel_listing *l,
                                 const uint32_t *said, int64_t stride, int32_t ranks,
                                 gumbel_error *error);
    /* Both where peers tell each other what they say, batch * GUMBEL_RANK_WORDS words of a mailbox;
     * batch <= GUMBEL_PEERS_TOP64_ROWS. */
    gumbel_status (*tell_listed)(gumbel_device *device, const gumbel_listing *l,
                                 const gumbel_peers *peers, gumbel_error *error);
    /* sample() of rows of which there mostly are none: sampling.live_rows says how many. It takes
     * no more of the workspace. */
    gumbel_status (*draw_left)(gumbel_device *device, const gumbel_problem *problem,
                               const gumbel_output *output, void *workspace, gumbel_error *error);
    /* Put the first *count rows of outputs [B, S] in their places: row i in that of list[i]. */
    gumbel_status (*spread)(gumbel_device *device, void *stream, const gumbel_output *from,
                            const gumbel_output *to, int64_t batch, int32_t num_samples,
                            const int32_t *list, const int32_t *count, gumbel_error *error);
    /* batch > 0. */
    gumbel_status (*draw_parts)(gumbel_device *device, const gumbel_parts_call *call,
                                gumbel_error *error);
} gumbel_rank_calls;

typedef struct gumbel_backend {
    /* The token behind the last that counts, of the whole vocabulary where a problem has a part of
     * it; NULL: the problem's own. */
    int64_t (*whole_end)(const gumbel_device *device, const gumbel_problem *problem);
    uint32_t serves; /* gumbel_request bits */
    void (*close)(gumbel_device *device);
    void (*describe)(const gumbel_device *device, gumbel_device_info *info);
    int host_memory; /* all data are the host's to read */
    /* Bytes of workspace that any call within the limits has enough with; SIZE_MAX where they
     * cannot be counted. */
    size_t (*most)(const gumbel_device *device, const gumbel_limits *limits);
    /* Bytes that a call on this problem takes, batch > 0; SIZE_MAX as above. */
    gumbel_status (*call_size)(const gumbel_device *device, const gumbel_problem *problem,
                               uint32_t more, size_t *bytes, gumbel_error *error);
    /* What would serve a draw of this problem, and why not the rungs before. */
    gumbel_status (*explain)(const gumbel_device *device, const gumbel_problem *problem,
                             gumbel_text *text, gumbel_error *error);
    /* Fill summaries [B, S]; without masses, with_mass 0, these are those of no token. Of a request
     * only GUMBEL_REQUEST_TRANSFORMS. */
    gumbel_status (*partial)(gumbel_device *device, const gumbel_problem *problem,
                             gumbel_summary *summaries, void *workspace, gumbel_error *error);
    /* Fill the outputs. */
    gumbel_status (*sample)(gumbel_device *device, const gumbel_problem *problem,
                            const gumbel_output *output, void *workspace, gumbel_error *error);
    /* Fill processed [B, V] at `stride`: z, -inf for what cannot be drawn. From logits, on a CPU
     * from a head, too; batch > 0; `processed` may be the logits. */
    gumbel_status (*process)(gumbel_device *device, const gumbel_problem *problem, float *processed,
                             int64_t stride, void *workspace, gumbel_error *error);
    /* Fill rows [B, V] at `stride`, an even one, with logits l, a head's bias in them, of a problem
     * that asks for nothing: of a head, on a CPU of logits, too. batch > 0. */
    gumbel_status (*store)(gumbel_device *device, const gumbel_problem *problem, float *rows,
                           int64_t stride, void *workspace, gumbel_error *error);
    /* Fill probabilities [B, V] likewise. */
    gumbel_status (*softmax)(gumbel_device *device, const gumbel_problem *problem,
                             float *probabilities, int64_t stride, void *workspace,
                             gumbel_error *error);
    /* Forget rows [0, batch) and count lists; count more tokens of a row. batch > 0. */
    gumbel_status (*history_start)(gumbel_device *device, void *stream,
                                   const gumbel_history *history, int64_t batch,
                                   const gumbel_slots *slots, const gumbel_token_lists *prompts,
                                   const gumbel_token_lists *outputs, gumbel_error *error);
    gumbel_status (*history_update)(gumbel_device *device, void *stream,
                                    const gumbel_history *history, int64_t batch,
                                    const gumbel_slots *slots, const int32_t *tokens,
                                    int64_t token_stride, const int32_t *counts,
                                    gumbel_error *error);
    /* Fill noise [B, S, V] of a problem that has no tensors, only a batch and a range. */
    gumbel_status (*noise)(gumbel_device *device, const gumbel_problem *problem, float *noise,
                           int64_t noise_stride, gumbel_error *error);
    /* Store tokens and move positions on. batch > 0. */
    gumbel_status (*advance)(gumbel_device *device, void *stream, const gumbel_step *step,
                             gumbel_error *error);
    /* Merge summaries [parts, B, S] in the device's memory into outputs, or into summaries [B, S],
     * one of the two; NULL where host_memory is 1. batch > 0. */
    gumbel_status (*finish)(gumbel_device *device, void *stream, const gumbel_finish_call *call,
                            gumbel_error *error);
    /* Write what each row of a verification is, before its draw; behind it, walk and write what is
     * emitted. `by` is what drew the drafts, NULL for COUPLED. NULL where host_memory is 1.
     * rows > 0; requests > 0. */
    gumbel_status (*expand_drafts)(gumbel_device *device, void *stream,
                                   const gumbel_verification *verification,
                                   const gumbel_proposal *by, gumbel_error *error);
    gumbel_status (*accept_drafts)(gumbel_device *device, void *stream,
                                   const gumbel_verification *verification,
                                   const gumbel_proposal *by, gumbel_error *error);
    /* Bytes of workspace in which accept_drafts() weighs the drafts of a rule but COUPLED.
     * rows > 0; NULL where host_memory is 1. */
    size_t (*weighing_size)(const gumbel_device *device, const gumbel_verification *verification,
                            const gumbel_proposal *by);
    const gumbel_rank_calls *ranks; /* NULL where host_memory is 1 */
    /* Make the screen of the problem's weights [V, D] in `screen`; NULL: none serves here. */
    gumbel_screen_layout screen_layout;
    gumbel_status (*screen_prepare)(gumbel_device *device, const gumbel_problem *problem,
                                    void *screen, gumbel_error *error);
    /* Refuse problem->screen where a bound does not hold of the weights as they are now. */
    gumbel_status (*screen_verify)(gumbel_device *device, const gumbel_problem *problem,
                                   gumbel_error *error);
    /* Compute every tile of logits and drop it. */
    gumbel_status (*multiply)(gumbel_device *device, const gumbel_problem *problem, void *workspace,
                              gumbel_error *error);
} gumbel_backend;

/* Whether y, what z is before the temperature, may differ from the logits. */
static inline int gumbel_problem_edits(const gumbel_problem *p)
{
    return (p->request & GUMBEL_REQUEST_TRANSFORMS) || p->scale != 1.0f || p->soft_cap > 0.0f;
}

/* Assert what backends rely on in a problem whose memory they read. */
#ifdef GUMBEL_ASSERTIONS
void gumbel_problem_assert(const gumbel_problem *problem);
#else
static inline void gumbel_problem_assert(const gumbel_problem *problem) { (void)problem; }
#endif

/* Every backend's device starts with this. */
struct gumbel_device {
    const gumbel_backend *backend;
};

#endif

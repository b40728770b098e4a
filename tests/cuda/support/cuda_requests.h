/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests in device memory, and their draws on the GPU.
 */
#ifndef TESTS_CUDA_REQUESTS_H
#define TESTS_CUDA_REQUESTS_H

#include "cuda_support.h"
#include "gpu_copies.h"
#include "gumbel/programs.h"
#include "requests.h"

/* A request whose arguments are in device memory. */
typedef struct gpu_request {
    request req;
    gumbel_programs programs; /* if the request has programs */
    gpu_copies copies;
} gpu_request;

gpu_request *gpu_request_make(const request *host);
void gpu_request_free(gpu_request *generated);

/* An output in device memory with the members of `like`; copied to host memory; freed. */
gumbel_output gpu_output_make(const outcome *like);
void gpu_output_fetch(const gumbel_output *out, outcome *into);
void gpu_output_free(const gumbel_output *out);

/* Draw from the head or from the logits into host memory, with a workspace of exactly the reported
 * size. Outputs and workspace are poisoned before. Ends the program on an error. */
void gpu_request_draw(const gpu_request *generated, int fused, outcome *into);

/* gpu_request_draw() from the head, on a device opened with these options.rungs. */
void gpu_request_draw_by(const gpu_request *generated, const char *rungs, outcome *into);

/* Whether gumbel_explain() names `rung`, such as "draw: hopper:", for a draw from the head with the
 * outputs of `like`. Ends the program on an error. */
int gpu_request_uses(const gpu_request *generated, const outcome *like, const char *rung);

/* A request captured in a graph, drawn from the head or from the logits. Each replay reads the
 * request's arguments again. `like` has the requested outputs. */
typedef struct gpu_replay {
    gumbel_output out;
    void *workspace;
    gpu_graph graph;
} gpu_replay;

gpu_replay gpu_request_capture(gpu_request *generated, int fused, const outcome *like);
/* Replay the graph, and copy its outputs to host memory. */
void gpu_replay_draw(const gpu_replay *captured, outcome *into);
void gpu_replay_free(const gpu_replay *captured);

/* gumbel_process_logits() into host memory, [B, V]. */
void gpu_request_process(const gpu_request *generated, float *processed);

/* gumbel_process_logits_into() the request's logits, in place; `rows` receives the tensor. */
void gpu_request_process_in_place(const gpu_request *generated, void *rows);

/* CHECK that the GPU's outcome has the CPU's bits, except log-normalisers and log-probabilities,
 * which are within two ulps: the logarithm is another library's. */
int compare_request(const outcome *host, const outcome *device, const char *what);

/* Draws on both devices and compares, also the processed logits, apart and in place, unless drawn
 * from the head. Frees the request. */
void compare_requests(request *req, int fused);

#endif

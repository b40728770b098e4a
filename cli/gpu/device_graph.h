/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls on an NVIDIA GPU captured into a graph, and the time of its replays by the GPU's own clock:
 * nobody pays for the host's code. device_driver_use() comes first.
 */
#ifndef GUMBEL_CLI_DEVICE_GRAPH_H
#define GUMBEL_CLI_DEVICE_GRAPH_H

/* Queue one call on `stream`. */
typedef void (*device_call)(void *argument, void *stream);

struct device_graph;

/* A graph of several equal calls, on a stream of its own. `call` is called once outside the capture
 * first, so that what is set up by a first call does not go into it. Release it with
 * device_graph_free(). */
struct device_graph *device_graph_new(device_call call, void *argument);
void device_graph_free(struct device_graph *graph);

/* Seconds of one call: replay the graph once, wait, and divide. */
double device_graph_time(struct device_graph *graph);

/* The best of `replays` replays of a graph that is made for this alone. */
double device_call_best(device_call call, void *argument, int replays);

#endif

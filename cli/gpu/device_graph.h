/* SPDX-License-Identifier: Apache-2.0
 *
 * Captures calls on an NVIDIA GPU into a graph, and times its replays by GPU events, without host
 * code. Call device_driver_use() first.
 */
#ifndef GUMBEL_CLI_DEVICE_GRAPH_H
#define GUMBEL_CLI_DEVICE_GRAPH_H

/* Queues one call on `stream`. */
typedef void (*device_call)(void *argument, void *stream);

struct device_graph;

/* A graph of several equal calls, with its own stream. `call` is called once before the capture, to
 * exclude first-call setup. Release it with device_graph_free(). */
struct device_graph *device_graph_new(device_call call, void *argument);
void device_graph_free(struct device_graph *graph);

/* Replays the graph once; returns the seconds of one call. */
double device_graph_time(struct device_graph *graph);

/* The shortest time of `replays` replays of a temporary graph. */
double measure_device_call(device_call call, void *argument, int replays);

#endif

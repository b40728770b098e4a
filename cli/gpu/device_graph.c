/* SPDX-License-Identifier: Apache-2.0 */
#include "device_graph.h"

#include <stdlib.h>

#include "device_driver.h"
#include "options.h"

enum {
    CALLS = 5,               /* a graph: a launch costs a few microseconds, once for all of them */
    STREAM_NON_BLOCKING = 1, /* CU_STREAM_NON_BLOCKING */
    CAPTURE_THREAD_LOCAL = 1 /* CU_STREAM_CAPTURE_MODE_THREAD_LOCAL */
};

struct device_graph {
    void *stream, *executable, *begin, *end;
};

struct device_graph *device_graph_new(device_call call, void *argument)
{
    struct device_graph *made = require_memory("graph", 1, sizeof *made);
    void *graph = NULL;

    require_driver(device_driver.stream_new(&made->stream, STREAM_NON_BLOCKING), "stream");
    call(argument, made->stream);
    require_driver(device_driver.stream_wait(made->stream), "a first call");
    require_driver(device_driver.capture_begin(made->stream, CAPTURE_THREAD_LOCAL), "capture");
    for (int i = 0; i < CALLS; i++) {
        call(argument, made->stream);
    }
    require_driver(device_driver.capture_end(made->stream, &graph), "capture");
    require_driver(device_driver.graph_instantiate(&made->executable, graph, 0), "graph");
    device_driver.graph_free(graph);
    require_driver(device_driver.event_new(&made->begin, 0), "event");
    require_driver(device_driver.event_new(&made->end, 0), "event");
    return made;
}

void device_graph_free(struct device_graph *graph)
{
    if (graph) {
        device_driver.event_free(graph->begin);
        device_driver.event_free(graph->end);
        device_driver.executable_free(graph->executable);
        device_driver.stream_free(graph->stream);
        free(graph);
    }
}

double device_graph_time(struct device_graph *graph)
{
    float milliseconds = 0;

    require_driver(device_driver.event_record(graph->begin, graph->stream), "timing");
    require_driver(device_driver.graph_launch(graph->executable, graph->stream), "timing");
    require_driver(device_driver.event_record(graph->end, graph->stream), "timing");
    require_driver(device_driver.event_wait(graph->end), "timing");
    require_driver(device_driver.event_elapsed(&milliseconds, graph->begin, graph->end), "timing");
    return (double)milliseconds * 1e-3 / CALLS;
}

double device_call_best(device_call call, void *argument, int replays)
{
    struct device_graph *graph = device_graph_new(call, argument);
    double best = device_graph_time(graph);

    for (int replay = 1; replay < replays; replay++) {
        const double seconds = device_graph_time(graph);

        best = seconds < best ? seconds : best;
    }
    device_graph_free(graph);
    return best;
}

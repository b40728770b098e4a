# SPDX-License-Identifier: Apache-2.0
"""Two processes of torch.distributed, for tests of what they draw together."""

import multiprocessing
import os
import queue
import signal
import tempfile

LIMIT = 240  # seconds; spawned processes import torch on a busy machine


def _run(body, rank, store, results, backend, arguments):
    import torch

    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank,
                                         world_size=2)
    try:
        found = body(rank, *arguments)
    except Exception as problem:
        found = f"{type(problem).__name__}: {problem}"
    results.put((rank, found))
    results.close()
    results.join_thread()
    # A rank that is late or dead must not hold up the other's end.
    os._exit(0)


def die():
    """End this process as a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)


def on_two_ranks(body, *arguments, answers=2, backend="gloo"):
    """body(rank, *arguments) in two processes: what each returned, or its error, by rank."""
    context = multiprocessing.get_context("spawn")
    results, found = context.Queue(), {}
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(
                target=_run,
                args=(body, rank, f"{folder}/store", results, backend, arguments),
                daemon=True,
            )
            for rank in (0, 1)
        ]
        for process in ranks:
            process.start()
        try:
            for _ in range(answers):
                rank, value = results.get(timeout=LIMIT)
                found[rank] = value
        except queue.Empty:
            raise AssertionError(f"no answer in {LIMIT} s but of {sorted(found)}") from None
        finally:
            for process in ranks:
                if answers == 2 and len(found) == 2:
                    process.join(30)
                process.kill()
                process.join()
    return found

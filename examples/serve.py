# /// script
# requires-python = ">=3.11"
# dependencies = ["neurontools[runtime]", "starlette>=0.46", "uvicorn>=0.34"]
# ///
"""Serves a small traced model over HTTP on four NeuronCores, and sends requests to it.

    neuron-run --cores 0-3 examples/serve.py serve --port 8100
    python examples/serve.py load --port 8100 --requests 10000 --clients 32

`POST /classify` takes a JSON list of 64 numbers, and answers with the class and the size of the batch. Requests that
arrive within two milliseconds are executed as one batch. `neuron-top` shows their rate, wait and latency.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from torch import Tensor

    from neurontools.runtime import InferenceReport, RequestTimer

CORES = 4
MODEL_NAME = "Classifier"  # that of the class: the runtime counts executions under this name
FEATURES, CLASSES = 64, 10
BATCH_SIZE = 16
BATCH_WAIT_SECONDS = 0.002
ANSWER_SECONDS = 60.0


class Batcher:
    """Collects requests into batches. One task for each core executes them, so that all cores work at once."""

    def __init__(self, model: Any, report: InferenceReport) -> None:
        self._model, self._report = model, report
        self._collecting = asyncio.Lock()
        self._waiting: asyncio.Queue[tuple[Tensor, RequestTimer, asyncio.Future[tuple[int, int]]]] = asyncio.Queue()

    async def classify(self, features: Tensor) -> tuple[int, int]:
        """Returns the class of one row of features, and the size of the batch in which it was executed."""
        answer: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        with self._report.request(MODEL_NAME) as timer:
            self._waiting.put_nowait((features, timer, answer))
            return await answer

    async def execute_batches(self) -> None:
        """Executes batches until it is cancelled."""
        while True:
            async with self._collecting:  # otherwise the tasks would share the waiting requests in small batches
                batch = [await self._waiting.get()]
                await asyncio.sleep(BATCH_WAIT_SECONDS)
                while len(batch) < BATCH_SIZE and not self._waiting.empty():
                    batch.append(self._waiting.get_nowait())
            for _, timer, _ in batch:
                timer.begin()
            try:
                classes = await asyncio.to_thread(self._execute, [features for features, _, _ in batch])
            except Exception as error:
                classes = [error] * len(batch)
            for found, (_, _, answer) in zip(classes, batch, strict=True):
                if answer.done():  # the client has gone
                    continue
                if isinstance(found, Exception):
                    answer.set_exception(found)
                else:
                    answer.set_result((found, len(batch)))

    def _execute(self, rows: list[Tensor]) -> list[Any]:
        import torch

        with torch.no_grad():
            classes: list[Any] = self._model(torch.stack(rows)).argmax(1).tolist()
        return classes


def build_application() -> Starlette:
    """Traces the model, loads it onto all cores, and returns the application that serves it."""
    import torch
    import torch_neuronx
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from neurontools.runtime import InferenceReport

    class Classifier(torch.nn.Sequential):
        pass

    torch.manual_seed(0)
    torch.set_num_threads(1)  # the batches are small, and run on all cores at the same time
    model = Classifier(torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, CLASSES)).eval()
    traced = torch_neuronx.trace(model, torch.rand(BATCH_SIZE, FEATURES))
    torch_neuronx.dynamic_batch(traced)  # smaller batches are padded
    torch_neuronx.experimental.set_multicore(traced)  # executions take the cores in turn

    @asynccontextmanager
    async def run_batcher(application: Starlette) -> AsyncIterator[None]:
        with InferenceReport.start() as report:
            application.state.batcher = batcher = Batcher(traced, report)
            tasks = [asyncio.create_task(batcher.execute_batches()) for _ in range(CORES)]
            yield
            for task in tasks:
                task.cancel()

    async def classify(request: Request) -> JSONResponse:
        try:
            features = torch.tensor(json.loads(await request.body()), dtype=torch.float32)
        except (ValueError, TypeError):
            features = torch.empty(0)
        if features.shape != (FEATURES,):
            return JSONResponse({"error": f"send a JSON list of {FEATURES} numbers"}, 400)
        found, batch_size = await request.app.state.batcher.classify(features)
        return JSONResponse({"class": found, "batch_size": batch_size})

    return Starlette(routes=[Route("/classify", classify, methods=["POST"])], lifespan=run_batcher)


async def send_requests(host: str, port: int, requests: int, clients: int) -> dict[str, Any]:
    """Sends requests over one connection for each client, and returns counts, rate and latencies in milliseconds."""
    latencies: list[float] = []
    batch_sizes: list[int] = []
    left = iter(range(requests))

    async def run_client() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        for number in left:
            body = json.dumps([(number * 31 + index * 17) % 97 / 97 for index in range(FEATURES)]).encode()
            began = time.perf_counter()
            writer.write(b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), ANSWER_SECONDS)
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            answer = json.loads(await reader.readexactly(length))
            if head.split()[1] == b"200":
                latencies.append(time.perf_counter() - began)
                batch_sizes.append(answer["batch_size"])
        writer.close()

    began = time.perf_counter()
    ends = await asyncio.gather(*(run_client() for _ in range(clients)), return_exceptions=True)
    seconds = time.perf_counter() - began
    lost = [str(end) or type(end).__name__ for end in ends if isinstance(end, BaseException)]
    latencies.sort()
    found: dict[str, Any] = {
        "answered": len(latencies),
        "failed": requests - len(latencies),
        "seconds": round(seconds, 2),
    }
    if latencies:
        found["requests_per_second"] = round(len(latencies) / seconds, 1)
        found["mean_batch_size"] = round(sum(batch_sizes) / len(batch_sizes), 1)
        for percent in (50, 90, 99, 100):
            position = min(len(latencies) - 1, len(latencies) * percent // 100)
            found[f"p{percent}_ms"] = round(latencies[position] * 1000, 2)
    if lost:
        found["lost_connections"] = lost[:3]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (("serve", "serve the model"), ("load", "send requests and print latencies as JSON")):
        command = commands.add_parser(name, help=about)
        command.add_argument("--host", default="127.0.0.1")
        command.add_argument("--port", type=int, default=8100)
    command.add_argument("--requests", type=int, default=10_000)
    command.add_argument("--clients", type=int, default=32)
    options = parser.parse_args()
    if options.command == "serve":
        import uvicorn

        uvicorn.run(build_application(), host=options.host, port=options.port, log_level="warning")
        return 0
    found = asyncio.run(send_requests(options.host, options.port, options.requests, options.clients))
    print(json.dumps(found))
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""A client of the Model Context Protocol, the SDK's own, in an environment of its own: `make mcp` installs it.

As a program, it reads a JSON object from standard input: the server, and the calls of tools. It prints what it got.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv/mcp/bin/python"
PACKAGES = next(iter((ROOT / ".venv/mcp").glob("lib/python3*/site-packages")), None)
SERVER = (sys.executable, "-m", "neurontools.cli.mcp.command")


def server_environment() -> dict[str, str]:
    """The environment in which our server finds the SDK."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGES), *filter(None, sys.path)])}


@dataclass(frozen=True)
class Session:
    """What a client saw."""

    tools: list[dict[str, Any]]
    prompts: list[dict[str, Any]]
    messages: dict[str, str]  # texts of the prompts, with "it's" for every argument
    resources: dict[str, list[str]]  # documents of the resources
    answers: list[tuple[bool, list[str]]]  # of the calls: whether it is an error, and the texts


def talk(server: dict[str, Any], *calls: tuple[str, dict[str, Any]]) -> Session:
    """Connects to a server, lists what it has and calls its tools. `server` has a command, or a URL."""
    given = json.dumps({"server": server, "calls": calls})
    done = subprocess.run([str(PYTHON), __file__], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return Session(**json.loads(done.stdout))


def over_streams(*options: str) -> dict[str, Any]:
    """A server that the client starts."""
    return {"command": SERVER[0], "args": [*SERVER[1:], *options], "env": server_environment()}


async def _talk(server: dict[str, Any], calls: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    import ssl

    import httpx2
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client

    if "command" in server:
        transport = stdio_client(StdioServerParameters(**server))
    else:
        verify = ssl.create_default_context(cafile=server["ca"]) if "ca" in server else True
        http = httpx2.AsyncClient(headers=server.get("headers"), verify=verify)
        transport = streamable_http_client(server["url"], http_client=http)
    async with Client(transport, mode=server.get("mode", "auto")) if "mode" in server else Client(transport) as client:
        tools = (await client.list_tools()).tools
        prompts = (await client.list_prompts()).prompts
        messages = {}
        for each in prompts:
            prompt = await client.get_prompt(each.name, {argument.name: "it's" for argument in each.arguments})
            messages[each.name] = prompt.messages[0].content.text
        resources = {}
        for each in (await client.list_resources()).resources:
            resources[each.uri] = [part.text for part in (await client.read_resource(each.uri)).contents]
        answers = []
        for name, arguments in calls:
            result = await client.call_tool(name, arguments)
            answers.append((result.is_error, [part.text for part in result.content]))
    return {
        "tools": [tool.model_dump(by_alias=True, mode="json") for tool in tools],
        "prompts": [prompt.model_dump(by_alias=True, mode="json") for prompt in prompts],
        "messages": messages,
        "resources": resources,
        "answers": answers,
    }


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    print(json.dumps(asyncio.run(_talk(asked["server"], asked["calls"]))))

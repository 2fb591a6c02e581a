"""The MCP server: the tools and guides on the official SDK, over standard streams and HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import anyio
import mcp_types as types
from anyio import to_thread
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError

from neurontools.cli.mcp import guides, tools
from neurontools.cli.mcp.host_access import HostAccess
from neurontools.cli.serving import Listening, SignalFuture
from neurontools.net.http_server import HttpLimits
from neurontools.net.http_site import HttpPage, HttpRequest, HttpResponse, refusal
from neurontools.util.errors import UserError
from neurontools.util.terminal import error_excerpt, escape_controls
from neurontools.util.version import __version__

_log = logging.getLogger(__name__)

HTTP_PATH = "/mcp"
MOST_REQUEST_BYTES = 2**16
"""Size limit of one request. The largest valid arguments have a few kilobytes."""

_MOST_RUNNING, _MOST_WAITING = 2, 64  # calls of tools
_STDIN = 0
_READ_ONLY = types.ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)


class ToolServer:
    """Answers requests of the protocol. Belongs to the event loop's thread; tools run in at most two other threads."""

    def __init__(self, access: HostAccess) -> None:
        self._access = access
        self._limiter = anyio.CapacityLimiter(_MOST_RUNNING)
        self._unanswered = 0
        self.server: Server[Any] = Server(
            "neurontools",
            version=__version__,
            title="neurontools",
            instructions=guides.INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_list_resources=self._list_resources,
            on_read_resource=self._read_resource,
        )

    async def _list_tools(self, _context: Any, _parameters: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    title=tool.title,
                    description=tool.text,
                    input_schema=tool.input_schema,
                    annotations=_READ_ONLY,
                )
                for tool in tools.TOOLS
            ]
        )

    async def _call_tool(self, _context: Any, parameters: types.CallToolRequestParams) -> types.CallToolResult:
        tool = tools.BY_NAME.get(parameters.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"no tool {error_excerpt(parameters.name)}; tools/list has the names")
        try:
            answer = await self._run(partial(tools.answer, tool, self._access, parameters.arguments or {}))
        except UserError as error:
            text = escape_controls(str(error))
            return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)
        texts = [answer.document, answer.note] if answer.note else [answer.document]
        return types.CallToolResult(content=[types.TextContent(type="text", text=text) for text in texts])

    async def _list_prompts(self, _context: Any, _parameters: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(
                    name=guide.name,
                    title=guide.title,
                    description=guide.text,
                    arguments=[
                        types.PromptArgument(name=name, description=text, required=False)
                        for name, text in guide.parameters.items()
                    ],
                )
                for guide in guides.GUIDES
            ]
        )

    async def _get_prompt(self, _context: Any, parameters: types.GetPromptRequestParams) -> types.GetPromptResult:
        guide = guides.BY_NAME.get(parameters.name)
        if guide is None:
            raise MCPError(types.INVALID_PARAMS, f"no prompt {error_excerpt(parameters.name)}")
        text = guide.message(parameters.arguments or {})
        message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))
        return types.GetPromptResult(description=guide.text, messages=[message])

    async def _list_resources(self, _context: Any, _parameters: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=guide.uri,
                    name=guide.name,
                    title=guide.title,
                    description=guide.text,
                    mime_type="application/json",
                )
                for guide in guides.GUIDES
            ]
        )

    async def _read_resource(
        self, _context: Any, parameters: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(parameters.uri)
        guide = guides.BY_URI.get(uri)
        if guide is None:
            raise MCPError(types.INVALID_PARAMS, f"no resource {error_excerpt(uri)}; resources/list has the names")
        contents: list[types.TextResourceContents | types.BlobResourceContents] = []
        for name, arguments in guide.fleet_tools if self._access.fleet else guide.tools:
            try:
                answer = await self._run(partial(tools.answer, tools.BY_NAME[name], self._access, arguments))
            except UserError as error:
                raise MCPError(types.INTERNAL_ERROR, escape_controls(str(error))) from error
            contents.append(types.TextResourceContents(uri=uri, mime_type="application/json", text=answer.document))
        return types.ReadResourceResult(contents=contents)

    async def _run(self, call: Callable[[], tools.Answer]) -> tools.Answer:
        """Runs a call in a thread. Raises UserError if it fails, or if too many calls wait."""
        if self._unanswered >= _MOST_RUNNING + _MOST_WAITING:
            raise UserError(f"busy: {_MOST_WAITING} other calls are waiting; try again in a second")
        self._unanswered += 1
        try:
            answer: tools.Answer = await to_thread.run_sync(call, limiter=self._limiter, abandon_on_cancel=True)
            return answer
        except UserError:
            raise
        except Exception as error:
            _log.exception("a tool failed")
            raise UserError(f"internal error: {type(error).__name__}; the server's log has the traceback") from error
        finally:
            self._unanswered -= 1


async def serve_streams(access: HostAccess, stop: SignalFuture) -> int:
    """Serves one client over standard input and output, until input ends (returns 0) or a signal arrives."""
    server = ToolServer(access).server

    async def serve() -> None:
        async with stdio_server(stdin=_StandardInput()) as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())

    serving = asyncio.ensure_future(serve())
    endings: list[asyncio.Future[Any]] = [serving, stop.future]
    await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():  # the SDK would wait for the end of input
        serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    return 0


class _StandardInput:
    """Yields the lines of standard input. A line above the size limit becomes an invalid one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(maxsize=1)
        self._thread = threading.Thread(target=self._read, name="stdin", daemon=True)
        self._thread.start()

    async def __aiter__(self) -> AsyncIterator[str]:
        while (line := await self._lines.get()) is not None:
            yield line

    def _read(self) -> None:
        """Reads lines in a thread of its own, because a file or a terminal as input blocks."""
        pending, is_too_long = b"", False
        try:
            while data := os.read(_STDIN, MOST_REQUEST_BYTES):
                *lines, rest = (pending + data).split(b"\n")
                for line in lines:
                    self._put(
                        "too long" if is_too_long or len(line) > MOST_REQUEST_BYTES else line.decode("utf-8", "replace")
                    )
                    is_too_long = False
                is_too_long = is_too_long or len(rest) > MOST_REQUEST_BYTES
                pending = b"" if is_too_long else rest
        except OSError as error:
            _log.warning("standard input: %s", error.strerror)
        self._put(None)

    def _put(self, line: str | None) -> None:
        """Waits until the line is taken, so that unread requests stay in the pipe."""
        with contextlib.suppress(RuntimeError, asyncio.CancelledError):  # the loop is closed
            asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()


async def serve_http(access: HostAccess, listening: Listening, stop: SignalFuture) -> int:
    """Serves clients over streamable HTTP, one response for each request, until a signal arrives."""
    manager = StreamableHTTPSessionManager(
        ToolServer(access).server, json_response=True, stateless=True, max_request_body_size=MOST_REQUEST_BYTES
    )

    def page(request: HttpRequest) -> HttpResponse:
        length = request.header("content-length")
        if not length.isdecimal():
            return refusal(411, "give Content-Length")
        if len(length) > 9 or int(length) > MOST_REQUEST_BYTES:
            return refusal(413, f"the request is larger than {MOST_REQUEST_BYTES >> 10} KiB")
        return HttpResponse(_exchange(manager, request))

    def elsewhere(_request: HttpRequest) -> HttpResponse:
        return refusal(404, f"the protocol is at {HTTP_PATH}", close=False)

    async with manager.run():
        return await listening.serve(
            {HTTP_PATH: HttpPage(page, methods=("POST",))},
            HttpPage(elsewhere, methods=("GET", "HEAD", "POST", "DELETE")),
            HTTP_PATH,
            stop,
            HttpLimits(body_bytes=MOST_REQUEST_BYTES),
        )


async def _exchange(manager: StreamableHTTPSessionManager, request: HttpRequest) -> HttpResponse:
    """Passes a request to the SDK, which is an ASGI application, and returns its response."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode("latin-1"),
        "query_string": request.query.encode("latin-1"),
        "root_path": "",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()],
        "client": None,
        "server": None,
    }
    incoming = [{"type": "http.request", "body": request.body, "more_body": False}]
    status, headers, body = 500, [], bytearray()

    async def receive() -> dict[str, Any]:
        if not incoming:
            await anyio.sleep_forever()
        return incoming.pop()

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], message.get("headers", [])
        body.extend(message.get("body", b""))

    try:
        await manager.handle_request(scope, receive, send)
    except Exception:
        _log.exception("a request failed")
        return refusal(500, "the request failed; the log says why")
    sent = {bytes(name).lower(): bytes(value).decode("latin-1") for name, value in headers}
    return HttpResponse(bytes(body), sent.get(b"content-type", "application/json"), status)

"""Streams of OpenAI's API from the client's side, as cheap as they can be: the client shares the cores.

HTTP/1.0, so that an answer is plain lines until the connection ends, from any server.
"""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

from servers import Server


@dataclass(frozen=True)
class Answer:
    """One stream: seconds to the first text and to the end, tokens as the server counts them, and the text."""

    first_seconds: float
    seconds: float
    prompt_tokens: int
    tokens: int
    text: str


async def ask(server: Server, messages: list[dict[str, str]], max_tokens: int) -> Answer:
    """Stream one chat, greedily."""
    asked = {"model": server.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    body = json.dumps(asked | {"stream_options": {"include_usage": True}}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.0\r\nHost: {server.host}:{server.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(head.encode() + body)
    first, pieces, usage = 0.0, [], {}
    async for line in reader:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        if text := said(event):
            first = first or time.perf_counter() - started
            pieces.append(text)
    writer.close()
    seconds = time.perf_counter() - started
    if not usage or not first:
        raise SystemExit(f"{server.name} ended a stream early: {''.join(pieces)[-200:]!r}")
    return Answer(first, seconds, usage["prompt_tokens"], usage["completion_tokens"], "".join(pieces))


def said(event: dict[str, Any]) -> str:
    """Return the text that a chunk carries."""
    if "error" in event:
        raise SystemExit(f"a stream ended with an error: {event['error']}")
    return event["choices"][0]["delta"].get("content") or "" if event["choices"] else ""


def ask_together(server: Server, chats: list[list[dict[str, str]]], max_tokens: int) -> tuple[list[Answer], float]:
    """Stream these chats at once; return the answers, and the seconds until the last one ended."""

    async def together() -> list[Answer]:
        return await asyncio.gather(*(ask(server, chat, max_tokens) for chat in chats))

    started = time.perf_counter()
    answers = asyncio.run(together())
    return answers, time.perf_counter() - started

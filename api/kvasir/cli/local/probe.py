"""Ask a process whether it is ready."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

TIMEOUT = 2.0


async def is_ready(url: str) -> bool:
    """Return True if a GET of `url` is answered 200 within TIMEOUT seconds.

    Only the status line is read, so no HTTP client is needed: loading one would take a good part
    of the time in which a small model starts.
    """
    parts = urlsplit(url)
    request = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                writer.write(request.encode())
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, ValueError):  # not listening yet, too slow, or no HTTP
        return False
    return status.split(b" ")[1:2] == [b"200"]

"""A collector on a real socket, that reads OTLP as collectors do."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Take OTLP over HTTP and keep what was sent."""

    def __init__(self) -> None:
        collector = self
        self.status = 200
        self.requests: list[tuple[str, Any, bytes]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers["content-encoding"] == "gzip":
                    body = gzip.decompress(body)
                collector.requests.append((self.path, self.headers, body))
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def resources(self) -> list[Any]:
        """ResourceSpans of all requests."""
        return [
            each
            for _, _, body in self.requests
            for each in ExportTraceServiceRequest.FromString(body).resource_spans
        ]

    @property
    def spans(self) -> list[Any]:
        return [span for r in self.resources for scope in r.scope_spans for span in scope.spans]

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector():
    collector = Collector()
    yield collector
    collector.stop()


@pytest.fixture
def values():
    """values(attributes): as a dictionary."""

    def read(attributes: Any) -> dict[str, Any]:
        return {
            each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes
        }

    return read

"""A plain HTTP reverse proxy in front of an API server, where a test decides what goes wrong.

Responsible for forwarding requests (watches as a stream), for carrying out the faults a test asked for, and for remembering what
passed. It knows HTTP and JSON, nothing of what the requests mean.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, final
from urllib.parse import parse_qsl, urlsplit

from .backend import ADMIN, Backend, Target, parse_path, verb_of
from .kube import Json

_UPSTREAM_TIMEOUT = 120.0
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host", "te", "upgrade", "accept-encoding"})


@dataclass
class ProxyRequest:
    """A request that came to the proxy; ``code`` is what the client was answered, None where it got no answer."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes
    time: float
    code: int | None = None

    @property
    def json(self) -> Any:
        """The body, None if there is none or it is no JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def verb(self) -> str:
        """The Kubernetes verb."""
        return verb_of(self.method, self.path, self.query)

    @property
    def target(self) -> Target:
        """Where the path points."""
        return parse_path(self.path)


Stream = Callable[[Iterator[Json]], Iterable[Json]]


@dataclass
class Rule:
    """One thing that goes wrong, or happens by the way; ``seen`` has every request that matched, ``fired`` those it applied to."""

    verb: str
    path: re.Pattern[str]
    when: Callable[[ProxyRequest], bool] | None
    nth: int | None
    times: int | None
    before: Callable[[ProxyRequest], object] | None
    after: Callable[[ProxyRequest], object] | None
    reply: tuple[int, Any] | None
    rewrite: Callable[[int, Any], tuple[int, Any]] | None
    stream: Stream | None
    drop: Literal["before", "after"] | None
    silent: bool
    delay: float
    seen: list[ProxyRequest] = field(default_factory=list)
    fired: list[ProxyRequest] = field(default_factory=list)
    _happened: threading.Event = field(default_factory=threading.Event)

    def wait(self, timeout: float = 30.0) -> ProxyRequest:
        """Wait until the rule has been applied once; the request it was applied to."""
        if not self._happened.wait(timeout):
            raise TimeoutError(f"no {self.verb} {self.path.pattern} within {timeout} s; {len(self.seen)} came close")
        return self.fired[0]

    def take(self, request: ProxyRequest) -> bool:
        """Whether the rule applies to this request; counts it."""
        if self.verb not in ("*", request.method, request.verb) or not self.path.search(request.path):
            return False
        if self.when and not self.when(request):
            return False
        self.seen.append(request)
        if self.nth is not None and len(self.seen) != self.nth:
            return False
        if self.times is not None and len(self.fired) >= self.times:
            return False
        self.fired.append(request)
        self._happened.set()
        return True


@final
class FaultProxy:
    """A context manager; ``url`` is where it listens.

    Requests go out with the credentials of ``user``; an Authorization header of the client is passed on instead where the server
    knows tokens.
    """

    def __init__(self, backend: Backend, user: str = ADMIN) -> None:
        self.requests: list[ProxyRequest] = []
        self.rules: list[Rule] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._backend = backend
        self._tls = backend.tls(user)
        self._token = backend.identity(user).token
        where = urlsplit(backend.url)
        self._host, self._port, self._secure = where.hostname or "127.0.0.1", where.port or 443, where.scheme == "https"
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="faultproxy")

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.close_connections()
        self._server.server_close()
        self._thread.join()

    def on(
        self,
        verb: str,
        path: str,
        *,
        when: Callable[[ProxyRequest], bool] | None = None,
        nth: int | None = None,
        times: int | None = None,
        before: Callable[[ProxyRequest], object] | None = None,
        after: Callable[[ProxyRequest], object] | None = None,
        reply: tuple[int, Any] | None = None,
        rewrite: Callable[[int, Any], tuple[int, Any]] | None = None,
        stream: Stream | None = None,
        drop: Literal["before", "after"] | None = None,
        silent: bool = False,
        delay: float = 0.0,
    ) -> Rule:
        """Add a rule; the first one that takes a request decides.

        ``verb`` is an HTTP method, a Kubernetes verb (``get``, ``list``, ``watch``, …) or ``*``, ``path`` a regular expression that is
        searched for. ``nth`` applies it to that matching request alone (from 1), ``times`` to at most so many.

        ``before`` and ``after`` are called before the request is forwarded and between the server's answer and the client's.
        ``delay`` in seconds comes before everything. ``reply`` answers without forwarding: a code, and a JSON body, bytes or None for
        a Status of that code. ``rewrite`` maps code and JSON body of the answer. ``stream`` maps the events of a watch: cut it,
        hold it, put an ERROR in. ``drop`` closes the connection instead of forwarding (before) or instead of answering (after).
        ``silent`` forwards nothing and never answers; a watch gets its headers and then no event.
        """
        rule = Rule(verb, re.compile(path), when, nth, times, before, after, reply, rewrite, stream, drop, silent, delay)
        with self._lock:
            self.rules.append(rule)
        return rule

    def clear(self) -> None:
        """Forget all rules: everything is forwarded again."""
        with self._lock:
            self.rules.clear()

    def find(self, request: ProxyRequest) -> Rule | None:
        """Record the request; the rule that applies to it."""
        with self._lock:
            self.requests.append(request)
            return next((rule for rule in self.rules if rule.take(request)), None)

    def open(self, request: ProxyRequest, target: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send the request to the server; the connection, to be closed by the caller, and the answer."""
        connection: http.client.HTTPConnection
        if self._secure:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=_UPSTREAM_TIMEOUT, context=self._tls)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=_UPSTREAM_TIMEOUT)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        if self._token and "authorization" not in {name.lower() for name in headers}:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(request.method, target, request.body or None, headers)
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 64

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        """End what is still open, so that no handler thread waits for a client."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is what this proxy is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: ``FaultProxy.requests`` is the log."""

    def do_GET(self) -> None:
        """Forward, or do what a rule says."""
        request = self._read()
        proxy = self.server.proxy
        rule = proxy.find(request)
        if rule is None:
            return self._forward(request, None)
        if rule.delay:
            proxy.closing.wait(rule.delay)
        if rule.before:
            rule.before(request)
        if rule.drop == "before":
            return self._drop()
        if rule.silent:
            return self._be_silent(request)
        if rule.reply:
            return self._answer(request, rule.reply[0], rule.reply[1])
        return self._forward(request, rule)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = do_GET

    def _read(self) -> ProxyRequest:
        where = urlsplit(self.path)
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = b"".join(self._chunks())
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = dict(parse_qsl(where.query, keep_blank_values=True))
        return ProxyRequest(self.command, where.path, query, dict(self.headers.items()), body, time.time())

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _forward(self, request: ProxyRequest, rule: Rule | None) -> None:
        connection, answer = self.server.proxy.open(request, self.path)
        with contextlib.closing(connection):
            if request.verb == "watch" and answer.status == 200:
                return self._forward_watch(request, connection, answer, rule)
            body = answer.read()
        code = answer.status
        if rule and rule.after:
            rule.after(request)
        if rule and rule.drop == "after":
            return self._drop()
        if rule and rule.rewrite:
            code, changed = rule.rewrite(code, json.loads(body))
            body = json.dumps(changed).encode()
        self._send(request, code, body, answer.headers.items())

    def _forward_watch(
        self, request: ProxyRequest, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, rule: Rule | None
    ) -> None:
        request.code = answer.status
        self._begin_stream()
        lines = _read_lines(self.connection, connection, answer, self.server.proxy.closing)
        if rule and rule.stream:
            for event in rule.stream(json.loads(line) for line in lines):
                self._chunk(json.dumps(event).encode() + b"\n")
        else:
            for line in lines:
                self._chunk(line)
        if rule and rule.after:
            rule.after(request)
        if rule and rule.drop == "after":
            return self._drop()
        self.wfile.write(b"0\r\n\r\n")

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _be_silent(self, request: ProxyRequest) -> None:
        if request.verb == "watch":
            request.code = 200
            self._begin_stream()
        self.connection.settimeout(0.1)
        while not self.server.proxy.closing.is_set():
            with contextlib.suppress(TimeoutError):
                if not self.connection.recv(1):
                    break
        self._drop()

    def _answer(self, request: ProxyRequest, code: int, body: Any) -> None:
        if body is None:
            body = {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Failure",
                "message": f"the test's answer: {http.client.responses.get(code, code)}",
                "reason": http.client.responses.get(code, "").replace(" ", ""),
                "code": code,
            }
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._send(request, code, data, [("Content-Type", "application/json")])

    def _send(self, request: ProxyRequest, code: int, body: bytes, headers: Iterable[tuple[str, str]]) -> None:
        request.code = code
        self.send_response(code)
        for name, value in headers:
            if name.lower() not in _HOP_BY_HOP | {"date", "server"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if request.method != "HEAD":
            self.wfile.write(body)

    def _drop(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def _read_lines(
    client: socket.socket, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, closing: threading.Event
) -> Iterator[bytes]:
    """The lines of a stream as they come, until the server ends it, the client leaves or the proxy closes."""
    done = threading.Event()
    closer = threading.Thread(target=_end_with_client, args=(client, connection, closing, done), name="faultproxy-closer")
    closer.start()
    try:
        with contextlib.suppress(OSError, http.client.HTTPException):
            for line in answer:
                if line.strip():
                    yield line
    finally:
        done.set()
        closer.join()


def _end_with_client(
    client: socket.socket, connection: http.client.HTTPConnection, closing: threading.Event, done: threading.Event
) -> None:
    while not done.wait(0.1):
        if closing.is_set() or _has_left(client):
            with contextlib.suppress(OSError, AttributeError):  # AttributeError: ended by itself just now
                connection.sock.shutdown(socket.SHUT_RDWR)
            return


def _has_left(client: socket.socket) -> bool:
    try:
        return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True

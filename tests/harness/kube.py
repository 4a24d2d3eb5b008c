"""A tiny JSON client of the Kubernetes API, for tests only.

It sends exactly what it is told and hands back exactly what the server said, so that a test
shows the server's own behaviour: no retries, no models, no defaults filled in.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

Json = dict[str, Any]

PATCH_TYPES = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


class ApiError(Exception):
    """An answer of 400 and above: its code, the Status' reason and message, and the whole body (text if not JSON)."""

    def __init__(self, code: int, reason: str, message: str, body: Any) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason, self.message, self.body = code, reason, message, body


class _Kept:
    """A thread's connection, closed when the thread or the client ends."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


class Kube:
    """One server and one identity; safe to share between threads (each has its own connection).

    `ca`, `cert` and `key` are PEM files; `ca` may be the PEM itself, as bytes. Query arguments are passed on as they are, with one
    trailing underscore removed (`continue_`), true as `true`, and None left out.
    """

    def __init__(
        self,
        url: str,
        *,
        ca: str | Path | bytes | None = None,
        cert: str | Path | None = None,
        key: str | Path | None = None,
        token: str | None = None,
        user_agent: str = "test/1",
        timeout: float = 30,
    ) -> None:
        self.url, self.token, self.user_agent, self.timeout = url, token, user_agent, timeout
        self.ca, self.cert, self.key = ca, cert, key
        self._tls: ssl.SSLContext | None = None
        if urlsplit(url).scheme == "https":
            if isinstance(ca, bytes):
                self._tls = ssl.create_default_context(cadata=ca.decode())
            else:
                self._tls = ssl.create_default_context(cafile=None if ca is None else str(ca))
            if cert is not None:
                self._tls.load_cert_chain(str(cert), None if key is None else str(key))
        self._local = threading.local()

    def as_user(self, token: str, user_agent: str | None = None) -> Kube:
        """The same server as somebody else."""
        return Kube(self.url, ca=self.ca, token=token, user_agent=user_agent or self.user_agent, timeout=self.timeout)

    def with_agent(self, user_agent: str) -> Kube:
        """The same server and identity under another User-Agent (the default field manager)."""
        return Kube(self.url, ca=self.ca, cert=self.cert, key=self.key, token=self.token, user_agent=user_agent, timeout=self.timeout)

    def get(self, path: str, **query: Any) -> Json:
        """One object, or one page of a list as the server sent it."""
        return self._json("GET", path, query)

    def list(self, path: str, **query: Any) -> list[Json]:
        """The items of a list, to the last page."""
        page = self.get(path, **query)
        items = list(page.get("items") or [])
        while token := page["metadata"].get("continue"):
            page = self.get(path, **{**query, "continue": token})
            items += page.get("items") or []
        return items

    def create(self, path: str, obj: Json, **query: Any) -> Json:
        """POST to the collection `path`."""
        return self._json("POST", path, query, obj)

    def replace(self, path: str, obj: Json, **query: Any) -> Json:
        """PUT."""
        return self._json("PUT", path, query, obj)

    def delete(self, path: str, grace: int | None = None, **query: Any) -> Json:
        """DELETE; `grace` in seconds, None for the object's own; the query's options count, for there is no body."""
        return self._json("DELETE", path, {"gracePeriodSeconds": grace, **query})

    def patch(self, path: str, body: Any, kind: str = "merge", manager: str | None = "test", dry_run: bool = False, **query: Any) -> Json:
        """PATCH of a kind in PATCH_TYPES; `manager` is the field manager (None: the User-Agent's)."""
        query = {"fieldManager": manager, "dryRun": "All" if dry_run else None, **query}
        return self._json("PATCH", path, query, body, PATCH_TYPES[kind])

    def watch(self, path: str, **query: Any) -> Iterator[Json]:
        """The events of a watch until the server ends it; close the generator to end it earlier.

        Raises ApiError for an answer other than 200, TimeoutError after `timeout` seconds of silence.
        """
        with contextlib.closing(self._connect()) as connection:
            answer = self._send(connection, "GET", path, {"watch": True, **query}, None, "")
            with answer:
                if answer.status != 200:
                    raise self._error(answer)
                for line in answer:
                    if line.strip():
                        yield json.loads(line)

    def raw(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, str, bytes]:
        """One request with nothing checked: status, Content-Type and body of the answer."""
        connection = self._connect()
        try:
            connection.request(method, path, body, {"User-Agent": self.user_agent, **self._auth(), **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.headers.get("Content-Type", ""), answer.read()
        finally:
            connection.close()

    def _json(self, method: str, path: str, query: Json, body: Any = None, content_type: str = "application/json") -> Json:
        kept: _Kept | None = getattr(self._local, "kept", None)
        reused = kept is not None
        if kept is None:
            kept = self._local.kept = _Kept(self._connect())
        connection = kept.connection
        try:
            answer = self._send(connection, method, path, query, body, content_type)
        except (http.client.BadStatusLine, ConnectionError, ssl.SSLError):
            connection.close()
            if not reused:
                raise
            # the server has closed an idle connection, as it may
            answer = self._send(connection, method, path, query, body, content_type)
        except OSError:
            connection.close()
            raise
        if answer.status >= 400:
            raise self._error(answer)
        result: Json = json.loads(answer.read())
        return result

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, query: Json, body: Any, content_type: str
    ) -> http.client.HTTPResponse:
        pairs = [
            (name.rstrip("_"), str(value).lower() if isinstance(value, bool) else value)
            for name, value in query.items()
            if value is not None
        ]
        target = f"{path}?{urlencode(pairs)}" if pairs else path
        headers = {"User-Agent": self.user_agent, "Accept": "application/json", **self._auth()}
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = content_type
        connection.request(method, target, data, headers)
        return connection.getresponse()

    def _auth(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def _connect(self) -> http.client.HTTPConnection:
        where = urlsplit(self.url)
        host = where.hostname or "127.0.0.1"
        if self._tls is None:
            return http.client.HTTPConnection(host, where.port, timeout=self.timeout)
        return http.client.HTTPSConnection(host, where.port, timeout=self.timeout, context=self._tls)

    @staticmethod
    def _error(answer: http.client.HTTPResponse) -> ApiError:
        text = answer.read().decode()
        try:
            body = json.loads(text)
        except ValueError:
            return ApiError(answer.status, "", text.strip(), text)
        return ApiError(answer.status, body.get("reason", ""), body.get("message", ""), body)

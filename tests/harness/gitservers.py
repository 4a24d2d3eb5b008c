"""Git over HTTP(S) and over ssh on 127.0.0.1, for the tests of the transports.

Responsible for serving the bare repositories below one directory as git itself does (``git http-backend``, ``sshd``), for
asking for credentials, and for breaking an exchange where a test says so. Hooks of the repositories are the fleet's business.
"""

from __future__ import annotations

import base64
import contextlib
import getpass
import gzip
import os
import shlex
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, final
from urllib.parse import parse_qs, unquote, urlsplit

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from .realplane import Child, free_port

# What a request is for: the refs of a fetch or a push, the pack of a fetch or a push, or a file of the dumb protocol.
Kind = Literal["fetch-refs", "push-refs", "fetch", "push", "other"]
How = Literal["error", "drop-before", "drop-after", "silent"]


@dataclass
class HttpRequest:
    """A request that came to the server; ``code`` is None where the client got no answer."""

    kind: Kind
    path: str
    user: str | None
    userAgent: str
    code: int | None = None


@dataclass
class Fault:
    """What happens to the next requests of one kind."""

    kind: Kind
    how: How | None
    code: int
    delay: float
    times: int | None
    fired: list[HttpRequest] = field(default_factory=list)


@final
class GitHttpServer:
    """A context manager that serves ``root/NAME.git`` as ``url/NAME.git``.

    ``users`` maps names to tokens (basic authentication); empty means that nobody is asked. With ``tls`` the certificate is signed by
    ``ca_file``, for ``http.sslCAInfo``. Every request has a connection of its own unless ``keep_alive``: a client that finds a kept one
    closed without an answer sends its request again by itself, so that dropping it once would show nothing.
    """

    def __init__(
        self,
        root: Path,
        *,
        users: Mapping[str, str] | None = None,
        tls: bool = False,
        workdir: Path | None = None,
        keep_alive: bool = False,
    ) -> None:
        self.root = root
        self.keep_alive = keep_alive
        self.users = dict(users or {})
        self.requests: list[HttpRequest] = []
        self.faults: list[Fault] = []
        self.closing = threading.Event()
        self.ca_file: Path | None = None
        self._server = _Server(self)
        if tls:
            ca = trustme.CA()
            self.ca_file = (workdir or root) / "git-server-ca.crt"
            self.ca_file.write_bytes(ca.cert_pem.bytes())
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            ca.issue_cert("127.0.0.1", "localhost").configure_cert(context)
            self._server.tls = context
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="githttp")

    def __enter__(self) -> GitHttpServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.close_connections()
        self._server.server_close()
        self._thread.join()

    def fail(self, kind: Kind, how: How | None = None, *, code: int = 500, delay: float = 0.0, times: int | None = 1) -> Fault:
        """Break the next ``times`` requests of this kind (None: all of them).

        ``error`` answers ``code``; ``drop-before`` closes the connection before git sees the request, ``drop-after`` once git has
        done it (the lost answer of a push); ``silent`` never answers; None only waits ``delay`` seconds, as the others do first.
        """
        fault = Fault(kind, how, code, delay, times)
        self.faults.append(fault)
        return fault

    def take(self, request: HttpRequest) -> Fault | None:
        """Record the request; what is to happen to it."""
        self.requests.append(request)
        for fault in self.faults:
            if fault.kind == request.kind and (fault.times is None or len(fault.fired) < fault.times):
                fault.fired.append(request)
                return fault
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True

    def __init__(self, owner: GitHttpServer) -> None:
        self.owner = owner
        self.tls: ssl.SSLContext | None = None
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        # In the connection's own thread, so that a client that never shakes hands stops nobody else.
        if self.tls:
            request.settimeout(30)
            request = self.tls.wrap_socket(request, server_side=True)
        self._open.add(request)
        try:
            super().finish_request(request, client_address)
        finally:
            self._open.discard(request)
            if self.tls:
                request.close()

    def close_connections(self) -> None:
        """End what is still open, so that no handler thread waits for a client."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves in the middle, or does not trust our certificate, is no error here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: ``GitHttpServer.requests`` is the log."""

    def do_GET(self) -> None:
        """Ask for credentials, carry out a fault, hand the rest to ``git http-backend``."""
        owner = self.server.owner
        where = urlsplit(self.path)
        body = self._read_body()
        user = self._authenticate()
        request = HttpRequest(_kind(where.path, where.query), where.path, user, self.headers.get("User-Agent", ""))
        if owner.users and user is None:
            owner.requests.append(request)
            return self._send(request, 401, b"credentials, please\n", [("WWW-Authenticate", 'Basic realm="fleet"')])
        fault = owner.take(request)
        if fault and fault.delay:
            owner.closing.wait(fault.delay)
        match fault and fault.how:
            case "drop-before":
                return self._drop()
            case "silent":
                return self._be_silent()
            case "error":
                return self._send(request, fault.code if fault else 500, b"the test's answer\n", [])
        code, headers, answer = self._run_backend(where.path, where.query, body, user)
        if fault and fault.how == "drop-after":
            return self._drop()
        self._send(request, code, answer, headers)

    do_POST = do_GET

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = b"".join(self._chunks())
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _authenticate(self) -> str | None:
        scheme, _, value = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None
        user, _, token = base64.b64decode(value).decode().partition(":")
        return user if self.server.owner.users.get(user) == token else None

    def _run_backend(self, path: str, query: str, body: bytes, user: str | None) -> tuple[int, list[tuple[str, str]], bytes]:
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.server.owner.root),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "http.receivepack",
            "GIT_CONFIG_VALUE_0": "true",
            "GIT_PROJECT_ROOT": str(self.server.owner.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REQUEST_METHOD": self.command,
            "PATH_INFO": unquote(path),
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "REMOTE_ADDR": "127.0.0.1",
            **({"REMOTE_USER": user} if user else {}),
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=environment, capture_output=True, timeout=120, check=False)
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        code, headers = 200, []
        for line in head.decode().split("\r\n"):
            name, _, value = line.partition(": ")
            if name.lower() == "status":
                code = int(value.split()[0])
            elif name:
                headers.append((name, value))
        return code, headers, answer

    def _be_silent(self) -> None:
        self.connection.settimeout(0.1)
        while not self.server.owner.closing.is_set():
            with contextlib.suppress(TimeoutError):
                if not self.connection.recv(1):
                    break
        self._drop()

    def _send(self, request: HttpRequest, code: int, body: bytes, headers: list[tuple[str, str]]) -> None:
        request.code = code
        self.send_response(code)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        if not self.server.owner.keep_alive:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _drop(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def _kind(path: str, query: str) -> Kind:
    service = parse_qs(query).get("service", [""])[0]
    if path.endswith("/info/refs"):
        return "push-refs" if service == "git-receive-pack" else "fetch-refs"
    if path.endswith("/git-receive-pack"):
        return "push"
    return "fetch" if path.endswith("/git-upload-pack") else "other"


@final
class SshServer:
    """A context manager: sshd on a high port, for one key of its own, with nothing of the machine's ssh configuration.

    It runs commands as the user of the tests, so any absolute path works: ``url(path)``.
    """

    def __init__(self, root: Path, workdir: Path) -> None:
        self.root = root
        self.workdir = workdir
        self.port = free_port()
        self._child: Child | None = None

    def __enter__(self) -> SshServer:
        self.workdir.mkdir(parents=True, exist_ok=True, mode=0o700)
        host = _write_key(self.workdir / "host_key")
        user = _write_key(self.workdir / "user_key")
        (self.workdir / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {host}\n")
        (self.workdir / "authorized_keys").write_text(f"{user}\n")
        config = self.workdir / "sshd_config"
        config.write_text(
            f"ListenAddress 127.0.0.1:{self.port}\n"
            f"HostKey {self.workdir / 'host_key'}\n"
            f"AuthorizedKeysFile {self.workdir / 'authorized_keys'}\n"
            "AuthenticationMethods publickey\n"
            "PermitRootLogin prohibit-password\n"
            "StrictModes no\n"  # temporary directories may lie below one that anybody may write
            "UsePAM no\n"
            "SetEnv GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1\n"
            "PidFile none\n"
            "LogLevel VERBOSE\n"
        )
        if os.geteuid() == 0:
            # Started as root, sshd insists on its privilege separation directory, which a container without an init does not have.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._child = Child("sshd", [_find_sshd(), "-D", "-e", "-f", config], self.workdir / "sshd.log")
        end = time.monotonic() + 20
        while time.monotonic() < end:
            self._child.check()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return self
            time.sleep(0.05)
        tail = self._child.tail()
        self._child.stop()
        raise RuntimeError(f"sshd does not listen on port {self.port}; the end of its log:\n{tail}")

    def __exit__(self, *_: object) -> None:
        if self._child:
            self._child.stop()

    @property
    def log(self) -> str:
        """What sshd logged so far."""
        return (self.workdir / "sshd.log").read_text(errors="replace")

    def url(self, path: Path | str) -> str:
        """The URL of a repository; a relative path counts from ``root``."""
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}{self.root / path}"

    def ssh_command(self) -> str:
        """A value for GIT_SSH_COMMAND or ``core.sshCommand``."""
        options = {
            "IdentityFile": self.workdir / "user_key",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.workdir / "known_hosts",
            "GlobalKnownHostsFile": "none",
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
        }
        words = ["ssh", "-F", "none", "-p", str(self.port)]
        for name, value in options.items():
            words += ["-o", f"{name}={value}"]
        return shlex.join(words)


def _find_sshd() -> str:
    for place in ("/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"):
        if os.access(place, os.X_OK):
            return place
    raise RuntimeError("no sshd on this machine: install openssh-server")


def has_ssh() -> bool:
    """Whether this machine has what ``SshServer`` and its clients run: sshd, ssh and ssh-keygen."""
    try:
        _find_sshd()
    except RuntimeError:
        return False
    return all(shutil.which(program) for program in ("ssh", "ssh-keygen"))


def _write_key(path: Path) -> str:
    """Make a key pair; the public key as a line of authorized_keys."""
    key = ed25519.Ed25519PrivateKey.generate()
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()))
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()

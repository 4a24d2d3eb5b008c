"""A simulated Kubernetes API server with the few controllers that the tests need, on 127.0.0.1 and in this process.

It serves the resources of ``simstore.RESOURCES`` over HTTPS as kube-apiserver does (tried on v1.20.2, see
``tests/e2e/test_api_conformance.py``): discovery, lists in pages, watches, patches with their guards, field managers, users and
their rules, and a log of requests like an audit log. What it does not serve, it refuses; there is no kubelet and no scheduler.

Known differences: members that a built-in type does not have are kept (but for a node's spec, where they are dropped) and few fields
are validated; a write that a subresource discards leaves no field manager (as since v1.22); objects of resource.k8s.io are not converted
between its versions; a deleted namespace is empty at once; the pods of a DaemonSet are bound at once and its affinity is not looked at;
no NoExecute taints and no evictions; bookmarks come even when nothing happened; no tables, no protobuf, no YAML.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import secrets
import select
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import trustme

from .simcontrollers import Controllers
from .simfields import BadSelector, Json, PatchFailed, field_selector, json_patch, label_selector, merge_patch, strategic_patch
from .simstore import RESOURCES, Event, Refusal, Resource, Store, bad_request, details, not_found, parse_version

VERSION = {
    "major": "1",
    "minor": "34+",
    "gitVersion": "v1.34.0-sim",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
}
VERSION |= {"goVersion": "", "compiler": "", "platform": ""}
_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "POST": "create"}
_BOOKMARK_SECONDS = 60.0
_GENERIC = "the server could not find the requested resource"


@dataclass(frozen=True)
class User:
    """Who asks: a name, groups, and the rules of the ClusterRole bound to it."""

    name: str
    groups: tuple[str, ...] = ()
    rules: tuple[Json, ...] = ()


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


@dataclass(frozen=True)
class Target:
    """What a path names, as Kubernetes' RequestInfo says it; `resource` is None where it is not served."""

    group: str
    version: str
    plural: str
    namespace: str
    name: str
    subresource: str
    resource: Resource | None


class SimCluster:
    """The server; use it as a context manager, or ``start`` and ``stop`` it.

    `absent` names groups (``kubevirt.io``) or group versions (``resource.k8s.io/v1``) that this server does not have; it may be set
    anew at any time. `history` is how many changes are kept for watches and continued lists. `taint_cordoned` and `run_daemonsets`
    switch the built-in controllers, at any time. `ca_pem` is the certificate of the CA, `url` where to ask, `admin_token` a token of
    the user ``admin``, who may do everything.
    """

    def __init__(
        self, *, absent: Iterable[str] = (), history: int = 1000, taint_cordoned: bool = True, run_daemonsets: bool = True
    ) -> None:
        self.absent = frozenset(absent)
        self.store = Store(history)
        self.controllers = Controllers(self.store, taint_cordoned, run_daemonsets)
        self.stopping = False
        self.url = ""
        self._ca = trustme.CA()
        self.ca_pem = self._ca.cert_pem.bytes()
        self._users: dict[str, User] = {}
        self._tokens: dict[str, str] = {}
        self._log: list[Json] = []
        self._log_lock = threading.Lock()
        self.admin_token = self.add_user("admin", [], ("system:masters",))

    def __enter__(self) -> SimCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def taint_cordoned(self) -> bool:
        """Whether nodes get their taints and annotations as the controller manager sets them."""
        return self.controllers.taint_cordoned

    @taint_cordoned.setter
    def taint_cordoned(self, on: bool) -> None:
        self.controllers.taint_cordoned = on

    @property
    def run_daemonsets(self) -> bool:
        """Whether DaemonSets get their pods."""
        return self.controllers.run_daemonsets

    @run_daemonsets.setter
    def run_daemonsets(self, on: bool) -> None:
        self.controllers.run_daemonsets = on

    def start(self) -> None:
        """Listen on a port that the system chooses, and serve."""
        self._server = _Server(self, self._tls())
        self.url = f"https://127.0.0.1:{self._server.server_port}"
        self._threads = [threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)]
        self._threads.append(threading.Thread(target=self.controllers.run, daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop listening, end the watches and close every connection."""
        with self.store.changed:
            self.stopping = self.controllers.stopping = True
            self.store.changed.notify_all()
        self._server.shutdown()
        self._server.close_connections()
        self._server.server_close()
        for thread in self._threads:
            thread.join()

    def add_user(self, name: str, rules: Sequence[Json], groups: Sequence[str] = ()) -> str:
        """A user who may do what these rules of a ClusterRole say, cluster-wide; another call for the name replaces them. Its token."""
        self._users[name] = User(name, (*groups, "system:authenticated"), tuple(rules))
        token = next((token for token, user in self._tokens.items() if user == name), None) or secrets.token_hex(16)
        self._tokens[token] = name
        return token

    def client_certificate(self, name: str, *groups: str) -> tuple[bytes, bytes]:
        """A client certificate (CN the user, O the group: at most one) and its key, as PEM."""
        leaf = self._ca.issue_cert("client.test", common_name=name, organization_name=groups[0] if groups else None)
        return b"".join(blob.bytes() for blob in leaf.cert_chain_pems), leaf.private_key_pem.bytes()

    def requests(self, since: int = 0) -> list[Json]:
        """What was asked since a mark, in the order of the answers; a watch is there when it is answered, not when it ends."""
        with self._log_lock:
            return self._log[since:]

    def mark(self) -> int:
        """A point in the log of requests, for ``requests``."""
        with self._log_lock:
            return len(self._log)

    def record(self, entry: Json) -> None:
        """Write one request to the log."""
        with self._log_lock:
            self._log.append(entry)

    def reset(self) -> None:
        """Remove all objects but the system's namespaces; watches see each removal, versions go on."""
        self.store.reset()

    def compact(self) -> None:
        """Forget the past: a watch or a continued list from before now gets 410."""
        self.store.compact()

    def authenticate(self, authorization: str | None, certificate: Mapping[str, Any] | None) -> User:
        """Who a request is from; Refusal 401 for a token that nobody has."""
        if authorization:
            name = self._tokens.get(authorization.removeprefix("Bearer ").strip())
            if name is None:
                raise Refusal(401, "Unauthorized", "Unauthorized")
            return self._users[name]
        if certificate:
            subject = [pair for part in certificate["subject"] for pair in part]
            name = next(value for key, value in subject if key == "commonName")
            groups = [value for key, value in subject if key == "organizationName"]
            known = self._users.get(name, User(name))
            return User(name, (*known.groups, *groups, "system:authenticated"), known.rules)
        return ANONYMOUS

    def groups(self) -> dict[str, list[str]]:
        """The versions of each group that this server has, the preferred one first."""
        found: dict[str, list[str]] = {}
        for resource in RESOURCES:
            for version in resource.versions:
                if resource.group not in self.absent and f"{resource.group}/{version}" not in self.absent:
                    versions = found.setdefault(resource.group, [])
                    if version not in versions:
                        versions.append(version)
        return found

    def served(self, group: str, version: str) -> list[Resource]:
        """The resources of a group version."""
        if version not in self.groups().get(group, []):
            return []
        return [resource for resource in RESOURCES if resource.group == group and version in resource.versions]

    def _tls(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert("127.0.0.1", "localhost").configure_cert(context)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=self.ca_pem.decode())
        return context


class _Server(ThreadingHTTPServer):
    """One thread a connection; the TLS handshake is made there."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, cluster: SimCluster, context: ssl.SSLContext) -> None:
        self.cluster, self.context = cluster, context
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        with contextlib.suppress(OSError):  # the client went away, or speaks no TLS
            wrapped = self.context.wrap_socket(request, server_side=True)
            self._connections.add(wrapped)
            try:
                super().finish_request(wrapped, client_address)
            finally:
                self._connections.discard(wrapped)
                wrapped.close()

    def close_connections(self) -> None:
        """Close what clients keep open."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One connection: each request is authenticated, authorized, logged and answered."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def version_string(self) -> str:
        """No Server header of interest."""
        return "simulated"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr: there is ``SimCluster.requests``."""

    def do_GET(self) -> None:
        """Serve any method."""
        received = time.time()
        where = urlsplit(self.path)
        self.query = dict(parse_qsl(where.query, keep_blank_values=True))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.target = self._find_target(where.path)
        self.user = ANONYMOUS
        self.verb = self._verb()
        with contextlib.suppress(ValueError):
            self.parsed = None
            self.parsed = json.loads(self.body) if self.body else None
        self.entry = {
            "time": received, "verb": self.verb, "path": where.path, "query": self.query, "user": "", "code": 0,
            "userAgent": self.headers.get("User-Agent", ""), "requestObject": self.parsed, "resource": self.target.plural,
            "namespace": self.target.namespace, "name": self.target.name, "subresource": self.target.subresource,
        }  # fmt: skip
        try:
            self.user = self.cluster.authenticate(self.headers.get("Authorization"), self._certificate())
            self._authorize(where.path)
            self._serve(where.path)
        except Refusal as refusal:
            self._answer(refusal.code, refusal.body)
        except BadSelector as error:
            self._answer(400, bad_request(str(error)).body)
        except OSError:
            raise  # the client went away
        except Exception as error:  # a bug here must not look like a network that fails
            traceback.print_exc()
            self._answer(500, Refusal(500, "InternalError", f"bug in the simulated server: {error!r}").body)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    @property
    def cluster(self) -> SimCluster:
        """The server that this connection is to."""
        return self.server.cluster

    def _certificate(self) -> Mapping[str, Any] | None:
        return self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None

    # What is asked

    def _find_target(self, path: str) -> Target:
        parts = [part for part in path.split("/") if part]
        group, version, rest = "", "", list[str]()
        if parts[:1] == ["api"]:
            version, rest = (parts[1:2] or [""])[0], parts[2:]
        elif parts[:1] == ["apis"]:
            group, version, rest = (parts[1:2] or [""])[0], (parts[2:3] or [""])[0], parts[3:]
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        elif rest[:1] == ["namespaces"] and len(rest) > 1:
            namespace = rest[1]
        plural, name, subresource = [*rest, "", "", ""][:3]
        resource = next((found for found in self.cluster.served(group, version) if found.plural == plural), None)
        return Target(group, version, plural, namespace, name, subresource, resource)

    def _verb(self) -> str:
        target, method = self.target, self.command
        if not target.plural:
            return method.lower()
        if not target.name and method == "GET":
            return "watch" if self.query.get("watch") in ("1", "true") else "list"
        if not target.name and method == "DELETE":
            return "deletecollection"
        return _VERBS[method]

    def _authorize(self, path: str) -> None:
        """RBAC, with the rules of system:discovery and system:public-info-viewer for what is no resource."""
        self.entry["user"] = self.user.name
        target, user = self.target, self.user
        if "system:masters" in user.groups:
            return
        if not target.plural:
            public = ("/version", "/healthz", "/livez", "/readyz")
            discovery = user is not ANONYMOUS and path.startswith(("/api", "/openapi"))
            if path.rstrip("/") in public or discovery or any(_url_matches(rule, path) for rule in user.rules):
                return
            raise Refusal(403, "Forbidden", f'forbidden: User "{user.name}" cannot {self.verb} path "{path}"', {})
        name = target.name
        if self.verb in ("list", "watch"):
            exact = re.fullmatch(r"(?:.*,)?metadata\.name==?([^,]+)(?:,.*)?", self.query.get("fieldSelector", ""))
            name = exact[1] if exact else ""
        plural = f"{target.plural}/{target.subresource}" if target.subresource else target.plural
        if any(_allows(rule, target.group, plural, self.verb, name) for rule in user.rules):
            return
        qualified = f"{target.plural}.{target.group}" if target.group else target.plural
        where = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
        message = (
            f'{qualified}{f" {json.dumps(name)}" if name else ""} is forbidden: User "{user.name}" cannot {self.verb} resource "{plural}" '
        )
        about = {"name": name, "group": target.group, "kind": target.plural}
        message += f'in API group "{target.group}" {where}'
        raise Refusal(403, "Forbidden", message, {key: value for key, value in about.items() if value})

    # Answers

    def _answer(self, code: int, body: Any, content_type: str = "application/json") -> None:
        self.entry["code"] = code
        self.cluster.record(self.entry)
        data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode() + b"\n"
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Cache-Control", "no-cache, private")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _serve(self, path: str) -> None:
        target = self.target
        if target.resource is None:
            return self._serve_other(path)
        resource = target.resource
        known = {"": True, "status": resource.status, "binding": resource.kind == "Pod"}
        if not known.get(target.subresource, False):
            raise not_found(resource, target.name) if resource.custom else Refusal(404, "NotFound", _GENERIC, {})
        match self.command, bool(target.name), target.subresource:
            case "GET", False, "":
                self._list(resource) if self.verb == "list" else self._watch(resource)
            case "POST", False, "" if resource.namespaced == bool(target.namespace):
                self._create(resource)
            case "DELETE", False, "" if resource.namespaced == bool(target.namespace):
                self._delete_collection(resource)
            case "GET", True, "" | "status":
                self._current("resourceVersion")
                self._answer(200, self._out(resource, self.cluster.store.get(resource, self._namespace, target.name)))
            case "PUT" | "PATCH", True, "" | "status":
                self._update(resource)
            case "DELETE", True, "":
                self._delete(resource)
            case "POST", True, "binding":
                self._bind(resource)
            case _:
                raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})

    @property
    def _namespace(self) -> str:
        return self.target.namespace if self.target.resource and self.target.resource.namespaced else ""

    def _out(self, resource: Resource, obj: Json) -> Json:
        return {"kind": resource.kind, **obj, "apiVersion": resource.api_version(self.target.version)}

    @property
    def _manager(self) -> str:
        """``managerOrUserAgent``."""
        return self.query.get("fieldManager") or self.headers.get("User-Agent", "").partition("/")[0]

    @property
    def _content_type(self) -> str:
        return (self.headers.get("Content-Type") or "").partition(";")[0]

    @property
    def _dry_run(self) -> bool:
        given = self.query.get("dryRun", "")
        if self.command == "DELETE":
            given = "".join(self._options().get("dryRun") or [])
        if given not in ("", "All"):
            kind = {"POST": "CreateOptions", "PATCH": "PatchOptions", "PUT": "UpdateOptions"}.get(self.command, "DeleteOptions")
            cause = {
                "reason": "FieldValueNotSupported",
                "message": f'Unsupported value: []string{{"{given}"}}: supported values: "All"',
                "field": "dryRun",
            }
            about = {"group": "meta.k8s.io", "kind": kind, "causes": [cause]}
            raise Refusal(422, "Invalid", f'{kind}.meta.k8s.io "" is invalid: dryRun: {cause["message"]}', about)
        return bool(given)

    def _number(self, name: str) -> int:
        text = self.query.get(name) or "0"
        if not re.fullmatch(r"-?[0-9]+", text):
            raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
        return int(text)

    def _current(self, name: str) -> int:
        """A resourceVersion that is asked for, which must not be in the future (the watch cache waits 3 s for it)."""
        version = parse_version(self.query.get(name, ""), f'resourceVersion: Invalid value: "{self.query.get(name)}": ')
        if version > self.cluster.store.revision:
            about: Json = {
                "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                "retryAfterSeconds": 1,
            }
            raise Refusal(504, "Timeout", f"Timeout: Too large resource version: {version}, current: {self.cluster.store.revision}", about)
        return version

    def _filter(self, resource: Resource) -> Callable[[Json], bool]:
        known = ("metadata.name", "metadata.namespace", *resource.fields)
        fields = field_selector(self.query.get("fieldSelector", ""), known)
        labels = label_selector(self.query.get("labelSelector", ""))
        namespace = self._namespace

        def matches(obj: Json) -> bool:
            if namespace and obj["metadata"]["namespace"] != namespace:
                return False
            equal = all((_field(obj, path) == value) == wanted for path, value, wanted in fields)
            return equal and labels(obj["metadata"].get("labels", {}))

        return matches

    # Reading

    def _list(self, resource: Resource) -> None:
        limit, matches, store = self._number("limit"), self._filter(resource), self.cluster.store
        token, start, revision = self.query.get("continue", ""), "", None
        selective = bool(self.query.get("fieldSelector") or self.query.get("labelSelector"))
        if token:
            if self.query.get("resourceVersion"):
                raise bad_request("specifying resource version is not allowed when using continue")
            revision, start = _read_token(token)
        else:
            asked = self._current("resourceVersion")
            if self.query.get("resourceVersionMatch") == "Exact":
                revision = asked
            elif self.query.get("resourceVersion") == "0":
                limit = 0  # from the watch cache, which knows no pages
        with store.changed:
            if revision is not None and revision < store.oldest:
                raise _expired(token, start, revision, store.revision)
            revision, found = store.objects(resource, revision)
        prefix = f"{self._namespace}/" if self._namespace or not resource.namespaced else ""
        keyed = [("/".join(key).removeprefix(prefix), obj) for key, obj in found.items() if matches(obj)]
        left = [(key, obj) for key, obj in keyed if key >= start]
        page = left[:limit] if limit > 0 else left
        metadata: Json = {"continue": "", "resourceVersion": str(revision)} if resource.custom else {"resourceVersion": str(revision)}
        if len(page) < len(left):
            metadata["continue"] = _write_token(revision, page[-1][0] + "\0")
            if not selective:
                metadata["remainingItemCount"] = len(left) - len(page)
        items = [self._out(resource, obj) for _, obj in page]
        if not resource.custom:  # the items of a typed list do not repeat the kind
            items = [{name: value for name, value in item.items() if name not in ("kind", "apiVersion")} for item in items]
        self._answer(
            200,
            {"kind": f"{resource.kind}List", "apiVersion": resource.api_version(self.target.version), "metadata": metadata, "items": items},
        )

    def _watch(self, resource: Resource) -> None:
        """Stream changes until the time is up, the client leaves or the server stops."""
        matches = self._filter(resource)
        text = self.query.get("resourceVersion", "")
        after = parse_version(text, f'resourceVersion: Invalid value: "{text}": ')
        end = time.monotonic() + (self._number("timeoutSeconds") or 1800)
        bookmarks = self.query.get("allowWatchBookmarks") in ("1", "true")
        self.entry["code"] = 200
        self.cluster.record(self.entry)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Cache-Control", "no-cache, private")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            self._stream(resource, matches, after, end, bookmarks)
            self.wfile.write(b"0\r\n\r\n")
            return
        self.close_connection = True

    def _stream(self, resource: Resource, matches: Callable[[Json], bool], after: int, end: float, bookmarks: bool) -> None:
        store = self.cluster.store
        with store.changed:
            expired, first = 0 < after < store.oldest, list[Json]()
            if not after:
                after, found = store.objects(resource)
                first = [obj for obj in found.values() if matches(obj)]
        if expired:
            return self._send_event("ERROR", Refusal(410, "Expired", f"too old resource version: {after} ({store.oldest})").body)
        for obj in first:
            self._send_event("ADDED", self._out(resource, obj))
        next_bookmark = min(time.monotonic() + _BOOKMARK_SECONDS, end - 2)
        while not self.cluster.stopping and time.monotonic() < end:
            with store.changed:
                if store.revision <= after:
                    store.changed.wait(max(0.0, min(0.5, end - time.monotonic())))
                if after < store.oldest < store.revision:
                    return None  # too slow: what happened is no longer known
                events, after = store.events(after), max(after, store.revision)
            for event in events:
                change = _change(event, resource, matches)
                if change:
                    self._send_event(change[0], self._out(resource, change[1]))
            if bookmarks and time.monotonic() >= next_bookmark:
                self._send_event("BOOKMARK", self._out(resource, {"metadata": {"resourceVersion": str(after), "creationTimestamp": None}}))
                next_bookmark = min(time.monotonic() + _BOOKMARK_SECONDS, end - 2) if time.monotonic() < end - 2 else end
            if select.select([self.connection], [], [], 0)[0]:
                raise ConnectionAbortedError  # a client that has something to say has left
        return None

    def _send_event(self, kind: str, obj: Json) -> None:
        data = json.dumps({"type": kind, "object": obj}, separators=(",", ":")).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    # Writing

    def _decoded(self, accepted: str = "application/json") -> Any:
        if self.parsed is None:
            if self._content_type not in ("", accepted):
                message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
                raise Refusal(415, "UnsupportedMediaType", message, {})
            raise bad_request("the object provided is unrecognized: couldn't get version/kind; json parse error")
        return self.parsed

    def _create(self, resource: Resource) -> None:
        dry_run = self._dry_run
        obj = self.cluster.store.create(resource, self.target.version, self._namespace, self._decoded(), self._manager, dry_run)
        self._answer(201, self._out(resource, obj))

    def _update(self, resource: Resource) -> None:
        target, dry_run, put = self.target, self._dry_run, self.command == "PUT"
        if self.command == "PATCH" and self._content_type == "application/apply-patch+yaml":
            return self._apply(resource, dry_run)
        change = self._replacement() if put else self._patch(resource)
        try:
            obj = self.cluster.store.update(
                resource, target.version, self._namespace, target.name, change, self._manager,
                subresource=target.subresource, dry_run=dry_run, put=put,
            )  # fmt: skip
        except PatchFailed:
            raise Refusal(422, "Invalid", "the server rejected our request due to an error in our request", {}) from None
        self._answer(200, self._out(resource, obj))

    def _apply(self, resource: Resource, dry_run: bool) -> None:
        """A server-side apply; the body must be JSON, which is YAML too."""
        if not self.query.get("fieldManager"):
            problem = "Required value: is required for apply patch"
            cause = {"reason": "FieldValueRequired", "message": problem, "field": "fieldManager"}
            about = {"group": "meta.k8s.io", "kind": "PatchOptions", "causes": [cause]}
            raise Refusal(422, "Invalid", f'PatchOptions.meta.k8s.io "" is invalid: fieldManager: {problem}', about)
        force = self.query.get("force") in ("1", "true")
        place = (resource, self.target.version, self._namespace, self.target.name)
        obj, new = self.cluster.store.apply(*place, self._decoded("application/apply-patch+yaml"), self._manager, force, dry_run)
        self._answer(201 if new else 200, self._out(resource, obj))

    def _replacement(self) -> Callable[[Json], Json]:
        body = self._decoded()
        return lambda _: body

    def _patch(self, resource: Resource) -> Callable[[Json], Json]:
        kind = self._content_type
        accepted = {"application/json-patch+json", "application/merge-patch+json"}
        accepted |= set() if resource.custom else {"application/strategic-merge-patch+json"}
        if kind not in accepted:
            if kind == "application/strategic-merge-patch+json":
                listed = ", ".join(["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"])
                message = f"the body of the request was in an unknown format - accepted media types include: {listed}"
                raise Refusal(415, "UnsupportedMediaType", message, {})
            raise Refusal(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
        body = self.parsed
        if body is None:
            raise bad_request("invalid character in the body")
        if kind == "application/json-patch+json":
            if not isinstance(body, list):
                raise bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
            return lambda obj: json_patch(obj, body)
        if kind == "application/merge-patch+json":
            return lambda obj: merge_patch(obj, body)
        return lambda obj: strategic_patch(obj, body)

    def _options(self) -> Json:
        """DeleteOptions: those of the body, else those of the query."""
        if isinstance(self.parsed, dict):
            return self.parsed
        grace = {"gracePeriodSeconds": self._number("gracePeriodSeconds")} if "gracePeriodSeconds" in self.query else {}
        return {**grace, "dryRun": [self.query["dryRun"]] if "dryRun" in self.query else []}

    def _delete(self, resource: Resource) -> None:
        obj, gone = self.cluster.store.delete(resource, self._namespace, self.target.name, self._options(), self._dry_run)
        if resource.kind in ("Pod", "PersistentVolumeClaim", "Namespace") or not gone:
            return self._answer(200, self._out(resource, obj))
        about = {**details(resource, self.target.name), "uid": obj["metadata"]["uid"]}
        self._answer(200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": about})

    def _delete_collection(self, resource: Resource) -> None:
        matches, dry_run = self._filter(resource), self._dry_run
        revision, found = self.cluster.store.objects(resource)
        items = []
        for (namespace, name), obj in found.items():
            if matches(obj):
                with contextlib.suppress(Refusal):  # gone meanwhile
                    items.append(self._out(resource, self.cluster.store.delete(resource, namespace, name, self._options(), dry_run)[0]))
        version = resource.api_version(self.target.version)
        self._answer(
            200, {"kind": f"{resource.kind}List", "apiVersion": version, "metadata": {"resourceVersion": str(revision)}, "items": items}
        )

    def _bind(self, resource: Resource) -> None:
        body = self._decoded()
        if body.get("metadata", {}).get("name") != self.target.name:
            raise bad_request("name in URL does not match name in Binding object")
        self.cluster.store.bind(resource, self._namespace, self.target.name, body["target"]["name"])
        self._answer(201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})

    # What is no resource

    def _serve_other(self, path: str) -> None:
        target, groups = self.target, self.cluster.groups()
        parts = [part for part in path.split("/") if part]
        match parts:
            case ["version"]:
                return self._answer(200, VERSION)
            case ["healthz" | "livez" | "readyz", *_]:
                return self._answer(200, b"ok", "text/plain; charset=utf-8")
            case ["api"]:
                return self._answer(200, {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
            case ["apis"]:
                listed = [_group(name, versions) for name, versions in groups.items() if name]
                return self._answer(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed})
            case ["apis", name] if name in groups:
                return self._answer(200, {"kind": "APIGroup", "apiVersion": "v1", **_group(name, groups[name])})
            case ["api", version] | ["apis", _, version] if version in groups.get(target.group, []):
                found = [item for resource in self.cluster.served(target.group, version) for item in _discovered(resource)]
                about = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{target.group}/{version}".lstrip("/")}
                return self._answer(200, {**about, "resources": found})
        typed = [resource for resource in RESOURCES if resource.group == target.group and not resource.custom]
        if parts[:1] in (["api"], ["apis"]) and typed and target.group in groups:
            raise Refusal(404, "NotFound", _GENERIC, {})
        return self._answer(404, b"404 page not found\n", "text/plain; charset=utf-8")


def _change(event: Event, resource: Resource, matches: Callable[[Json], bool]) -> tuple[str, Json] | None:
    """What a watcher with this filter sees of a change; what leaves its sight is deleted, as it was, at the version of the change."""
    if event.resource != resource:
        return None
    was = event.previous is not None and matches(event.previous)
    if event.obj is not None and matches(event.obj):
        return ("MODIFIED" if was else "ADDED"), event.obj
    if not was or event.previous is None:
        return None
    return "DELETED", {**event.previous, "metadata": {**event.previous["metadata"], "resourceVersion": str(event.revision)}}


def _field(obj: Json, path: str) -> str:
    value: Any = obj
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    if path == "spec.unschedulable":
        return "true" if value else "false"
    return str(value)


def _write_token(revision: int, start: str) -> str:
    token = json.dumps({"v": "meta.k8s.io/v1", "rv": revision, "start": start}, separators=(",", ":"))
    return base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def _read_token(token: str) -> tuple[int | None, str]:
    try:
        found = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return (found["rv"] if found["rv"] > 0 else None), found["start"]
    except (ValueError, KeyError, TypeError):
        raise bad_request("invalid continue token: continue key is not valid") from None


def _expired(token: str, start: str, revision: int, now: int) -> Refusal:
    """410 for a page of a list that is too old; it offers a token for the rest of the list as it is now."""
    if not token:
        return Refusal(410, "Expired", f"The resourceVersion for the provided list is too old. ({revision})")
    message = (
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue "
        "parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided "
        "token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was "
        "returned and now may show up in the list."
    )
    return Refusal(410, "Expired", message, metadata={"continue": _write_token(-1, start)})


def _allows(rule: Json, group: str, plural: str, verb: str, name: str) -> bool:
    """``RuleAllows`` of pkg/registry/rbac."""
    resources, verbs, names = rule.get("resources", []), rule.get("verbs", []), rule.get("resourceNames", [])
    subresource = plural.partition("/")[2]
    fits = "*" in resources or plural in resources or (subresource and f"*/{subresource}" in resources)
    return bool(fits and _any(rule.get("apiGroups", []), group) and _any(verbs, verb) and (not names or name in names))


def _any(allowed: Sequence[str], wanted: str) -> bool:
    return "*" in allowed or wanted in allowed


def _url_matches(rule: Json, path: str) -> bool:
    urls = rule.get("nonResourceURLs", [])
    return any(url in ("*", path) or (url.endswith("*") and path.startswith(url[:-1])) for url in urls)


def _group(name: str, versions: Sequence[str]) -> Json:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _discovered(resource: Resource) -> list[Json]:
    verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    about: Json = {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": verbs,
    }
    found = [{**about, "shortNames": list(resource.short)} if resource.short else about]
    if resource.status:
        found.append({**about, "name": f"{resource.plural}/status", "singularName": "", "verbs": ["get", "patch", "update"]})
    if resource.kind == "Pod":
        found.append({**about, "name": "pods/binding", "singularName": "", "kind": "Binding", "verbs": ["create"]})
    return found

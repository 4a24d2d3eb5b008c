"""One interface over the two servers that the end-to-end tests run on: the simulated API server and a real control plane.

Responsible for starting and stopping it, for users and kubeconfigs, for one normalised form of the log of requests, and for
emptying it between tests. What is put on it is ``world``'s business.
"""

from __future__ import annotations

import abc
import base64
import contextlib
import json
import ssl
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import parse_qsl, urlsplit

from .kube import ApiError, Json, Kube
from .realplane import CRDS, HARNESS, Credentials, RealPlane
from .simcluster import SimCluster

if TYPE_CHECKING:
    from typing_extensions import Self

# The user of a kubeconfig that names none: everything is allowed. The harness' own requests are made as somebody else.
ADMIN = "admin"

EVERYTHING: list[Json] = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    {"nonResourceURLs": ["*"], "verbs": ["*"]},
]

_QUIET_SECONDS = 0.15
_BUSY_SECONDS = 1.0
_LOG_SECONDS = 10.0
_RESET_SECONDS = 30.0


class ApiRequest(TypedDict):
    """One request as the server logged it; a watch is one request, logged when it is answered."""

    time: float
    verb: str
    path: str
    query: dict[str, str]
    user: str
    userAgent: str
    code: int
    requestObject: Any
    resource: str
    namespace: str
    name: str
    subresource: str


@dataclass(frozen=True)
class Identity:
    """What a client shows to be a user of a backend: a bearer token, or a client certificate with its key in files."""

    token: str | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class Target:
    """Where a path of the API points."""

    group: str = ""
    version: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse_path(path: str) -> Target:
    """The parts of ``/api/v1/…`` and ``/apis/GROUP/VERSION/…``; a Target without a resource for any other path."""
    parts = [part for part in path.split("/") if part]
    match parts:
        case ["api", version, *rest]:
            group = ""
        case ["apis", group, version, *rest]:
            pass
        case _:
            return Target()
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = [*rest, "", "", ""][:3]
    return Target(group, version, resource, namespace, name, subresource)


def verb_of(method: str, path: str, query: Mapping[str, str]) -> str:
    """The Kubernetes verb of an HTTP request (``get`` for what is no resource)."""
    target = parse_path(path)
    if method in ("GET", "HEAD"):
        if query.get("watch") in ("1", "true"):
            return "watch"
        return "list" if target.resource and not target.name else "get"
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, method.lower())


class Backend(abc.ABC):
    """An API server with whatever controllers it has."""

    name: str
    url: str
    kube: Kube
    ca_pem: bytes

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self._identities: dict[str, Identity] = {}
        self._served: dict[str, set[str]] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abc.abstractmethod
    def start(self) -> None:
        """Start it and wait until it serves."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End it."""

    @abc.abstractmethod
    def add_user(self, name: str, rules: Sequence[Json], *groups: str) -> None:
        """A user who may do what these RBAC rules say, cluster-wide; another call for the name replaces them."""

    @abc.abstractmethod
    def mark(self) -> Any:
        """A point in the log of requests, for ``requests``."""

    @abc.abstractmethod
    def _log(self, since: Any) -> list[ApiRequest]:
        """Everything logged since that mark (None: since the start), complete up to this call."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Remove everything that a test can have put here; the namespaces themselves may stay."""

    @property
    @abc.abstractmethod
    def version(self) -> str:
        """The server's version, ``v1.20.2``."""

    def requests(self, since: Any = None, user: str | None = None) -> list[ApiRequest]:
        """What was asked of the server since a mark, by one user or by anybody, in the order of the log."""
        return [request for request in self._log(since) if user in (None, request["user"])]

    def serves(self, api_version: str, plural: str | None = None) -> bool:
        """Whether this server has the group version (``resource.k8s.io/v1``) and, where one is named, the resource."""
        if api_version not in self._served:
            path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
            try:
                found = {item["name"] for item in self.kube.get(path)["resources"]}
            except ApiError as error:
                if error.code != 404:
                    raise
                found = set()
            self._served[api_version] = found
        served = self._served[api_version]
        return bool(served) if plural is None else plural in served

    def identity(self, user: str = ADMIN) -> Identity:
        """What this user shows; the user must be ``admin`` or one of ``add_user``."""
        return self._identities[user]

    def client(self, user: str = ADMIN, user_agent: str | None = None) -> Kube:
        """A client that speaks as this user."""
        identity = self.identity(user)
        return Kube(
            self.url,
            ca=self._ca_file(),
            cert=identity.certificate,
            key=identity.key,
            token=identity.token,
            user_agent=user_agent or f"{user}/1",
        )

    def tls(self, user: str | None = None) -> ssl.SSLContext:
        """A TLS context that trusts the server and shows the user's client certificate, if that is what the user has."""
        context = ssl.create_default_context(cadata=self.ca_pem.decode())
        identity = self.identity(user) if user else Identity()
        if identity.certificate:
            context.load_cert_chain(identity.certificate, identity.key)
        return context

    def kubeconfig(
        self,
        path: Path,
        *,
        user: str = ADMIN,
        server: str | None = None,
        context: str = "admin@test",
        cluster: str = "test",
        credentials: Json | None = None,
    ) -> Path:
        """Write a kubeconfig with one context and everything inline.

        ``server`` lets a proxy stand in front: for a plain HTTP one the kubeconfig has no credentials, the proxy's own count.
        ``credentials`` takes the place of the ``user`` entry (an exec plugin, say).
        """
        url = server or self.url
        secure = urlsplit(url).scheme == "https"
        entry: Json = {"server": url}
        if secure:
            entry["certificate-authority-data"] = _base64(self.ca_pem)
        if credentials is None:
            identity = self.identity(user)
            credentials = {"token": identity.token} if secure and identity.token else {}
            if secure and identity.certificate and identity.key:
                credentials["client-certificate-data"] = _base64(identity.certificate.read_bytes())
                credentials["client-key-data"] = _base64(identity.key.read_bytes())
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": cluster, "cluster": entry}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": context, "context": {"cluster": cluster, "user": user}}],
            "current-context": context,
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=2) + "\n")
        return path

    def _forget_users(self) -> None:
        self._identities = {ADMIN: self._identities[ADMIN]}

    def _ca_file(self) -> Path:
        path = self.workdir / "server-ca.crt"
        if not path.exists():
            path.write_bytes(self.ca_pem)
        return path


class RealBackend(Backend):
    """etcd, kube-apiserver, controller manager and scheduler of a directory of binaries."""

    name = "real"

    def __init__(self, workdir: Path, assets: Path) -> None:
        super().__init__(workdir)
        self.plane = RealPlane(assets, workdir / "plane")

    @property
    def version(self) -> str:
        return self.plane.version

    def start(self) -> None:
        self.workdir.mkdir(parents=True, exist_ok=True)
        self.plane.start()
        self.url, self.kube, self.ca_pem = self.plane.url, self.plane.kube, self.plane.ca_pem
        self._identities[ADMIN] = self._keep(ADMIN, self.plane.issue(ADMIN, "system:masters"))

    def stop(self) -> None:
        self.plane.stop()

    def add_user(self, name: str, rules: Sequence[Json], *groups: str) -> None:
        self._identities[name] = self._keep(name, self.plane.issue(name, *groups))
        role = f"test:{name}"
        metadata = {"name": role, "labels": {"kubectl-gpu-transition/test": "user"}}
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}
        role_ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        _put(self.kube, f"{rbac}/clusterroles", {"metadata": metadata, "rules": list(rules)})
        _put(self.kube, f"{rbac}/clusterrolebindings", {"metadata": metadata, "roleRef": role_ref, "subjects": [subject]})
        self._wait_for_rules(name, rules)

    def _keep(self, user: str, credentials: Credentials) -> Identity:
        certificate, key = self.workdir / f"{user}.crt", self.workdir / f"{user}.key"
        key.touch(mode=0o600)
        certificate.write_bytes(credentials.certificate)
        key.write_bytes(credentials.key)
        return Identity(certificate=certificate, key=key)

    def _wait_for_rules(self, user: str, rules: Sequence[Json]) -> None:
        """The authorizer reads roles from a cache: ask until it knows these."""
        asked = [rule for rule in rules if rule.get("resources") and not rule.get("resourceNames")]
        if not asked:
            return
        rule = asked[0]
        attributes = {"group": rule["apiGroups"][0], "resource": rule["resources"][0], "verb": rule["verbs"][0]}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes},
        }
        end = time.monotonic() + 10
        while not self.kube.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"]:
            if time.monotonic() > end:
                raise RuntimeError(f"the API server does not know the rules of {user} after 10 s")
            time.sleep(0.02)

    # The log of requests

    def mark(self) -> int:
        """The length of the audit log once everything answered so far is in it."""
        return self._flush()

    def _log(self, since: Any) -> list[ApiRequest]:
        end = self._flush()
        start = since or 0
        with self.plane.audit_log.open("rb") as stream:
            stream.seek(start)
            lines = stream.read(end - start).splitlines()
        return [entry for line in lines if (entry := _from_audit(json.loads(line))) is not None]

    def _flush(self) -> int:
        """Wait until the log holds a request made now and stays as it is for a moment; its length then.

        Events are written by the goroutine of each request after its answer, so a later request's can come before an earlier one's.
        """
        log = self.plane.audit_log
        start = log.stat().st_size
        sentinel = uuid.uuid4().hex
        self.kube.get("/version", sentinel=sentinel)
        end = time.monotonic() + _LOG_SECONDS
        while not _has(log, start, sentinel):
            if time.monotonic() > end:
                raise RuntimeError(f"the audit log does not have a request made {_LOG_SECONDS:.0f} s ago")
            time.sleep(0.02)
        size, since, end = -1, time.monotonic(), time.monotonic() + _BUSY_SECONDS
        while time.monotonic() < end and time.monotonic() - since < _QUIET_SECONDS:
            now = log.stat().st_size
            if now != size:
                size, since = now, time.monotonic()
            time.sleep(0.02)
        return _whole_lines(log)

    # Emptying it

    def reset(self) -> None:
        self.plane.check()
        for path in _RESET_PATHS:
            target = parse_path(path)
            if self.serves(f"{target.group}/{target.version}".lstrip("/"), target.resource):
                self._empty(path)
        for path in ("clusterrolebindings", "clusterroles"):
            self._empty(f"/apis/rbac.authorization.k8s.io/v1/{path}", labelSelector="kubectl-gpu-transition/test")
        self._forget_users()

    def _empty(self, path: str, **query: str) -> None:
        """Delete what a list shows until it shows nothing, finalizers or not."""
        end = time.monotonic() + _RESET_SECONDS
        while left := [item for item in self.kube.list(path, **query) if not _is_the_servers_own(path, item)]:
            if time.monotonic() > end:
                raise RuntimeError(f"{path} is not empty after {_RESET_SECONDS:.0f} s: {[item['metadata']['name'] for item in left]}")
            for item in left:
                self._remove(path, item)

    def _remove(self, path: str, item: Json) -> None:
        metadata = item["metadata"]
        place = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
        prefix, _, plural = path.rpartition("/")
        one = f"{prefix}{place}/{plural}/{metadata['name']}"
        with contextlib.suppress(ApiError):  # gone meanwhile, or changed: the next list tells
            if metadata.get("finalizers"):
                self.kube.patch(one, {"metadata": {"finalizers": None}})
            self.kube.delete(one, grace=0, propagationPolicy="Background")


class SimBackend(Backend):
    """The simulated API server, inside this process; its own switches are those of ``cluster``."""

    name = "sim"

    def __init__(self, workdir: Path) -> None:
        super().__init__(workdir)
        self.cluster = SimCluster()

    @property
    def version(self) -> str:
        return "simulated"

    def start(self) -> None:
        self.workdir.mkdir(parents=True, exist_ok=True)
        self.cluster.start()
        self.url, self.ca_pem = self.cluster.url, self.cluster.ca_pem
        self._identities[ADMIN] = Identity(token=self.cluster.admin_token)
        token = self.cluster.add_user(HARNESS, [], ("system:masters",))
        self.kube = Kube(self.url, ca=self._ca_file(), token=token, user_agent=f"{HARNESS}/1")

    def stop(self) -> None:
        self.cluster.stop()

    def add_user(self, name: str, rules: Sequence[Json], *groups: str) -> None:
        self._identities[name] = Identity(token=self.cluster.add_user(name, rules, groups))

    def mark(self) -> int:
        """The length of the log."""
        return self.cluster.mark()

    def _log(self, since: Any) -> list[ApiRequest]:
        return [_from_sim(entry) for entry in self.cluster.requests(since or 0)]

    def reset(self) -> None:
        self.cluster.reset()
        self._forget_users()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _put(kube: Kube, path: str, obj: Json) -> None:
    """Create an object, in the place of one of that name."""
    try:
        kube.create(path, obj)
    except ApiError as error:
        if error.code != 409:
            raise
        kube.delete(f"{path}/{obj['metadata']['name']}")
        kube.create(path, obj)


# The order matters: what refuses or recreates others goes first. Paths list a resource in all namespaces.
_RESET_PATHS = (
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/batch/v1/jobs",
    "/apis/apps/v1/daemonsets",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/statefulsets",
    "/apis/apps/v1/replicasets",
    "/api/v1/nodes",
    "/api/v1/pods",
    "/api/v1/persistentvolumeclaims",
    "/api/v1/persistentvolumes",
    "/api/v1/configmaps",
    "/api/v1/resourcequotas",
    "/apis/policy/v1beta1/poddisruptionbudgets",
    "/apis/policy/v1/poddisruptionbudgets",
    *(f"/apis/{crd.group}/{crd.version}/{crd.plural}" for crd in CRDS),
    *(
        f"/apis/resource.k8s.io/{version}/{plural}"
        for version in ("v1beta1", "v1beta2", "v1")
        for plural in ("resourceclaims", "resourceclaimtemplates", "resourceslices", "deviceclasses")
    ),
)


def _is_the_servers_own(path: str, item: Json) -> bool:
    """Whether the control plane itself made this object and would make it again."""
    name, namespace = str(item["metadata"]["name"]), str(item["metadata"].get("namespace"))
    return path.endswith("/configmaps") and (name == "kube-root-ca.crt" or namespace.startswith("kube-"))


def _from_audit(event: Json) -> ApiRequest | None:
    """One line of an audit log; None for the stages that do not answer, and for the harness' own flushes."""
    if event["stage"] != ("ResponseStarted" if event["verb"] == "watch" else "ResponseComplete"):
        return None
    where = urlsplit(event["requestURI"])
    query = dict(parse_qsl(where.query, keep_blank_values=True))
    if "sentinel" in query:
        return None
    target = parse_path(where.path)
    return ApiRequest(
        time=_seconds(event["requestReceivedTimestamp"]),
        verb=event["verb"],
        path=where.path,
        query=query,
        user=event.get("user", {}).get("username", ""),
        userAgent=event.get("userAgent", ""),
        code=event.get("responseStatus", {}).get("code", 0),
        requestObject=event.get("requestObject"),
        resource=target.resource,
        namespace=target.namespace,
        name=target.name,
        subresource=target.subresource,
    )


def _seconds(text: str) -> float:
    """An audit log's time, ``2026-01-02T03:04:05.678901Z``, in seconds since the epoch."""
    return datetime.fromisoformat(text.removesuffix("Z") + "+00:00").timestamp()


def _from_sim(entry: Json) -> ApiRequest:
    """One entry of the simulated server's log, which has the same fields."""
    return ApiRequest(
        time=entry["time"],
        verb=entry["verb"],
        path=entry["path"],
        query=entry["query"],
        user=entry["user"],
        userAgent=entry["userAgent"],
        code=entry["code"],
        requestObject=entry["requestObject"],
        resource=entry["resource"],
        namespace=entry["namespace"],
        name=entry["name"],
        subresource=entry["subresource"],
    )


def _has(log: Path, start: int, text: str) -> bool:
    with log.open("rb") as stream:
        stream.seek(start)
        return text.encode() in stream.read()


def _whole_lines(log: Path) -> int:
    """The length of a log up to its last line end."""
    size = log.stat().st_size
    with log.open("rb") as stream:
        stream.seek(max(0, size - (1 << 22)))
        return size - len(stream.read().rpartition(b"\n")[2])

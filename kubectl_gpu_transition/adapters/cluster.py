"""The API server: transport by urllib3, objects as plain JSON.

Reads are quorum reads and may be tried again; a patch is sent once, and every error is sorted by the one question that matters:
was it refused for certain, or may it have happened? No client object or exception leaves this module.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import urllib3

from kubectl_gpu_transition import kinds
from kubectl_gpu_transition.adapters.kubeconfig import Kubeconfig
from kubectl_gpu_transition.facts import Facts
from kubectl_gpu_transition.failures import (
    Failure,
    Forbidden,
    LostGuard,
    Malformed,
    Missing,
    RefusedByServer,
    UnknownOutcome,
    Unreachable,
)
from kubectl_gpu_transition.model import FIELD_MANAGER, NodeView, Problem
from kubectl_gpu_transition.views import node_view, pod_view

T = TypeVar("T")
PAGE = 500  # objects a page, as kubectl asks for
_TRIES = 3  # of a read, and of a patch that the server had no time for (429)
_PAUSE = 0.3  # seconds between two tries
_NODE = "/api/v1/nodes/{}"
PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
_REQUESTED = "reconcile.fluxcd.io/requestedAt"  # any new value makes Flux's controllers reconcile (fluxcd/flux2: cmd/flux/reconcile.go)
_VOLUMES = "/api/v1/persistentvolumeclaims"


@dataclass(frozen=True)
class Collection:
    """One field of ``Facts``: where its objects are listed, by which field selector (``{node}`` in it), and what each becomes.

    ``paths`` are the API versions, newest first; none of them served means that there are no such objects, unless ``always`` says that
    every server has them. ``watched`` ones are what a wait depends on.
    """

    field: str
    paths: tuple[str, ...]
    view: Callable[[object], Any]
    selector: str = ""
    always: bool = False
    watched: bool = True

    def query(self, node: str) -> dict[str, str]:
        """The query of its list and watch."""
        return {"fieldSelector": self.selector.format(node=node)} if self.selector else {}


def _dra(plural: str) -> tuple[str, ...]:
    return tuple(f"/apis/resource.k8s.io/{version}/{plural}" for version in ("v1", "v1beta2", "v1beta1"))


COLLECTIONS = (
    Collection("pods", (PODS,), pod_view, "spec.nodeName={node}", always=True),
    Collection("unbound", (PODS,), pod_view, "spec.nodeName=", always=True),
    Collection("permitted", ("/apis/kubevirt.io/v1/kubevirts",), kinds.permitted_host_devices),
    Collection("classes", _dra("deviceclasses"), kinds.class_resource),
    Collection("claims", _dra("resourceclaims"), kinds.claim_view),
    Collection("slices", _dra("resourceslices"), kinds.slice_view),
    Collection("machines", ("/apis/kubevirt.io/v1/virtualmachineinstances",), kinds.machine_view),
    Collection("maintenances", ("/apis/nodemaintenance.medik8s.io/v1beta1/nodemaintenances",), kinds.maintenance_view),
    Collection("daemonsets", ("/apis/apps/v1/daemonsets",), kinds.daemonset_view, always=True),
    Collection("rules", ("/apis/nfd.k8s-sigs.io/v1alpha1/nodefeaturerules",), kinds.rule_object),
    Collection("kustomizations", ("/apis/kustomize.toolkit.fluxcd.io/v1/kustomizations",), kinds.kustomization_view),
    Collection("sources", ("/apis/source.toolkit.fluxcd.io/v1/gitrepositories",), kinds.source_view),
    Collection("policies", ("/apis/nvidia.com/v1/clusterpolicies",), kinds.policy_view, watched=False),
    Collection(
        "settings",
        ("/api/v1/namespaces/flux-system/configmaps",),
        kinds.settings_view,
        "metadata.name=cluster-config",
        always=True,
        watched=False,
    ),
)
_CLAIMED = Collection("volumes", (_VOLUMES,), kinds.volume_view, always=True)
_SURVEYED = frozenset({"pods", "permitted", "classes", "claims", "slices", "machines", "kustomizations", "sources"})
NODE = Collection("node", (NODES,), node_view, "metadata.name={node}", always=True)
WATCHED = (NODE, *(collection for collection in COLLECTIONS if collection.watched))


class ServerStatus(Exception):
    """An answer that is not 2xx: code, and the server's own words. Never leaves the adapters."""

    def __init__(self, code: int, message: str, reason: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.code, self.message, self.reason, self.retry_after = code, message, reason, retry_after


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _side_by_side(ask: Callable[[Collection], T], wanted: Sequence[Collection]) -> list[T]:
    pool = ThreadPoolExecutor(max_workers=len(wanted))
    try:
        return list(pool.map(ask, wanted))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # after an interrupt nobody waits for a server that does not answer


class KubeCluster:
    """One API server, as the port ``Cluster``. ``timeout`` in seconds for one request; ``log`` gets a line for each, without secrets."""

    def __init__(self, kubeconfig: Kubeconfig, timeout: float, log: Callable[[str], None]) -> None:
        self._kubeconfig, self.timeout, self._log = kubeconfig, timeout, log
        self.context, self.server = kubeconfig.context, kubeconfig.server
        self._served: dict[str, str] = {}  # the path that was served last, by the collection's field

    # ------------------------------------------------------------ transport

    def send(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: bytes | None = None,
        kind: str = "",
        stream: bool = False,
        read_timeout: float | None = None,
        late: Callable[[], bool] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """One request, once; not at all (RefusedByServer) where ``late`` says so once the credentials are there.

        Raises ServerStatus for an answer that is not 2xx, urllib3's errors for no answer, Forbidden where there is no credential.
        """
        url = f"{self.server}{path}" + (f"?{urlencode(query)}" if query else "")
        timeout = urllib3.Timeout(connect=self.timeout, read=read_timeout or self.timeout)
        for attempt in range(2):
            headers = {"Accept": "application/json", "User-Agent": FIELD_MANAGER, **self._kubeconfig.headers()}
            if body is not None:
                headers["Content-Type"] = kind
            pool = self._kubeconfig.pool()
            if late is not None and late():
                raise RefusedByServer("too-late", "the look that decided had become too old before the patch could be sent")
            begun = time.monotonic()
            code: int | str = "no answer"
            try:
                response = pool.request(
                    method, url, body=body, headers=headers, timeout=timeout, retries=False, redirect=False, preload_content=not stream
                )
                code = response.status
            finally:
                self._log(f"{method} {url} -> {code} ({time.monotonic() - begun:.3f} s)")
            # Nobody acts on a request of somebody unknown, so it may be sent again as somebody known.
            if response.status != 401 or attempt or not self._kubeconfig.renew():
                break
        if not 200 <= response.status < 300:
            raise _status(response)
        return response

    def _read(self, path: str, query: dict[str, str] | None = None) -> Any:
        """GET as JSON; tried again on no answer, 429 and 5xx.

        Raises Missing (404), Forbidden, Unreachable, Malformed; ServerStatus for 410.
        """
        failure: Failure | None = None
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE)
            try:
                data = self.send("GET", path, query or {}).data
            except ServerStatus as status:
                if status.code == 410:
                    raise
                failure = self._failure(status, path)
                if status.code != 429 and status.code < 500:
                    raise failure from None
                continue
            except urllib3.exceptions.HTTPError as error:
                failure = self._unreachable(error)
                # What breaks off a handshake half-way passes; a certificate that is not the right one stays so.
                if failure.id == "certificate" or isinstance(
                    error, (urllib3.exceptions.NewConnectionError, urllib3.exceptions.TimeoutError)
                ):
                    break
                continue
            try:
                return json.loads(data)
            except ValueError:
                failure = Malformed(
                    "malformed-answer",
                    f"the API server's answer to GET {path} is not JSON",
                    "see what stands between here and the API server",
                )
        assert failure is not None
        raise failure

    def _failure(self, status: ServerStatus, path: str) -> Failure:
        if status.code == 401:
            return Forbidden(
                "unauthorized",
                f"the API server {self.server} does not accept the credentials of context {self.context} (401)",
                "log in again, or name another --kubeconfig",
            )
        if status.code == 403:
            return Forbidden("forbidden", f"not allowed (403): {status.message}", "ask for the permission: see the README's role")
        if status.code == 404:
            # Only the API server itself says that an object is not there; of an API that it does not serve, anybody's 404 will do.
            return Missing("not-found" if status.reason == "NotFound" else "not-served", f"{path}: not found (404): {status.message}")
        return Unreachable(
            "server-error", f"the API server answered {status.code} to {path}: {status.message}", "try again when the API server is well"
        )

    def _unreachable(self, error: Exception) -> Failure:
        reason = _first_line(getattr(error, "reason", None) or error)
        if "CERTIFICATE_VERIFY_FAILED" in str(error) or "certificate verify failed" in str(error):
            return Unreachable(
                "certificate",
                f"the certificate of {self.server} is not that of this kubeconfig's authority: {reason}",
                "check --kubeconfig and --context: this may be another cluster",
            )
        return Unreachable(
            "unreachable", f"the API server {self.server} can not be reached: {reason}", "check --kubeconfig, --context and the network"
        )

    def list_pages(self, path: str, query: dict[str, str]) -> tuple[list[Any], str]:
        """Every item, to the last page, and the list's resource version; an expired continue token starts over."""
        for _ in range(_TRIES):
            items: list[Any] = []
            token = ""
            try:
                while True:
                    page = self._read(path, {**query, "limit": str(PAGE), **({"continue": token} if token else {})})
                    found = page.get("items") if isinstance(page, dict) else None
                    if not isinstance(found, list):
                        if found is None and isinstance(page, dict) and "metadata" in page:
                            found = []
                        else:
                            raise Malformed("malformed-answer", f"the list {path} has no items")
                    items += found
                    meta = page.get("metadata") or {}
                    token = meta.get("continue") or ""
                    if not token:
                        return items, str(meta.get("resourceVersion") or "")
            except ServerStatus:
                continue
        raise Unreachable(
            "list-expired", f"the list {path} expired {_TRIES} times while it was read", "try again when the API server is well"
        )

    def list_collection(self, collection: Collection, node: str) -> tuple[list[Any], str, str]:
        """Every item, the list's version, and the path that is served; no path and no items where none of them is.

        Raises Missing for what every server has: whoever said so is not the API server.
        """
        known = self._served.get(collection.field)
        missing: Missing | None = None
        for path in (known, *(path for path in collection.paths if path != known)):
            if path is None:
                continue
            try:
                items, version = self.list_pages(path, collection.query(node))
            except Missing as error:
                missing = error
                continue
            self._served[collection.field] = path
            return items, version, path
        if collection.always and missing is not None:
            raise missing
        return [], "", ""

    # ------------------------------------------------------------ the port

    def read_node(self, name: str) -> NodeView | None:
        """The node, or None where it does not exist."""
        try:
            return node_view(self._read(_NODE.format(quote(name))))
        except Missing as missing:
            if missing.id == "not-found":
                return None
            raise Unreachable("node-unread", missing.message, "see what stands between here and the API server") from missing

    def read_facts(self, node: str, whole: bool) -> Facts:
        """Every collection, side by side; without ``whole`` only those that a wait depends on."""
        wanted = COLLECTIONS if whole else WATCHED[1:]
        answers = _side_by_side(lambda collection: self._views(collection, node), wanted)
        found = {collection.field: answer for collection, answer in zip(wanted, answers, strict=True)}
        unbound = found["unbound"]
        if not isinstance(unbound, Problem) and any(pod.volumes for pod in unbound):
            found["volumes"] = self._views(_CLAIMED, node)
        return Facts(**found)

    def read_nodes(self) -> tuple[NodeView, ...]:
        """Every node, to the last page."""
        return tuple(node_view(item) for item in self.list_pages(NODES, {})[0])

    def read_everything(self) -> Facts:
        """Every collection that a status needs, side by side, the pods of all nodes in one list."""
        wanted = [replace(collection, selector="") for collection in COLLECTIONS if collection.field in _SURVEYED]
        answers = _side_by_side(lambda collection: self._views(collection, ""), wanted)
        found: dict[str, Any] = {collection.field: answer for collection, answer in zip(wanted, answers, strict=True)}
        pods = found["unbound"] = found["pods"]
        if not isinstance(pods, Problem):
            found["pods"], found["unbound"] = tuple(pod for pod in pods if pod.node), tuple(pod for pod in pods if not pod.node)
            if any(pod.volumes for pod in found["unbound"]):
                found["volumes"] = self._views(_CLAIMED, "")
        return Facts(**found)

    def _views(self, collection: Collection, node: str) -> tuple[Any, ...] | Problem:
        try:
            return tuple(collection.view(item) for item in self.list_collection(collection, node)[0])
        except Failure as failure:
            return Problem(failure.message, failure.remedy)

    def patch_node(
        self, name: str, operations: Sequence[dict[str, Any]], dry_run: bool = False, late: Callable[[], bool] | None = None
    ) -> NodeView:
        """One JSON patch; see the port for what it raises."""
        query = {"fieldManager": FIELD_MANAGER, **({"dryRun": "All"} if dry_run else {})}
        body = json.dumps(list(operations)).encode()
        for attempt in range(_TRIES):
            try:
                data = self.send("PATCH", _NODE.format(quote(name)), query, body, "application/json-patch+json", late=late).data
                return node_view(json.loads(data))
            except ServerStatus as status:
                if status.code == 429 and attempt + 1 < _TRIES:  # refused before it was looked at: the only answer to try again after
                    time.sleep(min(status.retry_after or _PAUSE, 5.0))
                    continue
                raise self._write_failure(status, name) from None
            except urllib3.exceptions.NewConnectionError as error:
                raise RefusedByServer(
                    "not-sent", f"the patch was not sent: {self._unreachable(error)}", "check the network, then try again"
                ) from error
            except urllib3.exceptions.HTTPError as error:
                raise UnknownOutcome(
                    "patch-unknown",
                    f"whether the patch of the node took effect is unknown: {self._unreachable(error)}",
                    "look at the node before anything else",
                ) from error
            except (ValueError, Malformed) as error:
                raise UnknownOutcome(
                    "patch-unknown",
                    f"the answer to the patch of the node is not readable: {_first_line(error)}",
                    "look at the node before anything else",
                ) from error
        raise AssertionError("unreachable: the loop returns or raises")

    def ask_flux(self, collection: str, namespace: str, name: str) -> str:
        """Set ``reconcile.fluxcd.io/requestedAt`` to a value it has never had; see the port."""
        group, _, plural = next(found.paths[0] for found in COLLECTIONS if found.field == collection).rpartition("/")
        path = f"{group}/namespaces/{quote(namespace)}/{plural}/{quote(name)}"
        value = datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
        body = json.dumps({"metadata": {"annotations": {_REQUESTED: value}}}).encode()
        try:
            answer = json.loads(self.send("PATCH", path, {"fieldManager": FIELD_MANAGER}, body, "application/merge-patch+json").data)
            shown = answer["metadata"]["annotations"][_REQUESTED]
        except ServerStatus as status:
            raise self._failure(status, path) from None
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(error) from error
        except (ValueError, LookupError, TypeError) as error:
            raise Malformed("malformed-answer", f"the answer to the request at {path} does not show it") from error
        if shown != value:
            raise Malformed("malformed-answer", f"the request at {path} did not stay")
        return value

    def _write_failure(self, status: ServerStatus, name: str) -> Failure:
        if status.code == 429:
            return RefusedByServer(
                "busy", f"the API server has no time for the patch of the node (429): {status.message}", "try again later"
            )
        if status.code == 404 and status.reason != "NotFound":
            message = f"something before the API server answered 404 to the patch of the node: {status.message}"
            return UnknownOutcome("patch-unknown", message, "look at the node before anything else")
        if status.code in (409, 422):
            return LostGuard("lost-guard", f"the node changed under the patch ({status.code}): {status.message}")
        if status.code >= 500:
            return UnknownOutcome(
                "patch-unknown",
                f"the API server answered {status.code} to the patch of the node: {status.message}",
                "look at the node before anything else",
            )
        if status.code in (401, 403, 404):
            return self._failure(status, f"node {name}")
        return RefusedByServer(
            "patch-refused", f"the API server refused the patch of the node ({status.code}): {status.message}", "see what it says"
        )

    def events(self, path: str, query: dict[str, str], seconds: float) -> Iterator[dict[str, Any]]:
        """One watch: its events until the server ends it. Raises ServerStatus, or urllib3's and JSON's errors when it breaks."""
        asked = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(int(seconds))}
        response = self.send("GET", path, asked, stream=True, read_timeout=seconds + 10)
        try:
            rest = b""
            for chunk in response.stream(65536, decode_content=True):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        event = json.loads(line)
                        if not isinstance(event, dict):
                            raise ValueError("a watch event is not an object")
                        yield event
        finally:
            response.close()

    def probe_watches(self, node: str) -> Problem | None:
        """Start and end each watch of the wait, side by side."""
        return next((problem for problem in _side_by_side(lambda collection: self._probe(collection, node), WATCHED) if problem), None)

    def _probe(self, collection: Collection, node: str) -> Problem | None:
        path = self._served.get(collection.field, "")
        failure: Failure = Unreachable("no-watch", "no watch could be started")
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE)
            try:
                path = path or self.list_collection(collection, node)[2]  # a watch begins with a list
                if not path:
                    return None
                query = {**collection.query(node), "watch": "true", "timeoutSeconds": "1", "resourceVersion": "0"}
                self.send("GET", path, query, stream=True).close()
                return None
            except ServerStatus as status:
                failure = self._failure(status, path)
                if status.code == 404 and not collection.always:
                    return None
                if status.code in (401, 403):
                    break
            except urllib3.exceptions.HTTPError as error:
                failure = self._unreachable(error)
            except Failure as error:
                failure = error
                break
        return Problem(f"{collection.field} can not be watched: {failure.message}", failure.remedy)

    def watch(self, node: str) -> Any:
        """Start the watches of ``watch.NodeWatch``."""
        from kubectl_gpu_transition.adapters.watch import NodeWatch

        return NodeWatch(self, node)


def _status(response: urllib3.BaseHTTPResponse) -> ServerStatus:
    data = response.data if response.data else response.read()
    try:
        answer = json.loads(data)
        message, reason = str(answer.get("message") or ""), str(answer.get("reason") or "") if answer.get("kind") == "Status" else ""
    except (ValueError, AttributeError):
        message, reason = data[:200].decode("utf-8", "replace").strip(), ""
    wait = response.headers.get("Retry-After", "")
    return ServerStatus(response.status, message, reason, float(wait) if wait.isdigit() else 0.0)

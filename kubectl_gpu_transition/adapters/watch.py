"""Watches of what an observation lists for one node: changes in, signals out. Rides out drops; decides nothing.

Each collection is listed, then watched from the list's version; when a watch ends, for whatever reason, it is listed again, which is
the fresh list at least every five minutes too. Such a new start is told (``broke``): something may have come and gone unseen.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import urllib3

from kubectl_gpu_transition.adapters.cluster import KUBEVIRTS, NODES, PODS, KubeCluster, ServerStatus
from kubectl_gpu_transition.failures import Failure, Missing
from kubectl_gpu_transition.model import NodeView, PodView
from kubectl_gpu_transition.views import node_view, permitted_host_devices, pod_view

WINDOW = 280.0  # seconds of one watch; with the new list that follows it stays below the contract's five minutes
_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)  # seconds before a new start, growing while starts fail
_LASTED = 5.0  # seconds after which a watch that showed nothing still counts as one that worked


@dataclass(frozen=True)
class WatchSignal:
    """Everything as it is known after one change; see the port."""

    node: NodeView | None
    gone: bool
    pods: tuple[PodView, ...] | None
    gpu_names: frozenset[str] | None
    broke: bool
    problem: str | None = None


class NodeWatch:
    """Three watches in daemon threads: the node, its pods, and the KubeVirt CRs that name GPU resources."""

    def __init__(self, cluster: KubeCluster, node: str) -> None:
        self._cluster = cluster
        self._signals: queue.Queue[WatchSignal] = queue.Queue()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._objects: dict[str, dict[str, Any] | None] = {NODES: None, PODS: None, KUBEVIRTS: None}
        for path, query, view in (
            (NODES, {"fieldSelector": f"metadata.name={node}"}, node_view),
            (PODS, {"fieldSelector": f"spec.nodeName={node}"}, pod_view),
            (KUBEVIRTS, {}, permitted_host_devices),
        ):
            threading.Thread(target=self._follow, args=(path, query, view), daemon=True, name=f"watch {path}").start()

    def next_signal(self, seconds: float) -> WatchSignal | None:
        """The next signal in order, or None when none came within so many seconds."""
        try:
            return self._signals.get(timeout=seconds) if seconds > 0 else self._signals.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Let the threads end; they are daemons, and one that waits for the server does not hold anybody up."""
        self._closed.set()

    def _follow(self, path: str, query: dict[str, str], view: Callable[[object], Any]) -> None:
        failures, first = 0, True
        while not self._closed.is_set():
            problem = None
            try:
                version = self._list(path, query, view, broke=not first)
                first = False
                ended = self._watch(path, {**query, "resourceVersion": version}, view)
                failures = 0 if ended else failures + 1
            except Missing as missing:
                if path != KUBEVIRTS:  # nodes and pods are always served: whoever said so is not the API server
                    self._tell(broke=True, problem=missing.message)
                    failures += 1
                    self._closed.wait(_PAUSES[min(failures, len(_PAUSES) - 1)])
                    continue
                self._put(path, {}, broke=not first)  # no such API: there are none of these, until the next look
                first = False
                self._closed.wait(WINDOW)
                continue
            except Failure as failure:
                problem = failure.message
            except ServerStatus as status:
                problem = f"the watch of {path} ended with {status.code}: {status.message}"
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                problem = f"the watch of {path} broke: {error}"
            if problem is not None:
                failures += 1
                self._tell(broke=True, problem=problem)
            self._closed.wait(_PAUSES[min(failures, len(_PAUSES) - 1)] if failures else 0.0)

    def _list(self, path: str, query: dict[str, str], view: Callable[[object], Any], broke: bool) -> str:
        items, version = self._cluster.list_pages(path, query)
        self._put(path, {_key(item): view(item) for item in items}, broke)
        return version

    def _watch(self, path: str, query: dict[str, str], view: Callable[[object], Any]) -> bool:
        """Follow one watch to its end; True when it showed anything or lasted, so that a server which ends it at once is not hurried."""
        seen, begun = False, time.monotonic()
        for event in self._cluster.events(path, query, WINDOW):
            if self._closed.is_set():
                return True
            kind, item = event.get("type"), event.get("object")
            if kind == "BOOKMARK":
                continue
            if kind == "ERROR" or not isinstance(item, dict):
                raise ValueError(str((item or {}).get("message") if isinstance(item, dict) else item))
            seen = True
            with self._lock:
                known = dict(self._objects[path] or {})
                if kind == "DELETED":
                    known.pop(_key(item), None)
                else:
                    known[_key(item)] = view(item)
            self._put(path, known, broke=False)
        return seen or time.monotonic() - begun > _LASTED

    def _put(self, path: str, objects: dict[str, Any], broke: bool) -> None:
        with self._lock:
            self._objects[path] = objects
        self._tell(broke)

    def _tell(self, broke: bool, problem: str | None = None) -> None:
        with self._lock:
            nodes, pods, kubevirts = (self._objects[path] for path in (NODES, PODS, KUBEVIRTS))
            self._signals.put(
                WatchSignal(
                    node=next(iter(nodes.values()), None) if nodes else None,
                    gone=nodes is not None and not nodes,
                    pods=None if pods is None else tuple(pods[key] for key in sorted(pods)),
                    gpu_names=None if kubevirts is None else frozenset().union(*kubevirts.values()),
                    broke=broke,
                    problem=problem,
                )
            )


def _key(item: Any) -> str:
    meta = item.get("metadata") or {}
    return f"{meta.get('namespace', '')}/{meta.get('name', '')}"

"""Watches of what an observation lists for one node: changes in, signals out. Rides out drops; decides nothing.

Each collection is listed, then watched from the list's version; when a watch ends, for whatever reason, it is listed again, which is
the fresh list at least every five minutes too. Such a new start is told (``broke``): something may have come and gone unseen.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

import urllib3

from kubectl_gpu_transition.adapters.cluster import NODE, WATCHED, Collection, KubeCluster, ServerStatus
from kubectl_gpu_transition.facts import Facts
from kubectl_gpu_transition.failures import Failure, Missing
from kubectl_gpu_transition.model import NodeView

WINDOW = 280.0  # seconds of one watch; with the new list that follows it stays below the contract's five minutes
_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)  # seconds before a new start, growing while starts fail
_LASTED = 5.0  # seconds after which a watch that showed nothing still counts as one that worked


@dataclass(frozen=True)
class WatchSignal:
    """Everything as it is known after one change; see the port."""

    node: NodeView | None
    gone: bool
    facts: Facts | None
    broke: bool
    problem: str | None = None


class NodeWatch:
    """One watch a daemon thread: the node, and each collection that a wait depends on."""

    def __init__(self, cluster: KubeCluster, node: str) -> None:
        self._cluster, self._name = cluster, node
        self._signals: queue.Queue[WatchSignal] = queue.Queue()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._objects: dict[str, dict[str, Any]] = {}
        for collection in WATCHED:
            threading.Thread(target=self._follow, args=(collection,), daemon=True, name=f"watch {collection.field}").start()

    def next_signal(self, seconds: float) -> WatchSignal | None:
        """The next signal in order, or None when none came within so many seconds."""
        try:
            return self._signals.get(timeout=seconds) if seconds > 0 else self._signals.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Let the threads end; they are daemons, and one that waits for the server does not hold anybody up."""
        self._closed.set()

    def _follow(self, collection: Collection) -> None:
        failures, first = 0, True
        while not self._closed.is_set():
            problem = None
            try:
                version, path = self._list(collection, broke=not first)
                first = False
                if not path:  # no such API: there are none of these, until the next look
                    self._closed.wait(WINDOW)
                    continue
                ended = self._watch(collection, path, version)
                failures = 0 if ended else failures + 1
            except Missing as missing:
                if not collection.always:  # the API has gone since: it is listed anew
                    failures += 1
                else:  # what every server has: whoever said so is not the API server
                    problem = missing.message
            except Failure as failure:
                problem = failure.message
            except ServerStatus as status:
                problem = f"the watch of {collection.field} ended with {status.code}: {status.message}"
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                problem = f"the watch of {collection.field} broke: {error}"
            if problem is not None:
                failures += 1
                self._tell(broke=True, problem=problem)
            self._closed.wait(_PAUSES[min(failures, len(_PAUSES) - 1)] if failures else 0.0)

    def _list(self, collection: Collection, broke: bool) -> tuple[str, str]:
        items, version, path = self._cluster.list_collection(collection, self._name)
        self._put(collection, {_key(item): collection.view(item) for item in items}, broke)
        return version, path

    def _watch(self, collection: Collection, path: str, version: str) -> bool:
        """Follow one watch to its end; True when it showed anything or lasted, so that a server which ends it at once is not hurried."""
        seen, begun = False, time.monotonic()
        for event in self._cluster.events(path, {**collection.query(self._name), "resourceVersion": version}, WINDOW):
            if self._closed.is_set():
                return True
            kind, item = event.get("type"), event.get("object")
            if kind == "BOOKMARK":
                continue
            if kind == "ERROR" or not isinstance(item, dict):
                raise ValueError(str((item or {}).get("message") if isinstance(item, dict) else item))
            seen = True
            with self._lock:
                known = dict(self._objects[collection.field])
                if kind == "DELETED":
                    known.pop(_key(item), None)
                else:
                    known[_key(item)] = collection.view(item)
            self._put(collection, known, broke=False)
        return seen or time.monotonic() - begun > _LASTED

    def _put(self, collection: Collection, objects: dict[str, Any], broke: bool) -> None:
        with self._lock:
            self._objects[collection.field] = objects
        self._tell(broke)

    def _tell(self, broke: bool, problem: str | None = None) -> None:
        with self._lock:
            nodes = self._objects.get(NODE.field)
            facts = None
            if all(collection.field in self._objects for collection in WATCHED):
                found = {c.field: self._objects[c.field] for c in WATCHED if c is not NODE}
                facts = Facts(**{field: tuple(objects[key] for key in sorted(objects)) for field, objects in found.items()})
            self._signals.put(
                WatchSignal(
                    node=next(iter(nodes.values()), None) if nodes else None,
                    gone=nodes is not None and not nodes,
                    facts=facts,
                    broke=broke,
                    problem=problem,
                )
            )


def _key(item: Any) -> str:
    meta = item.get("metadata") or {}
    return f"{meta.get('namespace', '')}/{meta.get('name', '')}"

"""One world for many tests that only make a state and look, put back between them.

Responsible for making the world anew only where it can not be put back. Nothing in it moves by itself but the kubelet and the
controllers: Flux, NFD and the GPU operator are paused, so that a test can make any state it likes.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, final

from tests.harness.backend import Backend
from tests.harness.kube import ApiError, Json
from tests.harness.world import CONFIG_MAPS, DAEMONSETS, FLUX, NODES, POLICIES, RULES, SOURCES, World

_COLLECTIONS = (
    "/api/v1/pods",
    NODES,
    FLUX,
    SOURCES,
    RULES,
    POLICIES,
    DAEMONSETS,
    CONFIG_MAPS,
    "/apis/kubevirt.io/v1/kubevirts",
    "/apis/kubevirt.io/v1/virtualmachineinstances",
)
_SECONDS = 5.0  # to become as it was


@final
class Keeper:
    """Keeps at most one world; ``close`` it before anything else uses its backend."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._backup = root / "backup"
        self._stack = contextlib.ExitStack()
        self._world: World | None = None
        self._objects: dict[str, list[Json]] = {}
        self._picture: Any = None

    def open(self, backend: Backend) -> World:
        """The world as new: the one that is there put back, or another one."""
        if self._world is not None and (self._world.backend is not backend or not self._restore(self._world)):
            self.close()
        if self._world is None:
            self._world = self._make(backend)
        self._world.since = backend.mark()
        return self._world

    def close(self) -> None:
        """Give the world up."""
        self._world = None
        self._stack.close()

    def _make(self, backend: Backend) -> World:
        backend.reset()
        world = self._stack.enter_context(World(backend, Path(tempfile.mkdtemp(dir=self._root))))
        for actor in world.player.actors:
            actor.paused = actor is not world.player.kubelet
        shutil.rmtree(self._backup, ignore_errors=True)
        shutil.copytree(world.fleet.root, self._backup, symlinks=True)
        self._objects = {collection: world.kube.list(collection) for collection in _COLLECTIONS}
        self._picture = _picture(self._objects)
        return world

    def _restore(self, world: World) -> bool:
        """Whether the world could be made as it was."""
        if world.fleet.snapshot(world.fleet.root) != world.fleet.snapshot(self._backup):
            shutil.rmtree(world.fleet.root)
            shutil.copytree(self._backup, world.fleet.root, symlinks=True)
        for place in (world.home, world.scratch):
            shutil.rmtree(place)
            place.mkdir()
        world.player.kubelet.heal()
        end = time.monotonic() + _SECONDS
        while _picture(now := {collection: world.kube.list(collection) for collection in _COLLECTIONS}) != self._picture:
            if time.monotonic() > end:
                return False
            for collection, items in now.items():
                for item in items:
                    self._put_back(world, collection, item)
                for item in self._objects[collection]:
                    if _uid(item) not in map(_uid, items) and not _is_made_by_daemonset(item):
                        return False
            time.sleep(0.05)
        return True

    def _put_back(self, world: World, collection: str, item: Json) -> None:
        path = f"{_place(collection, item)}/{item['metadata']['name']}"
        was = next((other for other in self._objects[collection] if _uid(other) == _uid(item)), None)
        with contextlib.suppress(ApiError):  # it has changed meanwhile: the next look tells
            if was is None and not _is_made_by_daemonset(item):
                if item["metadata"].get("finalizers"):
                    world.kube.patch(path, {"metadata": {"finalizers": None}})
                world.kube.delete(path, grace=0)
            elif was is not None and _describe(was) != _describe(item) and collection != _COLLECTIONS[0]:
                metadata = {**was["metadata"], "resourceVersion": item["metadata"]["resourceVersion"]}
                metadata.pop("managedFields", None)
                world.kube.replace(path, {**_typed(collection, was), "metadata": metadata})
                if was.get("status", {}).get("conditions") != item.get("status", {}).get("conditions"):
                    world.kube.patch(f"{path}/status", {"status": {"conditions": was["status"]["conditions"]}})


def _uid(item: Json) -> str:
    return str(item["metadata"]["uid"])


def _place(collection: str, item: Json) -> str:
    """The collection in the item's own namespace."""
    if "namespace" not in item["metadata"] or "/namespaces/" in collection:
        return collection
    prefix, _, plural = collection.rpartition("/")
    return f"{prefix}/namespaces/{item['metadata']['namespace']}/{plural}"


def _typed(collection: str, item: Json) -> Json:
    """The item with its apiVersion and kind, which the lists of the server's own kinds leave out."""
    return {"apiVersion": "v1", "kind": "Node", **item} if collection == NODES else item


def _is_made_by_daemonset(item: Json) -> bool:
    return any(reference["kind"] == "DaemonSet" for reference in item["metadata"].get("ownerReferences") or [])


def _describe(item: Json) -> Any:
    """What a test may have changed about an object. The pods of a DaemonSet are as good as each other."""
    metadata, status = item["metadata"], item.get("status") or {}
    conditions = sorted((condition["type"], condition["status"]) for condition in status.get("conditions") or [])
    if _is_made_by_daemonset(item):
        return [reference["name"] for reference in metadata["ownerReferences"]], conditions, "deletionTimestamp" in metadata
    keep = {key: metadata.get(key) for key in ("name", "labels", "annotations", "deletionTimestamp")}
    return keep, item.get("spec"), item.get("data"), conditions, status.get("allocatable")


def _picture(objects: dict[str, list[Json]]) -> Any:
    return {collection: sorted(json.dumps(_describe(item), sort_keys=True) for item in items) for collection, items in objects.items()}

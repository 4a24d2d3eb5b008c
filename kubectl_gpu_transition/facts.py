"""What an observation holds: every collection of the cluster that a decision needs, as frozen data. Nothing here reads or decides.

Each field of ``Facts`` is one read of its own; one that could not be read is a ``Problem`` in its place. An API that the cluster does
not serve has no objects: the field is empty (spec section 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kubectl_gpu_transition.model import CheckoutFacts, NodeView, PodView, Problem, TipFacts


@dataclass(frozen=True)
class Device:
    """One device of an allocation: ``status.allocation.devices.results[]`` of a ResourceClaim."""

    driver: str
    pool: str
    name: str
    admin: bool


@dataclass(frozen=True)
class ClaimView:
    """A ResourceClaim (resource.k8s.io). ``devices`` is None where it is not allocated; ``reserved`` names who may use it, as
    ``pods/NAME``; ``only_node`` is the one node that its allocation admits, where the node selector says so by the node's name."""

    namespace: str
    name: str
    devices: tuple[Device, ...] | None
    reserved: tuple[str, ...]
    only_node: str | None
    deleting_since: str | None = None


@dataclass(frozen=True)
class SliceView:
    """A ResourceSlice: driver, pool, the node it is of (None for one of several nodes), and the devices that name a node of their own."""

    driver: str
    pool: str
    node: str | None
    devices: tuple[str, ...]
    device_nodes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MachineView:
    """A KubeVirt VirtualMachineInstance. ``devices`` are the names (deviceName, else claimName) of its gpus and hostDevices,
    ``active`` the nodes with an active pod of it, ``migrating_to`` the target of a migration that has not ended."""

    namespace: str
    name: str
    uid: str
    phase: str
    node: str
    devices: tuple[str, ...]
    active: frozenset[str]
    migrating_to: str | None
    deleting_since: str | None = None


@dataclass(frozen=True)
class VolumeView:
    """A PersistentVolumeClaim: the node that the scheduler has chosen for it, empty for none, and whether it is Bound."""

    namespace: str
    name: str
    node: str
    bound: bool


@dataclass(frozen=True)
class MaintenanceView:
    """A NodeMaintenance of medik8s, and the node that it names."""

    name: str
    node: str


@dataclass(frozen=True)
class Requirement:
    """One requirement of a node affinity's term: on a label, or with ``field`` on a field of the node."""

    key: str
    operator: str
    values: tuple[str, ...]
    field: bool = False


@dataclass(frozen=True)
class DaemonSetView:
    """A DaemonSet: which nodes its pods' node selector and required node affinity want (one of ``node_terms``; None for no affinity),
    and its annotations."""

    namespace: str
    name: str
    node_selector: Mapping[str, str]
    annotations: Mapping[str, str]
    node_terms: tuple[tuple[Requirement, ...], ...] | None = None


@dataclass(frozen=True)
class RuleObject:
    """A NodeFeatureRule as it is in the cluster; ``rules`` as the API serves them."""

    name: str
    annotations: Mapping[str, str]
    rules: tuple[Any, ...]


@dataclass(frozen=True)
class Condition:
    """One of ``status.conditions``."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True)
class KustomizationView:
    """A Kustomization of Flux. ``source`` is kind, namespace and name; ``depends_on`` namespace and name of each."""

    namespace: str
    name: str
    path: str
    source: tuple[str, str, str]
    depends_on: tuple[tuple[str, str], ...]
    suspended: bool
    observed: bool
    conditions: Mapping[str, Condition]
    applied: str | None
    handled: str | None = None


@dataclass(frozen=True)
class SourceView:
    """A GitRepository of Flux. ``url`` is without user info, for showing; ``ref`` the branch, or what else is followed (``tag v1``)."""

    namespace: str
    name: str
    url: str
    ref: str
    suspended: bool
    observed: bool
    conditions: Mapping[str, Condition]
    revision: str | None
    handled: str | None = None


@dataclass(frozen=True)
class PolicyView:
    """The GPU operator's ClusterPolicy, as far as it decides what runs on a node."""

    name: str
    sandbox_enabled: bool
    sandbox_mode: str
    default_workload: str
    device_plugin_enabled: bool


@dataclass(frozen=True)
class Facts:
    """Everything that is read of the cluster beside the node. ``pods`` are those bound to the node, ``unbound`` those bound to none;
    ``volumes`` is read only where one of the latter has a claim. The last two are read for a preflight alone."""

    pods: tuple[PodView, ...] | Problem = ()
    unbound: tuple[PodView, ...] | Problem = ()
    volumes: tuple[VolumeView, ...] | Problem = ()
    permitted: tuple[frozenset[str], ...] | Problem = ()
    classes: tuple[str | None, ...] | Problem = ()
    claims: tuple[ClaimView, ...] | Problem = ()
    slices: tuple[SliceView, ...] | Problem = ()
    machines: tuple[MachineView, ...] | Problem = ()
    maintenances: tuple[MaintenanceView, ...] | Problem = ()
    daemonsets: tuple[DaemonSetView, ...] | Problem = ()
    rules: tuple[RuleObject, ...] | Problem = ()
    kustomizations: tuple[KustomizationView, ...] | Problem = ()
    sources: tuple[SourceView, ...] | Problem = ()
    policies: tuple[PolicyView, ...] | Problem = ()
    settings: tuple[Mapping[str, str], ...] | Problem = ()

    def find_problem(self, *names: str) -> Problem | None:
        """The first of these fields (all where none is named) that could not be read."""
        wanted = names or tuple(field.name for field in fields(self))
        return next((value for name in wanted if isinstance(value := getattr(self, name), Problem)), None)


@dataclass(frozen=True)
class Observation:
    """One set of fresh reads of everything a decision needs. ``node`` is None where it does not exist. ``taken`` is the monotonic
    time in seconds of its last read."""

    node: NodeView | Problem | None
    facts: Facts
    checkout: CheckoutFacts
    tip: TipFacts | Problem
    taken: float

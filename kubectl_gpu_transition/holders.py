"""Who holds a GPU on the node: everything that was read of the cluster in, holders by controller out (spec section 5). Pure.

Pods that are bound to the node, terminating ones included (a device is theirs until their containers are gone), pods that are promised
to it, virtual machines, and claims of dynamic resource allocation. Advice never offers a forced deletion.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from kubectl_gpu_transition.facts import ClaimView, Device, Facts, MachineView, SliceView, VolumeView
from kubectl_gpu_transition.model import Holder, PodView, Problem, Request
from kubectl_gpu_transition.modes import STACK_NAMESPACES

# Prefixes of native GPU resources (spec section 5); DRA's implicit extended resources begin with the last one.
_PREFIXES = ("nvidia.com/", "requests.nvidia.com/", "gpu.intel.com/", "amd.com/gpu", "deviceclass.resource.kubernetes.io/")
# kube-dc's allocation canary: a real, short-lived holder (kube-dc-public: cli/internal/bootstrap/adapters/k8s/gpu_dra.go).
_CANARY = ("gpu-operator", "hami-device-plugin-canary")
# What the GPU operator's validator starts on the node by itself (NVIDIA/gpu-operator: cmd/nvidia-validator/main.go).
_VALIDATOR = "nvidia-device-plugin-validator"


def is_gpu_resource(name: str, more: frozenset[str]) -> bool:
    """Whether a resource name counts as a GPU; ``more`` are names from KubeVirt, DeviceClasses and --gpu-resource."""
    return name.startswith(_PREFIXES) or name in more


# What has to be read before anybody can say that nobody holds a GPU.
_NEEDED = ("pods", "unbound", "volumes", "permitted", "classes", "claims", "slices", "machines")


@dataclass(frozen=True)
class _Known:
    """The facts that decide, all of them read, for one node."""

    node: str
    names: frozenset[str]
    ignored: frozenset[str]
    pods: tuple[PodView, ...]
    unbound: tuple[PodView, ...]
    volumes: tuple[VolumeView, ...]
    claims: tuple[ClaimView, ...]
    slices: tuple[SliceView, ...]
    machines: tuple[MachineView, ...]

    # ------------------------------------------------------------ pods

    def gpu_resources(self, pod: PodView) -> tuple[str, ...]:
        """What of a GPU a pod has or asks for on this node: resource names, claims as ``claim NAME``, HAMi's allocation as
        ``annotation KEY``; empty for nothing."""
        names = sorted(name for name in pod.resources if is_gpu_resource(name, self.names))
        claims = sorted(c.name or c.reference for c in pod.claims if not self._is_exempt(self._find_claim(pod.namespace, c.name)))
        allocations = pod.allocations if pod.allocated_node in ("", self.node) else ()
        return (*names, *(f"claim {name}" for name in claims), *(f"annotation {key}" for key in allocations))

    def find_promise(self, pod: PodView) -> str | None:
        """Why a pod that is bound to no node will be on this one, or None: its scheduler decided, and does not look at a cordon again."""
        if pod.nominated == self.node:
            return "nominated to the node"
        if pod.allocated_node == self.node and pod.bind_phase != "failed":
            return "HAMi has chosen the node for it"
        placed = {(volume.namespace, volume.name) for volume in self.volumes if volume.node == self.node and not volume.bound}
        if placed & {(pod.namespace, name) for name in pod.volumes}:
            return "its volume is placed on the node"
        return None

    def holding_pods(self) -> Iterator[tuple[PodView, str | None]]:
        """Each pod that holds, with the promise of one that is not bound."""
        for pod in self.pods:
            if pod.node == self.node and not pod.finished and self.gpu_resources(pod):
                yield pod, None
        for pod in self.unbound:
            promise = self.find_promise(pod)
            if not pod.node and not pod.finished and promise and self.gpu_resources(pod):
                yield pod, promise

    # ------------------------------------------------------------ claims and machines

    def _find_claim(self, namespace: str, name: str | None) -> ClaimView | None:
        return next((claim for claim in self.claims if (claim.namespace, claim.name) == (namespace, name)), None)

    def _is_exempt(self, claim: ClaimView | None) -> bool:
        """Whether a claim takes nothing away: it was read, has devices, and each is for administration or of an ignored driver."""
        devices = claim.devices if claim else None
        return bool(devices) and all(device.admin or device.driver in self.ignored for device in devices or ())

    def _is_here(self, claim: ClaimView) -> bool:
        return any(self._is_of_node(device, claim) for device in claim.devices or ())

    def _is_of_node(self, device: Device, claim: ClaimView) -> bool:
        slices = [found for found in self.slices if (found.driver, found.pool) == (device.driver, device.pool)]
        if not slices:  # its driver has gone, and has left the claim behind
            return self.node in (device.pool, claim.only_node)
        return any(found.node == self.node or found.device_nodes.get(device.name) == self.node for found in slices)

    def claims_here(self, exempt: bool) -> Iterator[ClaimView]:
        """Claims with a device of the node: those that hold, or those that are shown only."""
        yield from (claim for claim in self.claims if self._is_here(claim) and self._is_exempt(claim) == exempt)

    def machines_here(self) -> Iterator[MachineView]:
        """Virtual machines with a GPU or host device on the node or on their way to it."""
        for machine in self.machines:
            here = self.node in (machine.node, machine.migrating_to) or self.node in machine.active
            if here and machine.devices and machine.phase not in ("Succeeded", "Failed"):
                yield machine


def _know(facts: Facts, request: Request) -> _Known | Problem:
    problem = facts.find_problem(*_NEEDED)
    if problem is not None:
        return problem
    found = {name: value for name in _NEEDED if not isinstance(value := getattr(facts, name), Problem)}
    names = frozenset().union(request.gpu_resources, *found.pop("permitted"), (name for name in found.pop("classes") if name))
    return _Known(request.node, names, frozenset(request.ignore_dra_drivers), **found)


@dataclass
class _Group:
    """The holder in the making: what one controller has on the node."""

    resources: set[str] = field(default_factory=set)
    pods: list[PodView] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    promises: list[str] = field(default_factory=list)
    machine: MachineView | None = None
    claim: ClaimView | None = None


def find_holders(facts: Facts, request: Request) -> tuple[Holder, ...] | Problem:
    """Every holder on the request's node, sorted, grouped by controller (namespace, kind, name); a Problem where anything that could
    show one was not read."""
    known = _know(facts, request)
    if isinstance(known, Problem):
        return known
    groups: dict[tuple[str, str, str], _Group] = {}
    shown = set()
    for pod, promise in known.holding_pods():
        group = groups.setdefault(_controller(pod), _Group())
        group.resources.update(known.gpu_resources(pod))
        group.pods.append(pod)
        group.names.append(pod.name)
        group.promises += [promise] if promise else []
        shown |= {(pod.namespace, claim.name) for claim in pod.claims}
    for machine in known.machines_here():
        group = groups.setdefault((machine.namespace, "VirtualMachineInstance", machine.name), _Group())
        group.resources.update(machine.devices)
        group.machine = machine
    for claim in known.claims_here(exempt=False):
        if (claim.namespace, claim.name) not in shown:
            group = groups.setdefault((claim.namespace, "ResourceClaim", claim.name), _Group())
            group.resources.update(f"device {device.driver}/{device.pool}/{device.name}" for device in claim.devices or ())
            group.names += [user.removeprefix("pods/") for user in claim.reserved]
            group.claim = claim
    return tuple(_holder(*key, group) for key, group in sorted(groups.items(), key=lambda item: item[0]))


def find_exempt(facts: Facts, request: Request) -> tuple[str, ...]:
    """Claims on the node that are shown and not counted, in words: for administration only, or of drivers that were named as none of
    a GPU."""
    known = _know(facts, request)
    if isinstance(known, Problem):
        return ()
    found = []
    for claim in known.claims_here(exempt=True):
        drivers = ", ".join(sorted({f"{d.driver}{' (adminAccess)' if d.admin else ' (ignored)'}" for d in claim.devices or ()}))
        found.append(f"claim {claim.namespace}/{claim.name} of {drivers}")
    return tuple(sorted(found))


def find_unasked(facts: Facts, request: Request) -> tuple[str, ...]:
    """Pods on the node that can reach its GPUs without asking for one, outside the stack's own namespaces, in words. They hold nothing that
    the scheduler knows of, so they are shown and do not block (spec section 7)."""
    known = _know(facts, request)
    if isinstance(known, Problem):
        return ()
    return tuple(
        sorted(
            f"pod {pod.namespace}/{pod.name} reaches GPUs without asking for one ({', '.join(pod.reaches)})"
            for pod in known.pods
            if pod.node == known.node and pod.reaches and not pod.finished and pod.namespace not in STACK_NAMESPACES
            if not known.gpu_resources(pod)
        )
    )


def _controller(pod: PodView) -> tuple[str, str, str]:
    if pod.controller is None or pod.static:  # the mirror of a static pod is "controlled" by its node
        return pod.namespace, "Pod", pod.name
    return pod.namespace, pod.controller.kind, pod.controller.name


def _holder(namespace: str, kind: str, name: str, group: _Group) -> Holder:
    bound = not group.promises or len(group.promises) < len(group.pods)
    ending = all(pod.deleting_since for pod in group.pods) if group.pods else False
    source = group.machine or group.claim
    terminating = ending if group.pods else bool(source and source.deleting_since)
    return Holder(
        namespace,
        kind,
        name,
        tuple(sorted(group.names)),
        tuple(sorted(group.resources)),
        terminating,
        bound,
        _advice(namespace, kind, name, group),
    )


def _advice(namespace: str, kind: str, name: str, group: _Group) -> str:
    # Names come from whoever may create pods, and these commands are pasted by an administrator.
    plain = namespace, name
    namespace, name, kind_shown = shlex.quote(namespace), shlex.quote(name), shlex.quote(kind)
    leaving = [pod for pod in group.pods if pod.deleting_since]
    if leaving and len(leaving) == len(group.pods):
        # The API server sets the time of deletion to the end of the grace period.
        end = max(str(pod.deleting_since) for pod in leaving)
        grace = max((pod.grace or 0) for pod in leaving)
        return f"terminating (its grace period of {grace} s ends {end}): wait for it"
    if kind == "VirtualMachineInstance":
        return f"stop the VM, a GPU VM can not be migrated: virtctl stop {name} -n {namespace}"
    if kind == "ResourceClaim":
        users = ", ".join(group.claim.reserved) if group.claim else ""
        what = f"it is reserved for {users}: let these end" if users else "it is reserved for nobody: ask its owner to delete it"
        return f"{what}, and see kubectl describe resourceclaim -n {namespace} {name}"
    if kind == "Job" and plain[0] == _CANARY[0] and plain[1].startswith(f"{_CANARY[1]}-"):
        suspend = f'kubectl patch -n {_CANARY[0]} cronjob/{_CANARY[1]} -p \'{{"spec":{{"suspend":true}}}}\''
        return f"kube-dc's allocation canary: wait for it, and suspend it for the time of the transition: {suspend}"
    if any(pod.name.startswith(_VALIDATOR) or pod.labels.get("app") == _VALIDATOR for pod in group.pods):
        return "the GPU operator's own check of its device plugin, which ends soon: wait for it"
    if any(pod.static for pod in group.pods):
        return f"a static pod ({namespace}/{name}): move its manifest out of the kubelet's folder on the node"
    promise = f"not bound yet ({', '.join(sorted(set(group.promises)))}): " if group.promises else ""
    if kind == "StatefulSet":
        return f"{promise}scale it down: kubectl scale -n {namespace} statefulset/{name} --replicas=0"
    if kind in ("ReplicaSet", "ReplicationController"):
        path = "jsonpath='{.metadata.ownerReferences[*].name}'"
        return f"{promise}scale down what controls it: kubectl get -n {namespace} {kind.lower()}/{name} -o {path}"
    if kind == "Job":
        return f'{promise}wait for the Job, or suspend it: kubectl patch -n {namespace} job/{name} -p \'{{"spec":{{"suspend":true}}}}\''
    if kind == "Pod":
        return f"{promise}ask its owner to stop it: kubectl delete pod -n {namespace} {name}"
    return f"{promise}ask the owner of {kind_shown} {namespace}/{name} to stop it on this node"


def describe_holder(holder: Holder) -> str:
    """One line for people: controller, pods, resources."""
    pods = f" by {', '.join(holder.pods)}" if holder.pods else ""
    state = " (terminating)" if holder.terminating else "" if holder.bound else " (not bound yet)"
    return f"{holder.namespace}/{holder.kind}/{holder.name}{state}: {', '.join(holder.resources)}{pods}"

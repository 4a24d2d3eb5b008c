"""Who holds a GPU on the node: pods in, holders by controller out (spec section 5). Pure.

Terminating pods count (a device is theirs until their containers are gone); finished ones do not. Advice never offers a
forced deletion.
"""

from __future__ import annotations

import shlex
from itertools import groupby

from kubectl_gpu_transition.facts import Facts
from kubectl_gpu_transition.model import Holder, PodView, Problem, Request

# Prefixes of native GPU resources (spec section 5); DRA's implicit extended resources begin with the last one.
_PREFIXES = ("nvidia.com/", "requests.nvidia.com/", "gpu.intel.com/", "amd.com/gpu", "deviceclass.resource.kubernetes.io/")


def is_gpu_resource(name: str, more: frozenset[str]) -> bool:
    """Whether a resource name counts as a GPU; ``more`` are names from KubeVirt and --gpu-resource."""
    return name.startswith(_PREFIXES) or name in more


def gpu_resources(pod: PodView, more: frozenset[str]) -> tuple[str, ...]:
    """What of a GPU the pod holds: resource names, its claims as ``claim NAME``, HAMi's allocation for its node as ``annotation KEY``;
    empty where it is no holder."""
    names = sorted(name for name in pod.resources if is_gpu_resource(name, more))
    allocations = pod.allocations if pod.allocated_node in ("", pod.node) else ()
    return (
        *names,
        *(f"claim {claim.name or claim.reference}" for claim in sorted(pod.claims, key=lambda claim: claim.name or claim.reference)),
        *(f"annotation {key}" for key in allocations),
    )


# What has to be read before anybody can say that nobody holds a GPU.
_NEEDED = ("pods", "unbound", "volumes", "permitted", "classes", "claims", "slices", "machines")


def find_gpu_names(facts: Facts, request: Request) -> frozenset[str] | Problem:
    """Resource names that count as a GPU beside the native ones: KubeVirt's, those of DeviceClasses, and the request's (which has the
    annotation's too)."""
    if isinstance(facts.permitted, Problem) or isinstance(facts.classes, Problem):
        return facts.find_problem("permitted", "classes") or Problem("names were not read")
    return frozenset().union(request.gpu_resources, *facts.permitted, (name for name in facts.classes if name))


def find_holders(facts: Facts, request: Request) -> tuple[Holder, ...] | Problem:
    """Every holder on the request's node, sorted, grouped by controller (namespace, kind, name); a Problem where anything that could
    show one was not read."""
    problem, more, node = facts.find_problem(*_NEEDED), find_gpu_names(facts, request), request.node
    if problem is not None or isinstance(more, Problem) or isinstance(facts.pods, Problem):
        return problem or Problem("holders were not read")

    def key(pod: PodView) -> tuple[str, str, str]:
        return (pod.namespace, pod.controller.kind, pod.controller.name) if pod.controller else (pod.namespace, "Pod", pod.name)

    holding = sorted(
        (pod for pod in facts.pods if pod.node == node and not pod.finished and gpu_resources(pod, more)),
        key=lambda pod: (key(pod), pod.name),
    )
    return tuple(_holder(*controller, tuple(group), more) for controller, group in groupby(holding, key))


def _holder(namespace: str, kind: str, name: str, pods: tuple[PodView, ...], more: frozenset[str]) -> Holder:
    resources = tuple(sorted({resource for pod in pods for resource in gpu_resources(pod, more)}))
    terminating = all(pod.deleting_since for pod in pods)
    return Holder(
        namespace, kind, name, tuple(pod.name for pod in pods), resources, terminating, True, _advice(namespace, kind, name, pods)
    )


def _advice(namespace: str, kind: str, name: str, pods: tuple[PodView, ...]) -> str:
    # Names come from whoever may create pods, and these commands are pasted by an administrator.
    namespace, name, kind_shown = shlex.quote(namespace), shlex.quote(name), shlex.quote(kind)
    leaving = [pod for pod in pods if pod.deleting_since]
    if len(leaving) == len(pods):
        since = min(str(pod.deleting_since) for pod in leaving)
        grace = max((pod.grace or 0) for pod in leaving)
        return f"terminating (its grace period of {grace} s ends {since}): wait for it"
    if kind == "VirtualMachineInstance":
        return f"stop the VM, a GPU VM can not be migrated: virtctl stop {name} -n {namespace}"
    if kind == "StatefulSet":
        return f"scale it down: kubectl scale -n {namespace} statefulset/{name} --replicas=0"
    if kind in ("ReplicaSet", "ReplicationController"):
        path = "jsonpath='{.metadata.ownerReferences[*].name}'"
        return f"scale down what controls it: kubectl get -n {namespace} {kind.lower()}/{name} -o {path}"
    if kind == "Job":
        return f'wait for the Job, or suspend it: kubectl patch -n {namespace} job/{name} -p \'{{"spec":{{"suspend":true}}}}\''
    if kind == "Pod":
        return f"ask its owner to stop it: kubectl delete pod -n {namespace} {name}"
    return f"ask the owner of {kind_shown} {namespace}/{name} to stop it on this node"


def describe_holder(holder: Holder) -> str:
    """One line for people: controller, pods, resources."""
    pods = ", ".join(holder.pods)
    state = " (terminating)" if holder.terminating else ""
    return f"{holder.namespace}/{holder.kind}/{holder.name}{state}: {', '.join(holder.resources)} by {pods}"

"""Is the node in a mode, wholly? An observation in, what is still missing out; empty means verified (spec section 7). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kubectl_gpu_transition.allocatable import find_missing_offers
from kubectl_gpu_transition.facts import Facts
from kubectl_gpu_transition.holders import describe_holder, find_unasked
from kubectl_gpu_transition.marks import find_marks, find_operations
from kubectl_gpu_transition.model import ANNOTATION, FIELD_MANAGER, Holder, NodeView, Owner, PodView, Problem, Request
from kubectl_gpu_transition.modes import CONFLICTING_OWNERS, LABELS, MODES, Mode, label_values
from kubectl_gpu_transition.record import find_foreign_cordon


@dataclass(frozen=True)
class Goal:
    """What an end of the wait has to look like: the mode, whether zero holders are asked for, whether the node is to be found cordoned, and
    the mode that was left where allocatable is looked at: ``offers`` says whether it decides (condition 8) or is only shown."""

    mode: Mode
    no_holders: bool = True
    cordoned: bool = True
    left: Mode | None = None
    offers: bool = False


def find_owners(pods: Iterable[PodView], node: str) -> tuple[Owner, ...]:
    """Unfinished pods of the node that a DaemonSet with one of the table's names controls, sorted.

    ``trusted`` says that the reference's apiVersion, kind and name and the pod's namespace are all those of the table: a pod of another
    namespace with the same owner name proves nothing.
    """
    owners = []
    for pod in pods:
        if pod.node != node or pod.finished or pod.controller is None or pod.controller.kind != "DaemonSet":
            continue
        name = pod.controller.name
        mode = next((mode for mode, facts in MODES.items() if facts.owner == name and facts.refused is None), None)
        if mode is None and name not in CONFLICTING_OWNERS:
            continue
        trusted = mode is not None and pod.controller.api_version == "apps/v1" and pod.namespace in MODES[mode].namespaces
        owners.append(
            Owner(
                pod.namespace,
                name,
                pod.name,
                pod.phase == "Running" and pod.ready,
                pod.deleting_since is not None,
                trusted,
                mode,
                pod.waiting,
            )
        )
    return tuple(sorted(owners, key=lambda owner: (owner.namespace, owner.name, owner.pod)))


def find_missing_labels(node: NodeView, mode: Mode) -> list[str]:
    """The three ownership labels that do not have the mode's values, each as ``key is 'x', not 'y'``."""
    return [
        f"{key} is {node.labels.get(key)!r}, not {value!r}" for key, value in label_values(mode).items() if node.labels.get(key) != value
    ]


def find_missing_owners(owners: Iterable[Owner], mode: Mode) -> list[str]:
    """Conditions 4 and 5: the mode's own owner up, and no other owner left."""
    owners = tuple(owners)
    name = MODES[mode].owner
    missing = []
    mine = [owner for owner in owners if owner.name == name and owner.trusted]
    if not any(owner.ready and not owner.terminating for owner in mine):
        states = [f"{o.pod}: {'terminating' if o.terminating else o.waiting or 'not Ready yet'}" for o in mine]
        missing.append(f"owner {name}: {'; '.join(states) or 'no pod on the node'}")
    for owner in owners:
        if owner.name != name:
            state = "terminating" if owner.terminating else "still there"
            missing.append(f"other owner {owner.namespace}/{owner.name}: pod {owner.pod} {state}")
    return missing


def find_missing(goal: Goal, node: NodeView, facts: Facts, holders: tuple[Holder, ...] | Problem) -> list[str]:
    """Conditions 1 to 6 and 8 of spec section 7, in that order; condition 7 (the tip) needs the fleet and is the engine's to add. What
    could not be read is missing."""
    missing = []
    if node.ready != "True":
        missing.append(f"node Ready is {node.ready}")
    if goal.cordoned and not node.unschedulable:
        missing.append("the node is not cordoned")
    foreign = find_foreign_cordon(node)
    if foreign is not None:
        missing.append(f"the cordon is {foreign.manager}'s (since {foreign.time}): that one has to uncordon")
    elif node.unschedulable and not goal.cordoned:
        missing.append("the node has been cordoned meanwhile, by whom is not known: whoever did has to uncordon")
    labels = find_missing_labels(node, goal.mode)
    if labels:
        missing.append(f"labels {len(LABELS) - len(labels)}/{len(LABELS)}: {'; '.join(labels)}")
    operations, unread = find_operations(node, facts), []
    if goal.no_holders and isinstance(holders, Problem):
        unread.append(holders)
    elif goal.no_holders and not isinstance(holders, Problem):
        missing += [f"holder {describe_holder(holder)}" for holder in holders]
    if isinstance(facts.pods, Problem):
        unread.append(facts.pods)
    else:
        missing += find_missing_owners(find_owners(facts.pods, node.name), goal.mode)
    if isinstance(operations, Problem):
        unread.append(operations)
    else:
        missing += [f"another operation: {mark}" for mark in operations]
    offers = find_missing_offers(goal.left, goal.mode, node, facts) if goal.left and goal.offers else []
    if isinstance(offers, Problem):
        unread.append(offers)
    else:
        missing += offers
    return missing + [f"could not be read: {message}" for message in dict.fromkeys(problem.message for problem in unread)]


def find_advice(goal: Goal, node: NodeView, facts: Facts, request: Request) -> list[str]:
    """What is shown beside the conditions and decides nothing (spec section 7): allocatable, and pods that reach GPUs without asking."""
    offers = find_missing_offers(goal.left, goal.mode, node, facts) if goal.left and not goal.offers else []
    return [*([] if isinstance(offers, Problem) else offers), *find_unasked(facts, request)]


def is_same_ground(before: NodeView, after: NodeView, offers: bool = False) -> bool:
    """Whether a node read again is, in everything the uncordon relies on, the one that was verified (spec section 4, step 6); with
    ``offers`` allocatable too."""

    def ground(node: NodeView) -> tuple[object, ...]:
        cordons = sorted((entry.manager, entry.operation, entry.time) for entry in node.managers or () if entry.cordons)
        labels = tuple(node.labels.get(key) for key in LABELS)
        allocatable = node.allocatable if offers else None
        return node.uid, node.unschedulable, cordons, node.annotations.get(ANNOTATION), node.ready, labels, find_marks(node), allocatable

    return ground(before) == ground(after)


def find_new_managers(before: NodeView, after: NodeView) -> tuple[str, ...]:
    """Managers that wrote the node since the last look, as far as managedFields tell; the taint's controller and ourselves left out."""
    seen = set(before.managers or ())
    return tuple(
        sorted(
            {entry.manager for entry in after.managers or () if entry not in seen}
            - {FIELD_MANAGER, "kube-controller-manager", "ancient-changes", ""}
        )
    )

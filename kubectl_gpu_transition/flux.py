"""Flux, as far as it brings the change: the Kustomization of the node modes, its source, and all it depends on. Pure."""

from __future__ import annotations

from kubectl_gpu_transition.facts import Facts, KustomizationView, SourceView
from kubectl_gpu_transition.model import GitopsFacts, Problem

NAMESPACE, NAME = "flux-system", "gpu-node-mode"  # the Kustomization that applies the rule (facts of the fleet's generator)


def find_kustomization(facts: Facts, namespace: str = NAMESPACE, name: str = NAME) -> KustomizationView | Problem | None:
    """That Kustomization, None where it does not exist, a Problem where they could not be read."""
    if isinstance(facts.kustomizations, Problem):
        return facts.kustomizations
    return next((k for k in facts.kustomizations if (k.namespace, k.name) == (namespace, name)), None)


def find_source(facts: Facts, kustomization: KustomizationView) -> SourceView | Problem | None:
    """The GitRepository that a Kustomization reads, None where it does not exist or is of another kind."""
    kind, namespace, name = kustomization.source
    if kind != "GitRepository":
        return None
    if isinstance(facts.sources, Problem):
        return facts.sources
    return next((source for source in facts.sources if (source.namespace, source.name) == (namespace, name)), None)


def find_gitops(facts: Facts) -> GitopsFacts | Problem:
    """What Flux is told to apply for the node modes."""
    kustomization = find_kustomization(facts)
    if isinstance(kustomization, Problem):
        return kustomization
    if kustomization is None:
        return GitopsFacts(None, None, None, None)
    kind, namespace, name = kustomization.source
    source = find_source(facts, kustomization)
    if isinstance(source, Problem):
        return source
    shown = f"{kind} {namespace}/{name}"
    return GitopsFacts(kustomization.path, shown, source.url if source else None, source.ref if source else None)


def short_revision(revision: str) -> str:
    """``main@sha1:<40 hex digits>`` as ``main@<12>``, for people."""
    branch, _, commit = revision.rpartition(":")
    return f"{branch.removesuffix('sha1').removesuffix('sha256')}{commit[:12]}"


def find_troubles(facts: Facts) -> tuple[list[tuple[str, str]], list[str]] | Problem:
    """What keeps the change from arriving, and what is still under way (spec section 3, ``flux``).

    Returns failures, each with the command that mends it, and warnings. Looked at are the Kustomization of the node modes, everything
    that it depends on, and its GitRepository: ``spec.suspend`` is the only sign of a suspended one (fluxcd docs), and a Kustomization
    is not applied before each of its dependencies is Ready at the same revision (kustomize-controller).
    """
    start = find_kustomization(facts)
    if start is None or isinstance(start, Problem):
        return start or ([], [])
    source = find_source(facts, start)
    if isinstance(source, Problem):
        return source
    failures: list[tuple[str, str]] = []
    warnings: list[str] = []
    queue, seen = [start], {(start.namespace, start.name)}
    for one in queue:
        _judge(one, f"Kustomization {one.namespace}/{one.name}", f"kustomization {one.name} -n {one.namespace}", failures, warnings)
        for namespace, name in one.depends_on:
            if (namespace, name) in seen:
                continue
            seen.add((namespace, name))
            found = find_kustomization(facts, namespace, name)
            if isinstance(found, KustomizationView):
                queue.append(found)
            else:
                what = f"Kustomization {one.namespace}/{one.name} depends on {namespace}/{name}, which does not exist"
                failures.append((what, f"see flux tree kustomization {one.name} -n {one.namespace}"))
    if source is not None:
        where = f"source git {source.name} -n {source.namespace}"
        _judge(source, f"GitRepository {source.namespace}/{source.name}", where, failures, warnings)
    return failures, warnings


def _judge(one: KustomizationView | SourceView, what: str, where: str, failures: list[tuple[str, str]], warnings: list[str]) -> None:
    ready, stalled, working = (one.conditions.get(kind) for kind in ("Ready", "Stalled", "Reconciling"))
    if one.suspended:
        failures.append((f"{what} is suspended", f"flux resume {where}"))
    elif stalled is not None and stalled.status == "True":
        failures.append((f"{what} is stalled: {stalled.reason}: {stalled.message}", f"mend what it says, then flux reconcile {where}"))
    elif working is not None and working.status == "True" and working.reason == "Progressing":
        warnings.append(f"{what} is still reconciling")
    elif ready is not None and ready.status == "False" and ready.reason == "DependencyNotReady":
        warnings.append(f"{what} waits for a dependency: {ready.message}")
    elif ready is not None and ready.status == "False":
        failures.append((f"{what} has failed: {ready.reason}: {ready.message}", f"mend what it says, then flux reconcile {where}"))
    elif ready is None or ready.status != "True":
        warnings.append(f"{what} has not been reconciled yet")
    elif not one.observed:
        warnings.append(f"{what} has changed and is not reconciled yet")

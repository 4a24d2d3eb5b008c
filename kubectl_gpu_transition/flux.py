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

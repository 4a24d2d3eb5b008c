"""How far Flux has brought the change, and asking it not to wait for its interval (spec sections 2 and 7).

Decides nothing: what counts is the live rule and the node's labels. A request that Flux does not get costs time, never the transition.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kubectl_gpu_transition.facts import Facts, KustomizationView, SourceView
from kubectl_gpu_transition.failures import Failure
from kubectl_gpu_transition.flux import find_kustomization, find_source, short_revision
from kubectl_gpu_transition.session import Session


@dataclass
class Progress:
    """Flux on its way to ``change``, the commit in the branch that put the target in force (None where it is not known)."""

    session: Session
    change: str | None = None
    asked: dict[str, str] = field(default_factory=dict)  # what ``requestedAt`` was set to, by the object's field in ``Facts``
    has: dict[str, bool | None] = field(default_factory=dict)  # whether a revision has the change

    def ask(self) -> None:
        """Ask Flux to reconcile now: the GitRepository first, for a Kustomization that is asked before it applies what it has."""
        session = self.session
        facts = session.cluster.read_facts(session.request.node, whole=False)
        kustomization = find_kustomization(facts)
        source = find_source(facts, kustomization) if isinstance(kustomization, KustomizationView) else None
        if not isinstance(kustomization, KustomizationView) or not isinstance(source, SourceView):
            problem = next((found.message for found in (kustomization, source) if found is not None and hasattr(found, "message")), None)
            session.say(f"Flux was not asked to reconcile: {problem or 'there is nothing of it to ask in this cluster'}")
            return
        for collection, one in (("sources", source), ("kustomizations", kustomization)):
            try:
                self.asked[collection] = session.cluster.ask_flux(collection, one.namespace, one.name)
            except Failure as failure:
                session.say(f"Flux was not asked to reconcile {one.namespace}/{one.name}, and will in its own time: {failure.message}")
                return
        session.say(f"Flux was asked to reconcile {source.namespace}/{source.name}, then {kustomization.namespace}/{kustomization.name}")

    def describe(self, facts: Facts) -> list[str]:
        """What Flux has applied and whether that has the change, and whether it has handled what it was asked; empty where not known."""
        kustomization = find_kustomization(facts)
        if not isinstance(kustomization, KustomizationView) or kustomization.applied is None:
            return []
        has = {True: ", which has the change", False: ", without the change yet", None: ""}[self._has_change(kustomization.applied)]
        shown = f"Flux has applied {short_revision(kustomization.applied)}{has}"
        source = find_source(facts, kustomization)
        handled = [
            f"{name} {'done' if one.handled == self.asked[collection] else 'not yet'}"
            for collection, name, one in (("sources", "source", source), ("kustomizations", "Kustomization", kustomization))
            if isinstance(one, SourceView | KustomizationView) and collection in self.asked
        ]
        return [shown + (f" (asked to reconcile: {', '.join(handled)})" if handled else "")]

    def _has_change(self, revision: str) -> bool | None:
        """Whether that revision is, or descends from, the change; None where that is not known. Asked of the checkout once for each."""
        commit = revision.rpartition(":")[2]
        if self.change is None:
            return None
        if commit not in self.has:
            self.has[commit] = commit == self.change or self.session.fleet.is_ancestor(self.change, commit)
        return self.has[commit]

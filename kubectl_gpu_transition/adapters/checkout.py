"""What the fleet's checkout says: its facts, read without a network and without writing one byte, and the lock that others hold.

Responsible for ``CheckoutFacts`` (spec section 3, ``fleet-checkout``, ``cluster-overlay``, ``fleet-identity``). Moving the checkout
forward is advance.py's.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from itertools import islice

from kubectl_gpu_transition.adapters import identity, lock, route
from kubectl_gpu_transition.adapters.gitconfig import ConfigError
from kubectl_gpu_transition.adapters.gitindex import BadIndex
from kubectl_gpu_transition.adapters.repository import Repository, Unusable, list_clusters, open_repository, read_commit, read_file
from kubectl_gpu_transition.adapters.worktree import Change, WorkTree, list_staged, read_index
from kubectl_gpu_transition.model import CheckoutFacts, Identity, Problem, Route

ENV_FILE = "clusters/{cluster}/cluster-config.env"
RULE_FILE = "clusters/{cluster}/gpu-node-modes/nodefeaturerule.yaml"

# File or directory in the git directory -> what is in progress, and the command that ends it.
_IN_PROGRESS = {
    "MERGE_HEAD": ("merge", "git merge --abort"),
    "rebase-merge": ("rebase", "git rebase --abort"),
    "rebase-apply": ("rebase or am", "git rebase --abort"),
    "CHERRY_PICK_HEAD": ("cherry-pick", "git cherry-pick --abort"),
    "REVERT_HEAD": ("revert", "git revert --abort"),
    "sequencer": ("cherry-pick or revert", "git cherry-pick --abort"),
    "BISECT_LOG": ("bisect", "git bisect reset"),
}
_NAMED = 5


def read_facts(path: str, cluster: str, environ: Mapping[str, str], held: bool) -> CheckoutFacts:
    """Everything local about the checkout. ``held``: this process has the lock itself."""
    try:
        with open_repository(path, environ) as repo:
            return _read_facts(repo, cluster, environ, held)
    except Unusable as error:
        problem = error.problem
    return CheckoutFacts(path, problem, None, None, None, (), problem, problem, problem, problem)


def _read_facts(repo: Repository, cluster: str, environ: Mapping[str, str], held: bool) -> CheckoutFacts:
    branch = repo.branch.removeprefix("refs/heads/") if repo.branch else None
    env: bytes | Problem | None = Problem("HEAD is not a commit")
    rule: bytes | Problem | None = env
    clusters: tuple[str, ...] = ()
    state = find_obstacle(repo)
    if repo.head is not None:
        env = read_file(repo.objects, repo.head, ENV_FILE.format(cluster=cluster))
        rule = read_file(repo.objects, repo.head, RULE_FILE.format(cluster=cluster))
        try:
            clusters = list_clusters(repo.objects, repo.head)
        except KeyError:
            state = state or Problem("the trees of HEAD can not be read: objects are missing or damaged", "git fsck")
    return CheckoutFacts(
        path=repo.top,
        state=state or find_dirt(repo, environ),
        locked=None if held else lock.read_lock(repo.git_dir),
        branch=branch,
        head=repo.head,
        clusters=clusters,
        env=env,
        rule=rule,
        route=_read_route(repo),
        identity=_read_identity(repo, environ),
    )


def _read_route(repo: Repository) -> Route | Problem:
    if repo.branch is None:
        return Problem("HEAD is detached: without a branch there is nothing to push to", "git switch <branch>")
    target = route.find_target(repo.config, repo.branch.removeprefix("refs/heads/"), repo.top)
    return target if isinstance(target, Problem) else target.shown()


def _read_identity(repo: Repository, environ: Mapping[str, str]) -> Identity | Problem:
    return identity.find_identity(repo.config, environ, repo.top)


def find_obstacle(repo: Repository) -> Problem | None:
    """Why nothing can be committed on top of HEAD: detached, no commit, or an operation in progress."""
    for name, (what, remedy) in _IN_PROGRESS.items():
        if os.path.lexists(os.path.join(repo.git_dir, name)):
            return Problem(f"a {what} is in progress in {repo.top}", f"finish it, or: {remedy}")
    if repo.branch is None or not repo.branch.startswith("refs/heads/"):
        return Problem(f"HEAD of {repo.top} is detached, not on a branch", "git switch <branch>")
    if repo.head is None:
        return Problem(f"branch {repo.branch.removeprefix('refs/heads/')} of {repo.top} has no commit")
    return None


def find_dirt(repo: Repository, environ: Mapping[str, str]) -> Problem | None:
    """The first few staged, changed and untracked files of the work tree as one Problem, or None where it is clean."""
    if repo.head is None:
        return None
    try:
        index = read_index(repo)
        tree = WorkTree(repo, index, environ)
        staged = _name("staged", list_staged(index, repo.objects, read_commit(repo.objects, repo.head).tree))
        seen = list(islice(tree.changes(), 200))
    except (ConfigError, BadIndex) as error:
        return Problem(f"the state of {repo.top} can not be told: {error}")
    except KeyError:
        return Problem(f"the state of {repo.top} can not be told: objects of HEAD are missing or damaged", "git fsck")
    except OSError as error:
        return Problem(f"the state of {repo.top} can not be told: {error.strerror} ({error.filename!r})")
    parts = [staged, *(_name(kind, (change for change in seen if change.kind == kind)) for kind in ("changed", "untracked"))]
    if not any(parts):
        return None
    message = "; ".join(part for part in parts if part)
    return Problem(f"the checkout is not clean: {message}", f"git -C {shlex.quote(repo.top)} status; commit, stash or remove what it shows")


def _name(kind: str, changes: Iterable[Change]) -> str:
    paths = [change.path for change in islice(changes, _NAMED + 1)]
    more = ", …" if len(paths) > _NAMED else ""
    return f"{kind} {', '.join(paths[:_NAMED])}{more}" if paths else ""

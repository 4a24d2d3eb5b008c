"""Each blocking check of the preflight (contract section 3): failing alone, by name and with a remedy, while nothing is changed.

A row makes one state and says what the check has to say about it: the observed value, and what to do. Rows that are to pass stand
beside those that are not, so that a check is neither too weak nor too strong.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.expect import (
    assert_blocked,
    assert_only_read,
    assert_passes,
    assert_untouched,
    assert_warns,
    failing,
    look,
    report_of,
    statuses,
)
from tests.e2e.states import Make, Options, Row, nothing, preview, rows
from tests.harness.faultproxy import FaultProxy
from tests.harness.gitservers import GitHttpServer
from tests.harness.kube import Json
from tests.harness.world import (
    CONFIG_MAPS,
    FLUX,
    HANDS_OFF,
    LABEL_ACTIVE,
    LABEL_CONFIG,
    LABEL_EXPECTED,
    NODES,
    PODS,
    POLICIES,
    RULES,
    SOURCES,
    World,
    daemonset,
    gpu_pod,
    mode_labels,
    node_condition,
    pod,
    rule_bytes,
)

SHARED, VM = "GPU_SHARED_CREATION_ENABLED", "GPU_VM_CREATION_ENABLED"
AHEAD = ("live-rule",)  # fails too: the fleet is ahead of the cluster
DEPLOY = "nvidia.com/gpu.deploy."
KUSTOMIZATION, SOURCE = f"{FLUX}/gpu-node-mode", f"{SOURCES}/flux-system"


# modes


def put_into_vgpu(world: World) -> None:
    """Fleet and node as if somebody had set the mode up by hand."""
    world.fleet.set_modes({"gpu-1": "vm-vgpu"})
    world.patch_node({"metadata": {"labels": mode_labels("vm-vgpu")}})


EXPLAINED = ("vm-vgpu", "licensed driver", "not qualified")


@rows(
    {
        "vm-vgpu as the target is explained": Row(nothing, EXPLAINED, "supported modes: pod-hami, ", {"to": "vm-vgpu"}),
        "vm-vgpu as the source is explained": Row(
            put_into_vgpu, EXPLAINED, "supported modes: pod-hami, ", {"from_": "vm-vgpu", "to": "pod-hami"}
        ),
    }
)
def test_modes(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "modes")


def test_a_pair_that_is_not_qualified_warns(kept_world: World) -> None:
    result = kept_world.run("preview", "-o", "json", to="pod-hami-dra")
    assert_warns(result, "modes", ("pod-hami to pod-hami-dra", "not qualified"))
    assert result.report["plan"]["message"].startswith("feat(gpu): transition gpu-1 to pod-hami-dra\n")


# cluster-overlay


def remove(path: str) -> Make:
    """Remove a file of the fleet, by a commit that is pushed."""

    def make(world: World) -> None:
        world.fleet.git("rm", "--quiet", path)
        world.fleet.git("commit", "--quiet", "--message=chore: remove")
        world.fleet.git("push", "--quiet")

    return make


def test_a_cluster_without_an_overlay_lists_the_known_ones(kept_world: World) -> None:
    for name in ("dc2", "eu/dc3"):
        kept_world.fleet.commit(f"clusters/{name}/cluster-config.env", "DOMAIN=example.com\n")
    row = Row(remove("clusters/dc1/cluster-config.env"), ("clusters/dc1/cluster-config.env", "dc2, eu/dc3"), "known clusters")
    preview(kept_world, row, "cluster-overlay")


# creation-gates


def gate(name: str, *values: str | None) -> Make:
    """Set the gate to these values, one line each, as the last lines of the file."""

    def make(world: World) -> None:
        world.fleet.set_gate(name, None, push=not values)
        if values:
            text = (world.fleet.checkout / world.fleet.config_path).read_text()
            world.fleet.commit(world.fleet.config_path, text + "".join(f"{name}={value}\n" for value in values))

    return make


SET = f"kube-dc bootstrap config set dc1 {SHARED}=false {VM}=false --yes"


@rows(
    {
        "an absent shared gate is open": Row(gate(SHARED), (SHARED, "absent"), SET),
        "an absent VM gate is open": Row(gate(VM), (VM, "absent"), SET),
        "true is open": Row(gate(SHARED, "true"), (SHARED, "true"), SET),
        "True is open": Row(gate(VM, "True"), (VM, "True"), SET),
        "False with a capital is open": Row(gate(VM, "False"), (VM, "False"), SET),
        "an empty value is not false": Row(gate(VM, ""), (VM, "''"), SET),
        "a comment behind false is part of the value": Row(gate(VM, "false # closed for now"), "false # closed for now", (SET, "comment")),
        "a comment behind a quoted false is too": Row(gate(SHARED, '"false"  # why'), (SHARED, "# why"), (SET, "comment")),
        "of a repeated key the last counts": Row(gate(VM, "false", "true"), (VM, "true"), SET),
        "a file that is not UTF-8 can not be told": Row(
            lambda world: world.fleet.commit(world.fleet.config_path, f"{SHARED}=false\n{VM}=false\nNAME=\xe9\n".encode("latin-1")),
            ("clusters/dc1/cluster-config.env", "UTF-8"),
        ),
    }
)
def test_creation_gates(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "creation-gates")


@rows(
    {
        "false in double quotes, and false after a true": Row(
            lambda world: gate(SHARED, '"false"')(world) or gate(VM, "true", "false")(world)
        ),
        "false in single quotes, and false between blanks": Row(
            lambda world: gate(SHARED, "'false'")(world) or gate(VM, "  false\t")(world)
        ),
    }
)
def test_closed_creation_gates(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "creation-gates")


def test_a_gate_that_is_closed_in_the_work_tree_alone_is_open(kept_world: World) -> None:
    gate(VM, "true")(kept_world)
    path = kept_world.fleet.checkout / kept_world.fleet.config_path
    path.write_text(path.read_text().replace("=true", "=false"))
    result = kept_world.run("preview", "-o", "json")
    assert failing(result) == ["creation-gates", "fleet-checkout"]


# fleet-checkout


def write(path: str, content: str | None = "something\n", *, add: bool = False) -> Make:
    """Change a file of the work tree without committing it; None removes it."""

    def make(world: World) -> None:
        if content is None:
            (world.fleet.checkout / path).unlink()
        else:
            world.fleet.write(path, content)
        if add:
            world.fleet.git("add", "--all")

    return make


def plain_directory(world: World) -> Options:
    place = world.root / "plain"
    place.mkdir(exist_ok=True)
    return Options(repo=place)


def git(*commands: str) -> Make:
    """Run these git commands in the checkout; one may fail, as one that stops for the user does."""

    def make(world: World) -> None:
        for command in commands:
            world.fleet.git(*command.split(), check=False)

    return make


def rebase(world: World) -> None:
    """An interactive rebase that stops at the last commit, which stays as it is."""
    world.fleet.commit("x", "1")
    world.fleet.git("-c", "sequence.editor=sed -i s/^pick/edit/", "rebase", "--interactive", "HEAD~1")


ASIDE = ("switch --quiet --create aside", "commit --quiet --allow-empty --message=aside", "switch --quiet main")
STATUS = "git -C "


@rows(
    {
        "a directory that is no checkout": Row(plain_directory, "/plain", "--repo"),
        "a bare repository": Row(lambda world: Options(repo=world.fleet.remote), "/remote.git"),
        "a subdirectory of a checkout": Row(lambda world: Options(repo=world.fleet.checkout / "clusters"), "/fleet/clusters", "/fleet"),
        "a detached HEAD": Row(git("checkout --quiet --detach"), "detached", "git switch"),
        "a branch without a commit": Row(git("update-ref -d HEAD"), ("main", "no commit")),
        "a staged file": Row(write("new.yaml", add=True), ("staged", "new.yaml"), STATUS),
        "a staged removal": Row(write("README.md", None, add=True), ("staged", "README.md"), STATUS),
        "a changed file": Row(write("README.md"), ("changed", "README.md"), STATUS),
        "a removed file": Row(write("README.md", None), ("changed", "README.md"), STATUS),
        "a file with another mode": Row(lambda world: (world.fleet.checkout / "README.md").chmod(0o755), ("changed", "README.md"), STATUS),
        "an untracked file": Row(write("new.yaml"), ("untracked", "new.yaml"), STATUS),
        "an untracked file in a new directory": Row(write("deep/er/new.yaml"), ("untracked", "deep/"), STATUS),
        "a merge in progress": Row(git(*ASIDE, "merge --no-ff --no-commit aside"), "merge is in progress", "git merge --abort"),
        "a rebase in progress": Row(rebase, "rebase is in progress", "git rebase --abort"),
        "a cherry-pick in progress": Row(git(*ASIDE, "cherry-pick aside"), "cherry-pick is in progress", "git cherry-pick --abort"),
        "a revert in progress": Row(
            lambda world: world.fleet.commit("x", "1") and git("revert --no-commit HEAD")(world),
            "revert is in progress",
            "git revert --abort",
        ),
        "a bisect in progress": Row(git("bisect start"), "bisect is in progress", "git bisect reset"),
    }
)
def test_fleet_checkout(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "fleet-checkout")


def stale_lock(world: World) -> None:
    holder = {"host": "elsewhere", "pid": 1, "command": "gone", "since": "then"}
    (world.fleet.checkout / ".git" / "gpu-transition.lock").write_text(json.dumps(holder))


def linked_work_tree(world: World) -> Options:
    place = world.fleet.root / "linked"
    git("switch --quiet --create aside", f"worktree add --quiet {place} main")(world)
    return Options(repo=place)


def harmless(world: World) -> None:
    """Ignored files, an empty directory, a file that was touched, a lock whose process has ended."""
    for path in ("x.tmp", ".secrets/key"):
        world.fleet.write(path, "something\n")
    (world.fleet.checkout / "empty").mkdir()
    (world.fleet.checkout / "README.md").touch()
    stale_lock(world)


@rows({"what git does not count either": Row(harmless), "a linked work tree": Row(linked_work_tree)})
def test_fit_checkouts(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "fleet-checkout")


def test_a_checkout_that_another_run_has_locked(kept_world: World) -> None:
    """The lock is held from the preflight on, here by an apply that waits for its confirmation, and ends with its process."""
    holder = kept_world.start("apply", tty=True, yes=None)
    holder.wait_for_stderr("Type the node's name")
    before = look(kept_world)
    for command in ("preview", "apply"):
        result = kept_world.run(command, "-o", "json")
        assert_blocked(result, "fleet-checkout", (f"process {holder.pid} on ", "gpu-transition apply dc1 gpu-1", " since "))
    holder.type("no\n")
    assert holder.wait().code == 2
    assert_passes(kept_world.run("preview", "-o", "json"))
    assert not [path for path in kept_world.fleet.snapshot() if "gpu-transition" in path]
    assert kept_world.writes(since=before.mark) == []


# fleet-remote


def diverge(world: World) -> None:
    world.fleet.another_commit_by_somebody()
    world.fleet.commit("x", "1", push=False)


def copy_remote(world: World) -> str:
    """A copy of the remote that stays where it is while the checkout and its remote move on by one commit."""
    other = world.fleet.root / "other.git"
    shutil.copytree(world.fleet.remote, other)
    world.fleet.commit("x", "1")
    return str(other)


def hide_remote(world: World) -> None:
    world.fleet.remote.rename(world.fleet.root / "hidden.git")
    world.fleet.remote.mkdir()


@rows(
    {
        "a checkout that is ahead": Row(lambda world: world.fleet.commit("x", "1", push=False), ("HEAD", "ahead"), " push"),
        "a checkout that is behind": Row(lambda world: world.fleet.another_commit_by_somebody(), ("HEAD", "behind"), "pull --ff-only"),
        "a checkout that has diverged": Row(diverge, ("HEAD", "diverged"), "pull --rebase"),
        "a remote that is gone": Row(hide_remote, "/remote.git"),
        "a branch that the remote does not have": Row(
            lambda world: world.fleet.git("update-ref", "-d", "refs/heads/main", cwd=world.fleet.remote),
            ("main", "does not exist"),
            " push -u origin main",
        ),
        "no remote at all": Row(git("remote remove origin"), "origin", "git remote add"),
        "several push URLs": Row(
            git("remote set-url --add --push origin ssh://git@one.example/f", "remote set-url --add --push origin ssh://git@two.example/f"),
            ("2 push URLs", "ssh://one.example/f", "ssh://two.example/f"),
            "git remote set-url --push --delete origin",
        ),
        "a push URL elsewhere that is not at HEAD": Row(
            lambda world: world.fleet.git("remote", "set-url", "--push", "origin", copy_remote(world)),
            ("HEAD", "ahead", "/other.git"),
            " push",
        ),
        "a fetch URL elsewhere that is not at HEAD": Row(
            lambda world: git(f"remote set-url --push origin {world.fleet.remote}", f"remote set-url origin {copy_remote(world)}")(world),
            ("HEAD", "fetch side", "/other.git"),
        ),
        "an upstream that is a local branch": Row(git(*ASIDE[:1], "branch --set-upstream-to=main"), "local branch", "--set-upstream-to"),
    }
)
def test_fleet_remote(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "fleet-remote")


def pack(world: World) -> None:
    for place in (world.fleet.checkout, world.fleet.remote):
        world.fleet.git("gc", "--quiet", cwd=place)


@rows(
    {
        "without an upstream it is origin and the same name": Row(git("branch --unset-upstream")),
        "a remote of another name": Row(git("remote rename origin company")),
        "a push URL elsewhere that is at HEAD": Row(
            lambda world: (
                git(f"clone --quiet --bare {world.fleet.remote} {world.fleet.root}/other.git")(world)
                or git(f"remote set-url --push origin {world.fleet.root}/other.git")(world)
            )
        ),
        "refs and objects that are packed": Row(pack),
    }
)
def test_fit_remotes(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "fleet-remote")


@pytest.fixture
def over_http(kept_world: World) -> Iterator[GitHttpServer]:
    """The fleet's remote over http."""
    with GitHttpServer(kept_world.fleet.root) as server:
        kept_world.fleet.git("remote", "set-url", "origin", f"{server.url}/remote.git")
        yield server


def test_a_missing_push_permission_blocks_an_apply_and_warns_in_a_preview(kept_world: World, over_http: GitHttpServer) -> None:
    over_http.fail("push-refs", "error", code=403, times=None)
    before = look(kept_world)
    assert_warns(kept_world.run("preview", "-o", "json"), "fleet-remote", ("a push would fail", "403", over_http.url), "credentials")
    assert_blocked(kept_world.run("apply", "-o", "json"), "fleet-remote", ("a push would fail", "403", over_http.url), "credentials")
    assert_only_read(kept_world, before)
    assert_untouched(kept_world, before)


def test_a_remote_that_does_not_answer(kept_world: World, over_http: GitHttpServer) -> None:
    over_http.fail("fetch-refs", "silent", times=None)
    before = look(kept_world)
    result = kept_world.run("preview", "-o", "json", git_timeout="1s")
    assert_blocked(result, "fleet-remote", "1 s", "--git-timeout")
    assert result.seconds < 15
    assert_untouched(kept_world, before)


# fleet-identity

CONFIGURE = "git config"


@rows(
    {
        "no name": Row(git("config --unset user.name"), "user.name", CONFIGURE),
        "no address": Row(git("config --unset user.email"), "user.email", CONFIGURE),
        "a name of nothing that git keeps": Row(git("config user.name .,"), "name", CONFIGURE),
        "commits that are to be signed": Row(git("config commit.gpgSign true"), "commit.gpgSign", "commit.gpgSign"),
        "a date that can not be read": Row(
            nothing, ("GIT_AUTHOR_DATE", "yesterday"), "unset GIT_AUTHOR_DATE", {"env": {"GIT_AUTHOR_DATE": "yesterday"}}
        ),
    }
)
def test_fleet_identity(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "fleet-identity")


def test_the_identity_of_the_environment_counts(kept_world: World) -> None:
    git("config --unset user.name", "config --unset user.email")(kept_world)
    names = {f"GIT_{role}_{part}": f"{role.lower()}@example.com" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    result = kept_world.run("preview", "-o", "json", env=names)
    assert_passes(result)
    assert "author@example.com <author@example.com>" in result.check("fleet-identity")["message"]
    assert "committer@example.com <committer@example.com>" in result.check("fleet-identity")["message"]


# fleet-rule

RULE = rule_bytes("dc1", {"gpu-1": "pod-hami"}).decode()
BLOCK = RULE[RULE.index("    - name:") :]


def rule(content: str | bytes) -> Make:
    """Commit this rule file."""
    return lambda world: world.fleet.commit(world.fleet.rule_path, content)


def edited(*replacements: tuple[str, str]) -> Make:
    """Commit the rule file with these replacements in it."""
    text = RULE
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return rule(text)


def link_rule(world: World) -> None:
    path = world.fleet.checkout / world.fleet.rule_path
    path.rename(path.with_name("real.yaml"))
    path.symlink_to("real.yaml")
    git("add --all", "commit --quiet --message=link", "push --quiet")(world)


MODE, EXPECTED = f"{LABEL_ACTIVE}: pod-hami", f"{LABEL_EXPECTED}: pod-hami"
EVERYONE = BLOCK.replace("gpu-1-pod-hami", "everyone").replace('op: In\n              value: ["gpu-1"]', "op: Exists")
MEND = "mend the file"


@rows(
    {
        "no file": Row(remove("clusters/dc1/gpu-node-modes/nodefeaturerule.yaml"), "clusters/dc1/gpu-node-modes/nodefeaturerule.yaml"),
        "a symbolic link": Row(link_rule, ("nodefeaturerule.yaml", "symbolic link")),
        "no block for the node": Row(rule(rule_bytes("dc1", {"gpu-10": "pod-hami", "gpu-2": "pod-hami"})), "gpu-1", MEND),
        "two blocks for the node": Row(rule(RULE + BLOCK), ("line ", "gpu-1"), MEND),
        "a block that lists another node too": Row(edited(('["gpu-1"]', '["gpu-1", "gpu-2"]')), ("line 20", "more than node gpu-1"), MEND),
        "a block with matchAny": Row(edited(("matchFeatures", "matchAny")), "line ", MEND),
        "drift between the two mode labels": Row(
            edited((EXPECTED, f"{LABEL_EXPECTED}: vm-passthrough")), ("line ", "vm-passthrough"), MEND
        ),
        "drift of the rule's name": Row(
            edited(("name: gpu-1-pod-hami", "name: gpu-1-vm-passthrough")), ("line ", "gpu-1-vm-passthrough"), MEND
        ),
        "an anchor": Row(edited((MODE, f"{LABEL_ACTIVE}: &mode pod-hami")), ("line 12", "anchor"), MEND),
        "several documents": Row(rule(f"{RULE}---\n{RULE}"), ("line ", "second document"), MEND),
        "not UTF-8": Row(rule(RULE.encode() + b"# \xff\n"), (f"line {RULE.count(chr(10)) + 1}", "UTF-8"), MEND),
        "another rule that may write the node's labels": Row(rule(RULE + EVERYONE), ("line ", "gpu-1"), MEND),
        "another mode, with the direction that would fit": Row(
            rule(rule_bytes("dc1", {"gpu-1": "pod-hami-dra"})), ("line 10", "pod-hami-dra"), "--from pod-hami-dra", {}, AHEAD
        ),
        "a rule that asks for the target already": Row(
            rule(rule_bytes("dc1", {"gpu-1": "vm-passthrough"})), ("already", "vm-passthrough"), "Flux", {}, AHEAD
        ),
    }
)
def test_fleet_rule(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "fleet-rule")


def test_a_rule_that_people_have_edited_is_fit(kept_world: World) -> None:
    """Quotes, comments, other line ends, none at the end, and blocks of other nodes, one of them in a mode that is refused."""
    text = rule_bytes("dc1", {"gpu-1": "pod-hami", "gpu-10": "vm-passthrough", "a.gpu-1": "vm-vgpu"}).decode()
    text = text.replace(MODE, f"{LABEL_ACTIVE}: 'pod-hami'  # since May").replace("\n", "\r\n")
    preview(kept_world, Row(rule(text.rstrip())), "fleet-rule")


# fleet-cluster


def patched(path: str, spec: Json) -> Make:
    """Change the spec of an object of Flux."""
    return lambda world: world.kube.patch(path, {"spec": spec})


def deleted(path: str) -> Make:
    return lambda world: world.kube.delete(path)


FOLLOWED = "clusters/dc1/gpu-node-modes"
MISSING = {"ignore_missing_gitops": True}
BRANCH = ("main", "git -C ")


@rows(
    {
        "another path": Row(
            patched(KUSTOMIZATION, {"path": "./clusters/dc2/gpu-node-modes"}), ("clusters/dc2/gpu-node-modes", FOLLOWED), "--kubeconfig"
        ),
        "a path that begins alike": Row(patched(KUSTOMIZATION, {"path": f"./{FOLLOWED}-old"}), f"{FOLLOWED}-old", "--kubeconfig"),
        "another branch": Row(patched(SOURCE, {"ref": {"branch": "staging"}}), ("staging", "main"), "switch staging"),
        "no branch, which means master": Row(patched(SOURCE, {"ref": None}), ("master", "main")),
        "a tag": Row(patched(SOURCE, {"ref": {"branch": None, "tag": "v1"}}), ("tag v1", "main")),
        "a tag beside the branch": Row(patched(SOURCE, {"ref": {"tag": "v1"}}), ("tag v1", "main")),
        "a commit": Row(patched(SOURCE, {"ref": {"branch": "main", "commit": "0123456789"}}), ("commit 0123456789", "main")),
        "a range of versions": Row(patched(SOURCE, {"ref": {"semver": ">=1.0"}}), ("semver >=1.0", "main")),
        "a ref that is no branch": Row(patched(SOURCE, {"ref": {"name": "refs/tags/main"}}), ("refs/tags/main", "main")),
        "a source of another kind": Row(
            patched(KUSTOMIZATION, {"sourceRef": {"kind": "OCIRepository", "name": "flux-system"}}), "OCIRepository"
        ),
        "no Kustomization": Row(
            deleted(KUSTOMIZATION), ("flux-system/gpu-node-mode", "does not exist"), ("--kubeconfig", "--ignore-missing-gitops")
        ),
        "no source": Row(deleted(SOURCE), ("GitRepository flux-system/flux-system", "does not exist"), "--ignore-missing-gitops"),
        "another path, even where absence is accepted": Row(
            patched(KUSTOMIZATION, {"path": "./elsewhere"}), "elsewhere", "--kubeconfig", MISSING
        ),
        "another branch, even where absence is accepted": Row(patched(SOURCE, {"ref": {"branch": "staging"}}), "staging", (), MISSING),
        "another kind of source, even where absence is accepted": Row(
            patched(KUSTOMIZATION, {"sourceRef": {"kind": "Bucket", "name": "flux-system"}}), "Bucket", (), MISSING
        ),
    }
)
def test_fleet_cluster(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "fleet-cluster")


@rows(
    {
        "a path without ./ and with a slash at its end": Row(patched(KUSTOMIZATION, {"path": f"{FOLLOWED}/"})),
        "a branch as a full ref": Row(patched(SOURCE, {"ref": {"name": "refs/heads/main"}})),
        "the same repository without .git": Row(
            lambda world: patched(SOURCE, {"url": f"file://{str(world.fleet.remote).removesuffix('.git')}/"})(world)
        ),
    }
)
def test_fit_clusters(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "fleet-cluster")


@rows(
    {
        "no Kustomization": Row(deleted(KUSTOMIZATION), "does not exist", (), MISSING),
        "no source": Row(deleted(SOURCE), "does not exist", (), MISSING),
        "a URL that can not be told to be ours": Row(
            patched(SOURCE, {"url": "https://git.example.com/fleet"}), "https://git.example.com/fleet"
        ),
    }
)
def test_what_only_warns_about_the_cluster(kept_world: World, row: Row) -> None:
    row.make(kept_world)
    before = look(kept_world)
    assert_warns(kept_world.run("preview", "-o", "json", **row.options), "fleet-cluster", row.message)
    assert_untouched(kept_world, before)


# flux and live-rule


LIVE = f"{RULES}/dc1-gpu-node-modes"


def other_rule(**match: Any) -> Make:
    """Another NodeFeatureRule that writes one of the mode labels, with the value that it has."""
    one = {"name": "all", "labels": {LABEL_CONFIG: mode_labels("pod-hami")[LABEL_CONFIG]}, **match}
    made = {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeatureRule", "metadata": {"name": "zz-other"}, "spec": {"rules": [one]}}
    return lambda world: world.add(made)


def only_nodes(*names: str) -> Json:
    return {"feature": "system.name", "matchExpressions": {"nodename": {"op": "In", "value": list(names)}}}


@rows(
    {
        "a suspended Kustomization": Row(
            patched(KUSTOMIZATION, {"suspend": True}),
            ("Kustomization flux-system/gpu-node-mode", "suspended"),
            ("flux resume kustomization gpu-node-mode -n flux-system", "--kubeconfig"),
        ),
        "a suspended source": Row(
            patched(SOURCE, {"suspend": True}), ("GitRepository", "suspended"), "flux resume source git flux-system -n flux-system"
        ),
        "a dependency that does not exist": Row(
            patched(KUSTOMIZATION, {"dependsOn": [{"name": "nowhere"}]}), ("flux-system/nowhere", "does not exist"), "flux tree"
        ),
    }
)
def test_flux(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "flux")


@rows(
    {
        "no live rule": Row(deleted(LIVE), ("dc1-gpu-node-modes", "does not exist"), "flux get", {}, ("live-mode",)),
        "a live rule that Flux leaves alone": Row(
            lambda world: world.kube.patch(LIVE, {"metadata": {"annotations": {"kustomize.toolkit.fluxcd.io/reconcile": "disabled"}}}),
            ("excluded", "kustomize.toolkit.fluxcd.io/reconcile: disabled"),
            ("annotate nodefeaturerule dc1-gpu-node-modes kustomize.toolkit.fluxcd.io/reconcile-", "--kubeconfig"),
        ),
        "another rule for every node": Row(other_rule(), ("'all'", "zz-other"), "take the labels out"),
        "another rule for this node among others": Row(other_rule(matchFeatures=[only_nodes("gpu-2", "gpu-1")]), "zz-other"),
        "another rule for other nodes": Row(other_rule(matchFeatures=[only_nodes("gpu-2")])),
    }
)
def test_live_rule(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "live-rule")


# target-stack

APPS = "/apis/apps/v1/namespaces/{}/daemonsets/{}"
OWNER = APPS.format("gpu-operator", "nvidia-sandbox-device-plugin-daemonset")
HAMI = APPS.format("gpu-operator", "hami-device-plugin")
POLICY = f"{POLICIES}/cluster-policy"
STOCK = "nvidia-device-plugin-daemonset"


def selecting(path: str, selector: Json | None) -> Make:
    """Have a DaemonSet select other nodes."""
    return patched(path, {"template": {"spec": {"nodeSelector": selector}}})


def deployed(name: str, namespace: str, selector: Json) -> Make:
    return lambda world: world.add(daemonset(name, namespace, selector))


def bound_to(world: World, name: str) -> None:
    """Have the owner's pods run on that node alone, by a required node affinity."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    patched(OWNER, {"template": {"spec": {"affinity": {"nodeAffinity": required}}}})(world)


def sandboxes(**changes: Any) -> Make:
    return patched(POLICY, {"sandboxWorkloads": changes})


@rows(
    {
        "an owner that is not deployed": Row(
            deleted(OWNER),
            ("no DaemonSet nvidia-sandbox-device-plugin-daemonset in gpu-operator", "stack of vm-passthrough"),
            ("get daemonsets -A", "--kubeconfig"),
        ),
        "an owner that selects other nodes": Row(
            selecting(OWNER, {"example.com/gpu": "yes"}), ("will not select the node", "it wants example.com/gpu=yes"), "get daemonset"
        ),
        "an owner that is bound to another node": Row(lambda world: bound_to(world, "gpu-2"), "node affinity does not admit it"),
        "a label that keeps the owner away": Row(
            lambda world: world.patch_node({"metadata": {"labels": {f"{DEPLOY}sandbox-device-plugin": "false"}}}),
            ("will not select the node", "there will be false"),
        ),
        "the owner of another mode that stays": Row(
            selecting(HAMI, {LABEL_ACTIVE: None, "kubernetes.io/os": "linux"}),
            ("gpu-operator/hami-device-plugin will run on the node too", "conflicts"),
        ),
        "the stock plugin, wherever it is": Row(
            deployed(STOCK, "tenant-a", {"nvidia.com/gpu.present": "true"}), f"tenant-a/{STOCK} will run on the node too"
        ),
        "sandbox workloads that are disabled": Row(
            sandboxes(enabled=False), ("cluster-policy", "sandbox workloads disabled"), "clusterpolicy"
        ),
        "sandbox workloads for Kata": Row(sandboxes(mode="kata"), ("cluster-policy", "mode kata, not kubevirt"), "clusterpolicy"),
        "the stock plugin where pods run today alone": Row(deployed(STOCK, "tenant-a", {f"{DEPLOY}device-plugin": "true"})),
    }
)
def test_target_stack(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "target-stack")


def test_what_a_cluster_without_the_operators_policy_will_run_is_not_known(kept_world: World) -> None:
    deleted(POLICY)(kept_world)
    assert_warns(kept_world.run("preview", "-o", "json"), "target-stack", ("not known", "no ClusterPolicy"))


# The checks that only warn


def broken_owner(world: World) -> None:
    (name,) = [one["metadata"]["name"] for one in world.pods() if one["metadata"]["name"].startswith("hami-device-plugin")]
    path = PODS.format(namespace="gpu-operator") + f"/{name}"
    world.kube.patch(path, {"metadata": {"annotations": {HANDS_OFF: "true"}}})
    world.kube.patch(f"{path}/status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}})


ADVICE: dict[str, Row] = {
    "live-gates": Row(
        lambda world: world.kube.patch(f"{CONFIG_MAPS}/cluster-config", {"data": {VM: "true"}}), f"{VM} is 'true'", "get configmap"
    ),
    "source-owner": Row(broken_owner, ("owner hami-device-plugin", "not Ready yet"), "find out why"),
    "gpu-stack": Row(
        lambda world: world.patch_node({"metadata": {"labels": {f"{DEPLOY}driver": "paused-for-driver-upgrade"}}}),
        (f"{DEPLOY}driver", "paused-for-driver-upgrade"),
        "driver manager",
    ),
    "generator-input": Row(
        nothing, "GPU_NODE_MODES has gpu-1 in pod-hami", "kube-dc bootstrap config set dc1 GPU_NODE_MODES=gpu-1=vm-passthrough --yes"
    ),
}


@pytest.mark.parametrize("check", ADVICE)
def test_advice_warns_and_stops_nothing(kept_world: World, check: str) -> None:
    row = ADVICE[check]
    row.make(kept_world)
    before = look(kept_world)
    result = kept_world.run("preview", "-o", "json")
    assert_warns(result, check, row.message, row.remedy)
    others = {name: status for name, status in statuses(result).items() if name in ADVICE and name not in (check, "generator-input")}
    assert set(others.values()) == {"pass"}
    assert_only_read(kept_world, before)
    assert_untouched(kept_world, before)


# node and live-mode


def condition(status: str | None) -> Make:
    """Give the node this Ready condition, or none."""

    def make(world: World) -> None:
        conditions = [{**node_condition(True), "status": status, "reason": "NodeStatusUnknown"}] if status else []
        world.kube.patch(f"{NODES}/{world.name}/status", {"status": {"conditions": conditions}})

    return make


@rows(
    {
        "a node that does not exist": Row(
            lambda world: world.fleet.set_modes({"gpu-9": "pod-hami"}), ("gpu-9", "does not exist"), "get nodes", {"node": "gpu-9"}, AHEAD
        ),
        "a node that is not Ready": Row(condition("False"), ("gpu-1", "False"), "node"),
        "a node of which nothing is known": Row(condition("Unknown"), ("gpu-1", "Unknown"), "node"),
        "a node without the condition": Row(condition(None), ("gpu-1", "absent"), "node"),
    }
)
def test_node(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "node")


def test_what_needs_the_node_is_left_out_where_there_is_none(kept_world: World) -> None:
    result = kept_world.run("preview", "-o", "json", node="gpu-9")
    assert failing(result) == ["fleet-rule", "node"]
    assert {name for name, status in statuses(result).items() if status == "skip"} >= {"live-mode", "cordon", "holders", "other-actors"}
    assert report_of(result)["live"] is None


def labelled(**values: str | None) -> Make:
    labels = {{"active": LABEL_ACTIVE, "expected": LABEL_EXPECTED, "config": LABEL_CONFIG}[key]: value for key, value in values.items()}
    return lambda world: world.patch_node({"metadata": {"labels": labels}})


VMS = "vm-passthrough"


@rows(
    {
        "another active mode": Row(labelled(active="vm-passthrough"), (LABEL_ACTIVE, "vm-passthrough", "pod-hami")),
        "another expected mode": Row(labelled(expected="vm-passthrough"), (LABEL_EXPECTED, "vm-passthrough", "pod-hami")),
        "another workload config": Row(labelled(config="vm-passthrough"), (LABEL_CONFIG, "vm-passthrough", "container")),
        "no active mode": Row(labelled(active=None), (LABEL_ACTIVE, "pod-hami")),
        "no expected mode": Row(labelled(expected=None), (LABEL_EXPECTED, "pod-hami")),
        "no workload config": Row(labelled(config=None), (LABEL_CONFIG, "container")),
        "an unknown mode": Row(labelled(active="pod-hami-2", expected="pod-hami-2"), (LABEL_ACTIVE, LABEL_EXPECTED, "pod-hami-2")),
        "every label of the target": Row(labelled(active=VMS, expected=VMS, config=VMS), (LABEL_ACTIVE, LABEL_EXPECTED, LABEL_CONFIG)),
        "labels that are right for another mode of that config": Row(
            labelled(active="pod-hami-dra", expected="pod-hami-dra"), "pod-hami-dra"
        ),
    }
)
def test_live_mode(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "live-mode")


# cordon

WHOEVER = "whoever did it has to uncordon it"


@rows(
    {
        "a node that somebody else cordoned stays cordoned": Row(lambda world: world.cordon(), ("cordoned", "kubectl"), WHOEVER),
        "a tool's cordon is named as the tool's": Row(lambda world: world.cordon(manager="node-drainer"), "node-drainer", WHOEVER),
        "the flag for a resume does not make it ours": Row(
            lambda world: world.cordon(), ("cordoned", "kubectl"), WHOEVER, {"resume_cordoned": True}
        ),
        "the flag for a resume without a transaction": Row(
            nothing, "nothing to resume", "without --resume-cordoned", {"resume_cordoned": True}
        ),
    }
)
def test_cordon(kept_world: World, row: Row) -> None:
    row.make(kept_world)
    before = look(kept_world)
    result = kept_world.run("apply", "-o", "json", **row.options)
    assert_blocked(result, "cordon", row.message, row.remedy)
    assert_only_read(kept_world, before)
    assert_untouched(kept_world, before)


# other-actors


def marked(kind: str, value: Any) -> Make:
    def make(world: World) -> None:
        if kind == "taint":
            world.patch_node({"spec": {"taints": [{"key": value, "effect": "NoSchedule"}]}})
        elif kind == "condition":
            more = {**node_condition(True), "type": value[0], "status": value[1]}
            change = {"conditions": [*world.node()["status"]["conditions"], more]}
            world.kube.patch(f"{NODES}/{world.name}/status", {"status": change})
        else:
            world.patch_node({"metadata": {kind: dict([value])}})

    return make


def upgrading(phase: str) -> Make:
    return lambda world: world.add(pod("upgrade", "gpu-1", phase=phase, labels={"upgrade.cattle.io/plan": "to-1.35"}))


UPGRADE, MIG = "nvidia.com/gpu-driver-upgrade-state", "nvidia.com/mig.config.state"
REBOOT, SAFE_LOAD = "weave.works/kured-reboot-in-progress", "nvidia.com/gpu-driver-upgrade.driver-wait-for-safe-load"
TAINTS = (
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "medik8s.io/drain",
    "kubevirt.io/drain",
    "node.kubernetes.io/out-of-service",
)


@rows(
    {
        **{
            f"a driver upgrade in state {state}": Row(marked("labels", (UPGRADE, state)), (UPGRADE, state))
            for state in ("upgrade-required", "pod-restart-required", "upgrade-failed")
        },
        **{
            f"a MIG change in state {state}": Row(marked("labels", (MIG, state)), (MIG, state))
            for state in ("pending", "rebooting", "failed")
        },
        "a reboot by kured": Row(marked("annotations", (REBOOT, "2026-01-02T03:04:05Z")), REBOOT),
        "a reboot by kured without a time": Row(marked("annotations", (REBOOT, "")), REBOOT),
        "a driver that waits to be loaded": Row(marked("annotations", (SAFE_LOAD, "true")), SAFE_LOAD),
        **{f"the taint {key}": Row(marked("taint", key), key) for key in TAINTS},
        "a drain that is scheduled": Row(marked("condition", ("DrainScheduled", "True")), "DrainScheduled"),
        "a pod of the system upgrade": Row(upgrading("Running"), ("tenant-a/upgrade", "to-1.35")),
    }
)
def test_other_actors(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "other-actors")


def test_a_node_that_is_being_deleted(world: World) -> None:
    world.patch_node({"metadata": {"finalizers": ["example.com/later"]}})
    world.kube.delete(f"{NODES}/{world.name}")
    try:
        preview(world, Row(nothing, "being deleted"), "other-actors")
    finally:
        world.patch_node({"metadata": {"finalizers": None}})


def harmless_marks(upgrade: str | None, mig: str | None) -> Make:
    def make(world: World) -> None:
        world.patch_node({"metadata": {"labels": {UPGRADE: upgrade, MIG: mig}}})
        marked("taint", "nvidia.com/gpu")(world)
        marked("condition", ("DrainScheduled", "False"))(world)
        upgrading("Succeeded")(world)

    return make


@rows(
    {
        "operations that are done": Row(harmless_marks("upgrade-done", "success")),
        "labels without a value": Row(harmless_marks("", "")),
        "no labels": Row(harmless_marks(None, None)),
    }
)
def test_what_is_no_mark(kept_world: World, row: Row) -> None:
    preview(kept_world, row, "other-actors")


# access

READ: list[Json] = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]


def test_a_user_who_may_not_patch_nodes(kept_world: World) -> None:
    kept_world.backend.add_user("reader", READ)
    config = kept_world.backend.kubeconfig(kept_world.root / "reader.kubeconfig", user="reader")
    before = look(kept_world)
    assert_passes(kept_world.run("preview", "-o", "json", kubeconfig=config))
    assert_only_read(kept_world, before, user="reader")
    result = kept_world.run("apply", "-o", "json", kubeconfig=config)
    assert_blocked(result, "access", ("dry run", "403", "gpu-1"), "permission")
    assert_untouched(kept_world, before, user="reader")


def said(code: int, message: str) -> tuple[int, Json]:
    return code, {"kind": "Status", "code": code, "message": message}


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((403, None), ("403",)),
        (said(400, 'admission webhook "nodes.example.com" denied the request: frozen'), ("nodes.example.com", "frozen")),
        (said(422, "frozen by policy"), ("422", "frozen by policy")),
        (said(500, "failed calling webhook"), ("500", "failed calling webhook")),
        ((200, b"not an object"), ()),
    ],
    ids=["it is forbidden", "admission denies it", "it is invalid", "the server fails", "the answer is not readable"],
)
def test_a_dry_run_that_is_not_accepted_ends_the_run(
    kept_world: World, kept_proxy: FaultProxy, reply: tuple[int, Any], words: tuple[str, ...]
) -> None:
    rule = kept_proxy.on("patch", f"^{NODES}/gpu-1$", reply=reply)
    before = look(kept_world)
    result = kept_world.run("apply", "-o", "json", kubeconfig=kept_world.through(kept_proxy))
    assert_blocked(result, "access", ("dry run", *words))
    (asked,) = rule.seen
    assert asked.query == {"fieldManager": "kubectl-gpu-transition", "dryRun": "All"}
    assert asked.json and not [operation for operation in asked.json if operation["path"] == "/metadata/resourceVersion"]
    assert_untouched(kept_world, before)


# All of them


ALONE: dict[str, Row] = {
    "modes": Row(nothing, options={"to": "vm-vgpu"}),
    "cluster-overlay": Row(remove("clusters/dc1/cluster-config.env")),
    "creation-gates": Row(gate(VM, "true")),
    "fleet-checkout": Row(write("new.yaml")),
    "fleet-remote": Row(lambda world: world.fleet.another_commit_by_somebody()),
    "fleet-identity": Row(git("config --unset user.name")),
    "fleet-rule": Row(edited((MODE, f"{LABEL_ACTIVE}: &mode pod-hami"))),
    "fleet-cluster": Row(deleted(KUSTOMIZATION)),
    "flux": Row(patched(KUSTOMIZATION, {"suspend": True})),
    "live-rule": Row(other_rule()),
    "target-stack": Row(deleted(OWNER)),
    "node": Row(condition("Unknown")),
    "live-mode": Row(labelled(active=None)),
    "holders": Row(lambda world: world.add(gpu_pod("holder", "gpu-1", phase="Running"))),
    "other-actors": Row(marked("annotations", (REBOOT, ""))),
}


@pytest.mark.parametrize("check", ALONE)
def test_an_apply_is_stopped_by_each_check(kept_world: World, check: str) -> None:
    """Cordon and access have tests of their own above. Nothing is asked where nothing can be done, and no dry run is sent."""
    row = ALONE[check]
    row.make(kept_world)
    before = look(kept_world)
    result = kept_world.run("apply", "-o", "json", **row.options)
    assert_blocked(result, check)
    assert statuses(result)["access"] == "skip"
    assert_only_read(kept_world, before)
    assert_untouched(kept_world, before)


def test_everything_that_is_wrong_is_reported_at_once_and_in_order(kept_world: World) -> None:
    """One run shows it all; only what can not be told because of something else is left out."""
    gate(VM, "true")(kept_world)
    edited((MODE, f"{LABEL_ACTIVE}: &mode pod-hami"))(kept_world)
    kept_world.fleet.another_commit_by_somebody()
    git("config --unset user.name")(kept_world)
    write("new.yaml")(kept_world)
    patched(KUSTOMIZATION, {"path": "./elsewhere"})(kept_world)
    labelled(expected="vm-passthrough")(kept_world)
    marked("annotations", (REBOOT, ""))(kept_world)
    kept_world.add(gpu_pod("holder", "gpu-1", phase="Running"))
    kept_world.cordon()
    condition("False")(kept_world)
    before = look(kept_world)
    wrong = [
        "modes",
        "creation-gates",
        "fleet-checkout",
        "fleet-remote",
        "fleet-identity",
        "fleet-rule",
        "fleet-cluster",
        "node",
        "live-mode",
        "cordon",
        "holders",
        "other-actors",
    ]
    for command in ("preview", "apply"):
        result = kept_world.run(command, "-o", "json", to="vm-vgpu")
        assert result.code == 3
        report = report_of(result)
        assert [name for name in failing(result) if name in wrong] == wrong
        assert set(failing(result)) - set(wrong) <= {"flux", "live-rule", "target-stack"}
        assert all(name in report["error"]["message"] for name in wrong)
    text = kept_world.run("preview", to="vm-vgpu").out
    shown = [line.split()[1] for line in text.splitlines() if line.startswith("FAIL")]
    assert shown == failing(result)
    assert len(re.findall(r"^ +-> ", text, re.MULTILINE)) >= len(wrong)
    assert_only_read(kept_world, before)
    assert_untouched(kept_world, before)

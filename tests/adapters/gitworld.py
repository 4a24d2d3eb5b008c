"""Real git repositories for the tests of the git adapters: a bare remote, a checkout of it, and another writer."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from kubectl_gpu_transition.adapters.fleet import GitFleet

CLUSTER = "eu/dc1"
ENV = f"clusters/{CLUSTER}/cluster-config.env"
RULE = f"clusters/{CLUSTER}/gpu-node-modes/nodefeaturerule.yaml"
OLD, NEW = b"kind: NodeFeatureRule\nmode: pod-hami\n", b"kind: NodeFeatureRule\nmode: vm-passthrough\n"
MESSAGE = "feat(gpu): transition node-1 to vm-passthrough\n\nCluster: eu/dc1\n\nGpu-Transition-Id: 11111111-2222-4333-8444-555555555555\n"
SUBJECT = "feat(gpu): transition node-1 to vm-passthrough"


class World:
    """``remote`` is bare, ``checkout`` a clone on branch main with one commit, ``env`` the environment of everything that runs."""

    def __init__(self, root: Path, url: str | None = None) -> None:
        self.root = root
        self.home = root / "home"
        self.home.mkdir(parents=True)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C",
        }
        self.remote, self.checkout = root / "remote.git", root / "checkout"
        template = _template()
        for name in ("home/.gitconfig", "remote.git", "checkout"):
            (shutil.copytree if (template / name).is_dir() else shutil.copy2)(template / name, root / name)
        config = self.checkout / ".git" / "config"
        config.write_text(config.read_text().replace("@URL@", url or str(self.remote)))
        self.git("update-index", "-q", "--refresh")

    def git(self, *args: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, check: bool = True) -> str:
        """Run git in the checkout (or elsewhere) and return its output."""
        done = subprocess.run(["git", *args], cwd=cwd or self.checkout, env={**self.env, **(env or {})}, capture_output=True, check=False)
        if check and done.returncode:
            raise AssertionError(f"git {args}: {done.stderr.decode()}")
        return done.stdout.decode("utf-8", "surrogateescape")

    def write(self, path: str, data: bytes) -> Path:
        """Write a file of the checkout."""
        target = self.checkout / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return target

    def head(self, where: Path | None = None, ref: str = "HEAD") -> str:
        """A commit id."""
        return self.git("rev-parse", ref, cwd=where).strip()

    def fleet(self, repo: Path | None = None, token_env: str | None = None, timeout: float = 20, **environ: str) -> GitFleet:
        """A GitFleet of the checkout."""
        self.log: list[str] = []
        env = {**self.env, **environ}
        return GitFleet(str(repo or self.checkout), env, token_env=token_env, git_timeout=timeout, log=self.log.append)

    def other(self) -> Path:
        """A second clone of the remote, for another writer."""
        clone = self.root / "other"
        if not clone.exists():
            self.git("clone", "-q", str(self.remote), str(clone), cwd=self.root)
        return clone

    def commit_elsewhere(self, path: str = "other.txt", data: bytes = b"x\n", message: str = "other") -> str:
        """Another writer's commit, pushed."""
        clone = self.other()
        self.git("pull", "-q", cwd=clone)
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        (clone / path).write_bytes(data)
        self.git("add", ".", cwd=clone)
        self.git("commit", "-qm", message, cwd=clone)
        self.git("push", "-q", "origin", "HEAD:main", cwd=clone)
        return self.head(clone)

    def hook(self, name: str, script: str) -> None:
        """A hook of the remote."""
        path = self.remote / "hooks" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def push(self, fleet: GitFleet, base: str | None = None) -> tuple[str, str, str]:
        """Prepare and push a transition; (base, commit, state)."""
        base = base or self.head()
        commit = fleet.prepare_commit(base, RULE, NEW, MESSAGE, True)
        return base, commit, fleet.push_commit(base, commit).state

    def assert_clean(self, commit: str) -> None:
        """git agrees that the checkout is at the commit, and that nothing is wrong with it."""
        assert self.git("status", "--porcelain=v1", "--branch") == "## main...origin/main\n"
        assert self.head() == commit
        assert self.head(ref="origin/main") == commit
        assert self.git("fsck", "--no-dangling") == ""
        assert (self.checkout / RULE).read_bytes().replace(b"\r\n", b"\n") == NEW


@cache
def _template() -> Path:
    """What every world starts from, made once by each process of the tests."""
    root = Path(tempfile.mkdtemp(prefix="gitworld-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    home, checkout = root / "home", root / "checkout"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = Ada Fleet\n\temail = ada@example.com\n[init]\n\tdefaultBranch = main\n")
    for path, data in {ENV: b"A=1\n", RULE: OLD, "clusters/lab/cluster-config.env": b"B=2\n", "README.md": b"fleet\n"}.items():
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / path).write_bytes(data)
    script = """set -e
git init -q --bare ../remote.git; git init -q; rm -f .git/hooks/* ../remote.git/hooks/*; git add .; git commit -qm start
git push -q ../remote.git main; git remote add origin @URL@; git update-ref refs/remotes/origin/main main
git config branch.main.remote origin; git config branch.main.merge refs/heads/main"""
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["/bin/sh", "-c", script], cwd=checkout, env=env, check=True)
    return root


def snapshot(root: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Every file, link and directory below: mode, inode, time of change in ns, and bytes."""
    found: dict[str, tuple[int, int, int, bytes]] = {}
    for directory, names, files in os.walk(root):
        for name in [*names, *files]:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            special = os.path.islink(path) or os.path.isdir(path)
            data = b"" if special else Path(path).read_bytes()
            data = os.fsencode(os.readlink(path)) if os.path.islink(path) else data
            found[os.path.relpath(path, root)] = (status.st_mode, status.st_ino, status.st_mtime_ns, data)
    return found

"""`make demo`: the main job on a simulated cluster, as an operator would do it; fails when a step does not end as announced.

A small API server, a bare git remote with a checkout, and a player for kubelet, Flux, NFD and the GPU operator run on this machine. The
program is the built archive, with a real kubectl in front of it where one is on PATH. Its own output is shown unchanged.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.harness.backend import SimBackend
from tests.harness.world import World, clean_environment, gpu_pod, zipapp_path

_REJECT = "echo 'the branch is frozen tonight' >&2\nexit 1\n"


class Demo:
    """One world, and the commands run in it. ``surprises`` are the steps that did not end as announced."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.surprises: list[str] = []
        archive = zipapp_path()
        with_kubectl = shutil.which("kubectl") is not None
        self.program = ["kubectl", "gpu-transition"] if with_kubectl else ["kubectl-gpu_transition"]
        path = os.pathsep.join([str(archive.parent), *([str(Path(sys.executable).parent)]), os.environ.get("PATH", "")])
        self.env = {**clean_environment(world.home), "PATH": path, "TERM": os.environ.get("TERM", "dumb")}
        self.say(f"the program is {archive}, run as `{' '.join(self.program)}`" + ("" if with_kubectl else " (no kubectl on PATH)"))

    def say(self, text: str) -> None:
        """One line of what is happening."""
        print(f"\n== {text}", flush=True)

    def run(self, words: Sequence[str], code: int, announced: str) -> None:
        """Run one command as typed, show what it prints, and compare its exit code with the announced one."""
        self.say(announced)
        argv = [*self.program, *words]
        print(f"$ {shlex.join(argv)}", flush=True)
        ended = subprocess.run(argv, cwd=self.world.root, env=self.env, stdin=subprocess.DEVNULL, check=False)
        print(f"[exit code {ended.returncode}]", flush=True)
        if ended.returncode != code:
            self.surprises.append(f"{announced}: exit code {ended.returncode}, not {code}")

    def expect(self, holds: bool, what: str) -> None:
        """A fact about the node or the fleet that the step before must have left."""
        print(f"   {'yes' if holds else 'NO'}: {what}", flush=True)
        if not holds:
            self.surprises.append(what)


def play(world: World) -> list[str]:
    """The story; returns the surprises."""
    demo, node = Demo(world), world.name
    where = [world.cluster, node, "--repo", str(world.fleet.checkout.relative_to(world.root)), "--kubeconfig", world.kubeconfig.name]
    to_vm = [*where, "--from", "pod-hami", "--to", "vm-passthrough"]
    to_pod = [*where, "--from", "vm-passthrough", "--to", "pod-hami"]
    quick = ["--settle", "1s", "--timeout", "2m", "--yes"]

    holder = world.add(gpu_pod("training-7", node, namespace="tenant-a"))
    demo.run(["preview", *to_vm], 3, "1. A tenant's pod holds a GPU: the preview is blocked and says by whom")
    world.remove(holder)
    demo.run(["preview", *to_vm], 0, "2. The tenant has stopped it: the preview is clean and shows the plan")
    demo.run(["apply", *to_vm, *quick], 0, "3. The apply: cordon, recheck, commit and push, wait, verify, uncordon")
    demo.expect(world.mode() == "vm-passthrough" and not world.is_cordoned(), f"{node} is in vm-passthrough and schedulable")

    world.fleet.hook("pre-receive", _REJECT)
    demo.run(
        ["apply", *to_pod, *quick, "--reason", "CHG-1042"], 4, "4. The way back, but the remote refuses the push: the node stays cordoned"
    )
    demo.expect(world.is_cordoned() and world.annotation() is not None, f"{node} is cordoned and carries the transaction")
    demo.expect(world.fleet.head() == world.fleet.tip(), "the checkout is as it was")
    world.fleet.hook("pre-receive", None)
    demo.run(
        ["apply", *to_pod, "--resume-cordoned", *quick, "--reason", "CHG-1042"],
        0,
        "5. The branch is open again: the resume finishes the same transaction",
    )
    demo.expect(world.mode() == "pod-hami" and not world.is_cordoned(), f"{node} is back in pod-hami and schedulable")

    world.fleet.hook("pre-receive", _REJECT)
    demo.run(["apply", *to_vm, *quick], 4, "6. Once more to vm-passthrough, and once more the push is refused")
    demo.run(["abandon", *where, *quick], 0, "7. This time it is given up: nothing was changed, so the node goes back to work")
    demo.expect(
        world.mode() == "pod-hami" and not world.is_cordoned() and world.annotation() is None, f"{node} is in pod-hami and schedulable"
    )
    return demo.surprises


def main() -> int:
    """Set the stage, play, and say how it went; 0 when every step ended as announced."""
    with tempfile.TemporaryDirectory(prefix="gpu-transition-demo-") as folder:
        root = Path(folder)
        (root / "server").mkdir()
        (root / "demo").mkdir()
        with SimBackend(root / "server") as backend, World(backend, root / "demo") as world:
            surprises = play(world)
    if surprises:
        print("\nThe demo did not go as announced:", *surprises, sep="\n  ")
        return 1
    print("\nEvery step ended as announced.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`make readme`: writes the worked run of README.md anew from a real one on the simulated cluster.

Only the places on disk are given the names that the README uses; every other character is the program's own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.harness.backend import SimBackend
from tests.harness.world import World, clean_environment, gpu_pod, zipapp_path

README = Path(__file__).parents[1] / "README.md"
_FENCE = r"<!-- run: {} -->\n(?:```console\n.*?```\n)?"


def play(world: World) -> dict[str, str]:
    """The three commands of the worked run, each with what it printed."""
    where = f"dc1 {world.name} --repo ~/fleet --kubeconfig ~/dc1.kubeconfig --from pod-hami --to vm-passthrough"
    holder = world.add(gpu_pod("training-7", world.name, namespace="tenant-a"))
    runs = {"blocked": _run(world, f"preview {where}")}
    world.remove(holder)
    runs["preview"] = _run(world, f"preview {where}")
    runs["apply"] = _run(world, f"apply {where} --yes")
    return runs


def _run(world: World, line: str) -> str:
    home = world.home
    for name, place in (("fleet", world.fleet.checkout), ("dc1.kubeconfig", world.kubeconfig)):
        if not (home / name).exists():
            (home / name).symlink_to(place)
    command = f"kubectl gpu-transition {line}"
    path = os.pathsep.join([str(zipapp_path().parent), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    ended = subprocess.run(
        ["sh", "-c", command],
        env={**clean_environment(home), "HOME": str(home), "PATH": path},
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    shown = ended.stdout
    for place, name in ((world.fleet.remote, "/srv/git/fleet.git"), (world.fleet.checkout, "/home/op/fleet"), (home, "/home/op")):
        shown = shown.replace(str(place), name)
    return f"$ {command}\n{shown.rstrip()}\n" + (f"$ echo $?\n{ended.returncode}\n" if ended.returncode else "")


def shape(text: str) -> str:
    """A run without what differs from one to the next: times, ids, ports, and the lines of the wait."""
    lines = [line for line in text.splitlines() if not re.match(r"\d{4}-\d\d-\d\dT", line)]
    return re.sub(r"[0-9a-f]{12,}|[0-9a-f-]{36}|\d+\.\d s|\(\d+ s\)|127\.0\.0\.1:\d+|vm\b|\s+", " ", "\n".join(lines))


def shown_runs() -> dict[str, str]:
    """What README.md shows of each command."""
    return dict(re.findall(r"<!-- run: (\w+) -->\n```console\n(.*?)```\n", README.read_text(), re.DOTALL))


def main() -> int:
    """Write the runs into README.md."""
    with tempfile.TemporaryDirectory(prefix="gpu-transition-readme-") as folder:
        root = Path(folder)
        (root / "server").mkdir()
        (root / "world").mkdir()
        with SimBackend(root / "server") as backend, World(backend, root / "world") as world:
            runs = play(world)
    text = README.read_text()
    for name, shown in runs.items():
        text = re.sub(
            _FENCE.format(name), lambda _, name=name, shown=shown: f"<!-- run: {name} -->\n```console\n{shown}```\n", text, flags=re.DOTALL
        )
    README.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

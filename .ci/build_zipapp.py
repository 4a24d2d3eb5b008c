"""Build the plugin and all it needs at run time as one executable file, and from it what krew wants.

The dependencies are taken from the environment that runs this script, after a look that each has the version of
``requirements.lock`` and the bytes its wheel came with. The result depends on nothing but the sources, those wheels, the
Pythons that compile bytecode and zlib: names are sorted, times and modes fixed.
"""

from __future__ import annotations

import argparse
import base64
import fnmatch
import gzip
import hashlib
import io
import marshal
import os
import re
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib
from importlib import metadata, util
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "kubectl_gpu_transition"
EXECUTABLE = "kubectl-gpu_transition"
SHEBANG = b"#!/usr/bin/env python3\n"
LICENCES = ("LICEN[CS]E*", "COPYING*", "NOTICE*", "AUTHORS*")
PRUNED = (
    # Compiled parts can not be loaded from a zip; each of them has a pure twin.
    "*.so",
    "*.pyd",
    "_yaml/*",
    # Only for developers.
    "*.pyc",
    "*.pyi",
    "*/py.typed",
    "*/tests/*",
    "*_test.py",
    # The generated client and what is built on it: adapters/lazyclient.py keeps all of it from being imported.
    "kubernetes/client/__init__.py",
    "kubernetes/client/api/*",
    "kubernetes/client/models/*",
    "kubernetes/[!c]*/*",
    "websocket/*",
    # Servers, command lines and storage that the plugin does not have; of dulwich also porcelain and what serves it alone.
    "argcomplete/bash_completion.d/*",
    "argcomplete/scripts/*",
    "charset_normalizer/cli/*",
    "dateutil/zoneinfo/*",
    "urllib3/contrib/emscripten/*",
    "dulwich/aiohttp/*",
    "dulwich/cloud/*",
    "dulwich/porcelain/*",
    "dulwich/server.py",
    "dulwich/web.py",
    *(f"dulwich/{name}.py" for name in ("__main__", "am", "annotate", "archive", "bisect", "cli", "diff", "fastexport")),
    *(f"dulwich/{name}.py" for name in ("filter_branch", "lfs_server", "mailmap", "maintenance", "mbox", "range_diff")),
    *(f"dulwich/{name}.py" for name in ("rerere", "stash", "subtree", "whitespace")),
)


def read_lock(text: str) -> dict[str, str]:
    """Names and versions in the text of a lock file."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, re.MULTILINE))


def is_wanted(name: str) -> bool:
    """Whether the file of that name in a wheel belongs into the archive."""
    folder, _, base = name.rpartition("/")
    if ".dist-info" in folder:
        return any(fnmatch.fnmatchcase(base, pattern) for pattern in LICENCES)
    return not name.startswith("../") and not any(fnmatch.fnmatchcase(name, pattern) for pattern in PRUNED)


def read_distribution(name: str, version: str) -> dict[str, bytes]:
    """The wanted files of one installed package; exits when it is not as it was released."""
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        sys.exit(f"{name} {version} is not installed: run this with the environment that `make` builds")
    if distribution.version != version:
        sys.exit(f"{name} is {distribution.version}, but the lock file says {version}")
    files = {}
    for path in distribution.files or ():
        if not is_wanted(path.as_posix()):
            continue
        content = path.locate().read_bytes()  # type: ignore[attr-defined]  # a Path since Python 3.10
        if path.hash is not None:
            digest = base64.urlsafe_b64encode(hashlib.new(path.hash.mode, content).digest()).rstrip(b"=").decode()
            if digest != path.hash.value:
                sys.exit(f"{name}: {path} is not as it was released")
        files[path.as_posix()] = content
    return files


def read_package() -> dict[str, bytes]:
    """The files of our own package."""
    files = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / PACKAGE).rglob("*")}
    return {name: path.read_bytes() for name, path in files.items() if path.suffix in {".py", ".json"} and "/." not in name}


def collect() -> dict[str, bytes]:
    """Every file of the archive but the bytecode."""
    files = read_package()
    for name, version in read_lock((ROOT / ".ci" / "requirements.lock").read_text()).items():
        files |= read_distribution(name, version)
    files["ruamel/__init__.py"] = b""  # zipimport finds no namespace packages before Python 3.13
    files["LICENSE"] = (ROOT / "LICENSE").read_bytes()
    return files


def module_name(path: str) -> str:
    """The module that a file of the archive is."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def pack_bytecode(sources: dict[str, bytes]) -> bytes:
    """The code of these sources for the running Python, in the form that ``zipapp_main.py`` describes."""
    index: dict[str, tuple[int, int]] = {}
    body = bytearray()
    for path, source in sorted(sources.items()):
        code = compile(source, f"{EXECUTABLE}/{path}", "exec", dont_inherit=True)
        start = len(body)
        body += zlib.compress(marshal.dumps(code), 9)
        index[module_name(path)] = (start, len(body))
    head = marshal.dumps(index)
    return len(head).to_bytes(8, "big") + head + body


def compile_archive(archive: bytes) -> bytes:
    """In a child, under any Python: the name of the bytecode entry and, after a line end, the pack itself."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        sources = {name: opened.read(name) for name in opened.namelist() if name.endswith(".py")}
    name = f"bytecode/{sys.implementation.cache_tag}-{util.MAGIC_NUMBER.hex()}"
    return name.encode() + b"\n" + pack_bytecode(sources)


def read_bytecode(archive: bytes, pythons: list[str]) -> dict[str, bytes]:
    """Bytecode entries made by those of the Pythons that are here and are 3.10 or newer, one for each version."""
    entries: dict[str, bytes] = {}
    for python in pythons:
        probe = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]
        try:
            if subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode:
                continue
        except OSError:
            continue
        # The order in which a frozenset is written depends on the hash seed before Python 3.12.
        command = [python, "-s", "-S", "-B", "-W", "ignore", __file__, "--compile"]
        output = subprocess.run(command, env={"PYTHONHASHSEED": "0"}, input=archive, stdout=subprocess.PIPE, check=True).stdout
        name, pack = output.split(b"\n", 1)
        entries.setdefault(name.decode(), pack)
    return entries


def timestamp() -> int:
    """Seconds since 1970 that every file of the build gets: SOURCE_DATE_EPOCH, or the first moment a zip can hold."""
    return max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800)


def make_archive(files: dict[str, bytes]) -> bytes:
    """One executable archive of these files; bytecode is compressed already and stored as it is."""
    stream = io.BytesIO()
    stream.write(SHEBANG)
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in sorted(files.items()):
            info = zipfile.ZipInfo(name, time.gmtime(timestamp())[:6])
            info.external_attr = 0o100644 << 16
            info.create_system = 3
            info.compress_type = zipfile.ZIP_STORED if name.startswith("bytecode/") else zipfile.ZIP_DEFLATED
            archive.writestr(info, content, compresslevel=9)
    return stream.getvalue()


def make_tarball(files: dict[str, tuple[bytes, int]]) -> bytes:
    """The .tar.gz that krew unpacks: regular files only, each with its mode."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, (content, mode) in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(content), mode, timestamp()
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(stream.getvalue(), 9, mtime=0)


def build(output: Path, pythons: list[str]) -> None:
    """Build everything into that folder, with bytecode for those of the Pythons that are here."""
    files = collect()
    bytecode = read_bytecode(make_archive(files), pythons)
    executable = make_archive({**files, **bytecode, "__main__.py": (ROOT / ".ci" / "zipapp_main.py").read_bytes()})
    tarball = make_tarball({EXECUTABLE: (executable, 0o755), "LICENSE": (files["LICENSE"], 0o644)})
    digest = hashlib.sha256(tarball).hexdigest()
    manifest = (ROOT / "krew-manifest.yaml").read_text().partition("\n")[2]  # the first line is about the original

    output.mkdir(parents=True, exist_ok=True)
    (output / f"{EXECUTABLE}.tar.gz").write_bytes(tarball)
    (output / f"{EXECUTABLE}.tar.gz.sha256").write_text(f"{digest}  {EXECUTABLE}.tar.gz\n")
    (output / "krew-manifest.yaml").write_text(manifest.replace("0" * 64, digest))
    partial = output / f"{EXECUTABLE}.new"
    partial.write_bytes(executable)
    partial.chmod(0o755)
    partial.replace(output / EXECUTABLE)  # last and at once: a build that was interrupted leaves none that looks finished
    versions = ", ".join(sorted(name.removeprefix("bytecode/") for name in bytecode))
    print(f"{EXECUTABLE}: {len(executable):,} bytes, with bytecode for {versions}")


def main() -> None:
    """Build, or in a child process compile."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder to write to")
    parser.add_argument("--python", action="append", default=[], help="one more Python to compile bytecode for, if it is here")
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.compile:
        sys.stdout.buffer.write(compile_archive(sys.stdin.buffer.read()))
    else:
        build(arguments.output, [sys.executable, *arguments.python])


if __name__ == "__main__":
    main()

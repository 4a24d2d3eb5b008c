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
import tempfile
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
    # Servers, command lines and storage that the plugin does not have.
    "argcomplete/bash_completion.d/*",
    "argcomplete/scripts/*",
    "charset_normalizer/cli/*",
    "dateutil/zoneinfo/*",
    "dulwich/aiohttp/*",
    "dulwich/cli.py",
    "dulwich/cloud/*",
    "urllib3/contrib/emscripten/*",
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
    paths = [path for path in (ROOT / PACKAGE).rglob("*") if path.suffix in {".py", ".json"}]
    return {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in paths}


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


def compile_archive(archive: Path) -> None:
    """In a child, under any Python: name of the bytecode entry and, after a line end, the pack itself on stdout."""
    with zipfile.ZipFile(archive) as opened:
        sources = {name: opened.read(name) for name in opened.namelist() if name.endswith(".py") and name != "__main__.py"}
    name = f"bytecode/{sys.implementation.cache_tag}-{util.MAGIC_NUMBER.hex()}"
    sys.stdout.buffer.write(name.encode() + b"\n" + pack_bytecode(sources))


def read_bytecode(archive: Path, pythons: list[str]) -> dict[str, bytes]:
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
        command = [python, "-s", "-S", "-B", "-W", "ignore", __file__, "--compile", str(archive)]
        output = subprocess.run(command, env={"PYTHONHASHSEED": "0"}, stdout=subprocess.PIPE, check=True).stdout
        name, pack = output.split(b"\n", 1)
        entries.setdefault(name.decode(), pack)
    return entries


def timestamp() -> int:
    """Seconds since 1970 that every file of the build gets: SOURCE_DATE_EPOCH, or the first moment a zip can hold."""
    return max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800)


def write_archive(target: Path, files: dict[str, bytes]) -> None:
    """Write one executable archive of these files; bytecode is compressed already and stored as it is."""
    with target.open("wb") as stream:
        stream.write(SHEBANG)
        with zipfile.ZipFile(stream, "w") as archive:
            for name, content in sorted(files.items()):
                info = zipfile.ZipInfo(name, time.gmtime(timestamp())[:6])
                info.external_attr = 0o100644 << 16
                info.create_system = 3
                info.compress_type = zipfile.ZIP_STORED if name.startswith("bytecode/") else zipfile.ZIP_DEFLATED
                archive.writestr(info, content, compresslevel=9)
    target.chmod(0o755)


def write_tarball(target: Path, members: dict[str, tuple[Path, int]]) -> None:
    """Write the .tar.gz that krew unpacks: regular files only, each with its mode."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, (path, mode) in sorted(members.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = path.stat().st_size, mode, timestamp()
            with path.open("rb") as content:
                archive.addfile(info, content)
    target.write_bytes(gzip.compress(buffer.getvalue(), 9, mtime=0))


def main() -> None:
    """Build everything below the folder asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder to write to")
    parser.add_argument("--python", action="append", default=[], help="one more Python to compile bytecode for, if it is here")
    parser.add_argument("--compile", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.compile:
        return compile_archive(arguments.compile)
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    files = collect()
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, "plain.zip")
        write_archive(plain, files)
        bytecode = read_bytecode(plain, [sys.executable, *arguments.python])
    files["__main__.py"] = (ROOT / ".ci" / "zipapp_main.py").read_bytes()
    executable, tarball = output / EXECUTABLE, output / f"{EXECUTABLE}.tar.gz"
    write_archive(executable, files | bytecode)
    write_tarball(tarball, {EXECUTABLE: (executable, 0o755), "LICENSE": (ROOT / "LICENSE", 0o644)})
    digest = hashlib.sha256(tarball.read_bytes()).hexdigest()
    manifest = (ROOT / "krew-manifest.yaml").read_text()
    (output / "krew-manifest.yaml").write_text(re.sub(r"(?m)^(\s*sha256: ).*$", rf"\g<1>{digest}", manifest))
    Path(f"{tarball}.sha256").write_text(f"{digest}  {tarball.name}\n")
    versions = ", ".join(sorted(name.removeprefix("bytecode/") for name in bytecode))
    print(f"{executable.name}: {executable.stat().st_size:,} bytes, with bytecode for {versions}")


if __name__ == "__main__":
    main()

"""Start of the archive: refuse an old Python in one line, then import from the archive alone, as bytecode where it has it.

Every Python since 2.7 has to be able to parse this file, so it uses no newer syntax. What it must never do: import
anything of ours before the version is known, or let a package of this machine stand in for one in the archive.

``zipimport`` finds bytecode only as ``module.pyc`` beside the source, for one version of Python, and reads the whole
directory of the archive at every start. So the archive has one entry for each version, ``bytecode/TAG-MAGIC``: a
marshalled ``{module: (start, end)}``, its length in eight bytes before it, the compressed code of the modules after it.
"""

import sys

if sys.version_info < (3, 10):
    sys.stderr.write(
        "kubectl gpu-transition: Python 3.10 or newer is needed, but python3 is %s (%s)\n"
        % (".".join(map(str, sys.version_info[:3])), sys.executable)
    )
    sys.exit(2)

import marshal
import os
import zipimport
import zlib
from importlib.util import MAGIC_NUMBER

ARCHIVE = sys.path[0]


def read_bytecode():
    """The archive's bytecode for this Python: the compressed code and its index, both empty where there is none."""
    name = "bytecode/%s-%s" % (sys.implementation.cache_tag, MAGIC_NUMBER.hex())
    try:
        pack = zipimport.zipimporter(ARCHIVE).get_data(name)
    except OSError:
        return b"", {}
    end = 8 + int.from_bytes(pack[:8], "big")
    return memoryview(pack)[end:], marshal.loads(pack[8:end])


PACK, INDEX = read_bytecode()


class Importer(zipimport.zipimporter):
    """zipimport, but the code of the archive's modules comes from the bytecode of this Python."""

    def has_bytecode(self, fullname):
        """Whether that module is one of the archive's, and the archive has bytecode for this Python."""
        return self.archive == ARCHIVE and fullname in INDEX

    def get_filename(self, fullname):
        """The path of that module's source; zipimport would load its code to tell."""
        if not self.has_bytecode(fullname):
            return super().get_filename(fullname)
        base = os.path.join(self.archive, self.prefix + fullname.rpartition(".")[2])
        return os.path.join(base, "__init__.py") if self.is_package(fullname) else base + ".py"

    def get_code(self, fullname):
        """The code of that module, compiled here only if there is no bytecode for it."""
        if not self.has_bytecode(fullname):
            return super().get_code(fullname)
        start, end = INDEX[fullname]
        return marshal.loads(zlib.decompress(PACK[start:end]))


def is_standard(entry):
    """Whether that entry of sys.path is Python's own library and not something installed on this machine."""
    library = os.path.dirname(os.__file__)
    if entry.endswith(".zip"):
        return os.path.dirname(entry) == os.path.dirname(library)
    return (entry + os.sep).startswith(library + os.sep) and not {"site-packages", "dist-packages"} & set(entry.split(os.sep))


sys.path[1:] = [entry for entry in sys.path[1:] if is_standard(entry)]
sys.path_hooks[:] = [Importer if hook is zipimport.zipimporter else hook for hook in sys.path_hooks]
sys.path_importer_cache.pop(ARCHIVE, None)
sys.modules.pop("ruamel", None)  # a machine's own ruamel.yaml may have put its namespace here from a .pth file

from kubectl_gpu_transition.__main__ import main

sys.exit(main())

"""Make the wheel of souk-bin: the program itself, for `pip install`.

    python make.py BINARY FOLDER [VERSION]

Writes souk_bin-VERSION-py3-none-PLATFORM.whl into FOLDER and prints its path. What the binary needs
of the machine is read from it: the platform of the wheel says its processor and its glibc, and a
library that not every Linux has is refused. The same binary makes the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.1.0"
LICENCES = Path(__file__).parents[3]

# Processors by their number in the file.
MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}

# What the platform tags `manylinux` allow a binary to need, as far as one of Rust may.
ALLOWED = re.compile(
    r"(libc|libm|libdl|librt|libpthread|libutil|libgcc_s|libstdc\+\+)\.so\.\d+|"
    r"ld-linux-[a-z0-9_-]+\.so\.\d+|linux-vdso\.so\.1"
)

DYNAMIC, NEEDED_VERSIONS, STRINGS = 6, 0x6FFFFFFE, 3

# The first time that a zip file knows, so that the same binary makes the same bytes.
EPOCH = (1980, 1, 1, 0, 0, 0)

INIT = '''"""Where the program `souk` of this package lies."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def path() -> Path:
    """The program; where scripts of this Python or of this user are."""
    places = [sysconfig.get_path("scripts"), str(Path(sys.prefix, "bin"))]
    places.append(sysconfig.get_path("scripts", scheme=sysconfig.get_preferred_scheme("user")))
    places.append(str(Path(__file__).parents[1] / "bin"))
    for place in places:
        found = Path(place, "souk")
        if found.is_file():
            return found
    raise FileNotFoundError(f"the program souk is in none of {places}")
'''

METADATA = """Metadata-Version: 2.4
Name: souk-bin
Version: {version}
Summary: The program souk: a market for computing time, in one binary
License-Expression: Apache-2.0 OR MIT
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
Requires-Python: >=3.10
Description-Content-Type: text/markdown

# souk-bin

The program `souk` as a package: `pip install souk-bin` puts it on the path of this Python. The
package `souk` finds it there.
"""


class Unsuitable(Exception):
    """A file that cannot be put into a wheel."""


@dataclass(frozen=True)
class Section:
    """A section of the file: what it is, where, how long, and of which other it speaks."""

    kind: int
    start: int
    size: int
    link: int
    info: int


class Binary:
    """A program of 64-bit Linux, as far as it says what it needs."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        if data[:6] != b"\x7fELF\x02\x01":
            raise Unsuitable("it is no program of 64-bit Linux")
        (self.machine,) = struct.unpack_from("<H", data, 18)
        (table,) = struct.unpack_from("<Q", data, 40)
        size, count = struct.unpack_from("<HH", data, 58)
        self.sections = [self._section(table + number * size) for number in range(count)]

    def _section(self, at: int) -> Section:
        fields = struct.unpack_from("<IIQQQQIIQQ", self.data, at)
        return Section(fields[1], fields[4], fields[5], fields[6], fields[7])

    def _text(self, table: Section, at: int) -> str:
        start = table.start + at
        return self.data[start : self.data.index(b"\0", start)].decode()

    def libraries(self) -> list[str]:
        """The libraries that it needs."""
        found: list[str] = []
        for section in self.sections:
            if section.kind != DYNAMIC:
                continue
            names = self.sections[section.link]
            for at in range(section.start, section.start + section.size, 16):
                tag, value = struct.unpack_from("<qQ", self.data, at)
                if tag == 1:
                    found.append(self._text(names, value))
        return found

    def glibc(self) -> tuple[int, int]:
        """The oldest glibc on which it runs."""
        versions = [(2, 17)]
        for section in self.sections:
            if section.kind == NEEDED_VERSIONS:
                versions += self._versions(section)
        return max(versions)

    def _versions(self, section: Section) -> list[tuple[int, int]]:
        names = self.sections[section.link]
        found: list[tuple[int, int]] = []
        at = section.start
        for _ in range(section.info):
            _, count, _, first, following = struct.unpack_from("<HHIII", self.data, at)
            one = at + first
            for _ in range(count):
                _, _, _, name, next_ = struct.unpack_from("<IHHII", self.data, one)
                version = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", self._text(names, name))
                if version:
                    found.append((int(version[1]), int(version[2])))
                one += next_
            at += following
        return found

    def platform(self) -> str:
        """The tag of the platform on which it runs."""
        if self.machine not in MACHINES:
            raise Unsuitable(f"its processor, number {self.machine}, is not known here")
        others = [name for name in self.libraries() if not ALLOWED.fullmatch(name)]
        if others:
            raise Unsuitable(f"it needs {', '.join(others)}, which not every Linux has")
        if not self.libraries():
            raise Unsuitable("it needs no glibc, so its wheel is of another kind")
        major, minor = self.glibc()
        return f"manylinux_{major}_{minor}_{MACHINES[self.machine]}"


def wheel(binary: bytes, version: str) -> tuple[str, list[tuple[str, bytes, int]]]:
    """The name of the wheel, and its files with their permissions."""
    platform = Binary(binary).platform()
    info = f"souk_bin-{version}.dist-info"
    tags = (
        f"Wheel-Version: 1.0\nGenerator: souk\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n"
    )
    files = [
        ("souk_bin/__init__.py", INIT.encode(), 0o644),
        ("souk_bin/py.typed", b"", 0o644),
        (f"souk_bin-{version}.data/scripts/souk", binary, 0o755),
        (f"{info}/METADATA", METADATA.format(version=version).encode(), 0o644),
        (f"{info}/WHEEL", tags.encode(), 0o644),
    ]
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        files.append((f"{info}/licenses/{name}", (LICENCES / name).read_bytes(), 0o644))
    record = f"{info}/RECORD"
    lines = [f"{name},sha256={digest(data)},{len(data)}" for name, data, _ in files]
    files.append((record, "\n".join([*lines, f"{record},,", ""]).encode(), 0o644))
    return f"souk_bin-{version}-py3-none-{platform}.whl", files


def digest(data: bytes) -> str:
    """The SHA-256 as a wheel writes it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def main() -> int:
    """Write the wheel."""
    if len(sys.argv) not in (3, 4):
        print(__doc__, file=sys.stderr)
        return 2
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    version = sys.argv[3] if len(sys.argv) == 4 else VERSION
    try:
        name, files = wheel(source.read_bytes(), version)
    except (OSError, Unsuitable, struct.error, IndexError) as error:
        print(f"error: no wheel of {source}: {error}", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, data, mode in files:
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            # A regular file, and who made it: Unix, wherever this runs.
            entry.external_attr = (0o100000 | mode) << 16
            entry.create_system = 3
            archive.writestr(entry, data, compresslevel=9)
    print(folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())

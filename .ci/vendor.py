"""Check that what others wrote in the dashboard is what `vendor.toml` says, and that it stays small.

    python3 .ci/vendor.py             # hashes, and the sizes of all that the page loads
    python3 .ci/vendor.py --fetch     # and that the packages, fetched by npm, hold these files

Every file below `web/vendor` is named there with its SHA-256, and nothing else lies beside them.
A file that was edited names each text that was replaced, so that nobody has to trust the edit.
"""
import gzip
import hashlib
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
WEB = ROOT / "node/gateway/web"
VENDOR = WEB / "vendor"

# What a browser loads of the dashboard at most, as files and as gzip has them.
BYTES_MAX = 220_000
GZIP_BYTES_MAX = 80_000


def digest(content):
    return hashlib.sha256(content).hexdigest()


def fetched(package):
    """The files of a package, by name, as the registry has them."""
    with tempfile.TemporaryDirectory() as folder:
        name = f"{package['name']}@{package['version']}"
        command = ["npm", "pack", "--silent", "--pack-destination", folder, name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (archive,) = pathlib.Path(folder).iterdir()
        with tarfile.open(archive) as files:
            return {it.name: files.extractfile(it).read() for it in files if it.isfile()}


def faults_of_files(packages):
    """What differs between the list and the folder."""
    named = {file["path"]: file for package in packages for file in package["file"]}
    there = {str(it.relative_to(VENDOR)) for it in VENDOR.rglob("*") if it.is_file()}
    for path in sorted(there - set(named) - {"vendor.toml"}):
        yield f"vendor/{path} is not named in vendor.toml"
    for path, file in named.items():
        if path not in there:
            yield f"vendor/{path} is missing"
        elif digest((VENDOR / path).read_bytes()) != file["sha256"]:
            yield f"vendor/{path} is not what vendor.toml names: fetch it anew, or name the edit"


def faults_of_packages(packages):
    """What differs between the list and the packages it names."""
    for package in packages:
        files = fetched(package)
        for file in package["file"]:
            text = files[f"package/{file['from']}"].decode()
            for old, new in file.get("edits", []):
                if text.count(old) != 1:
                    yield f"{file['from']} of {package['name']} does not hold {old!r} once"
                text = text.replace(old, new)
            if digest(text.encode()) != file["sha256"]:
                yield f"vendor/{file['path']} is not made from {file['from']} of {package['name']}"


def faults_of_size():
    """Whether all that a browser loads is too big."""
    served = [it for it in WEB.rglob("*") if it.suffix in {".html", ".css", ".js", ".svg"}]
    plain = sum(it.stat().st_size for it in served)
    small = sum(len(gzip.compress(it.read_bytes(), 9)) for it in served)
    print(f"dashboard: {len(served)} files, {plain} bytes, {small} with gzip")
    if plain > BYTES_MAX or small > GZIP_BYTES_MAX:
        yield f"the dashboard may have {BYTES_MAX} bytes, {GZIP_BYTES_MAX} with gzip"


def main():
    packages = tomllib.loads((VENDOR / "vendor.toml").read_text())["package"]
    faults = [*faults_of_files(packages), *faults_of_size()]
    if "--fetch" in sys.argv[1:]:
        faults += faults_of_packages(packages)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

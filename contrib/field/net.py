"""A testnet of a case's own, and what its commands say."""
import json
import os
import pathlib
import signal
import subprocess
import time

# The longest that one command may take, in seconds.
PATIENCE = 400


class Failed(Exception):
    """souk did not do what it should."""


class Skipped(Exception):
    """The case cannot be played here."""


def expect(holds, why):
    if not holds:
        raise Failed(why)


def alike(found, wanted, what):
    if found != wanted:
        raise Failed(f"{what}: {found!r} and not {wanted!r}")


class Net:
    """A folder with a testnet of four providers, of which one has a real device."""

    def __init__(self, souk, folder):
        self.souk, self.folder, self.is_up = str(souk), folder, False
        self.home = folder / "net"
        self.children = []

    def up(self):
        self.is_up = True
        self.run("testnet", "up", "--no-http", "--detach").done()
        return self

    def down(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()
                child.wait()
        if self.is_up:
            self.run("testnet", "down")

    def command(self, *words, home=None):
        return [self.souk, "--dir", str(home or self.home), *map(str, words)]

    def run(self, *words, home=None, **more):
        """What a command said, once it has ended."""
        began = time.monotonic()
        ran = subprocess.run(
            self.command(*words, home=home), capture_output=True, text=True, timeout=PATIENCE,
            cwd=self.folder, stdin=subprocess.DEVNULL, **more)
        return Ran(ran.returncode, ran.stdout, ran.stderr, time.monotonic() - began)

    def start(self, *words, home=None):
        """A command under way, whose words go into a file."""
        log = self.folder / f"log-{len(self.children)}"
        with open(log, "wb") as to:
            child = subprocess.Popen(
                self.command(*words, home=home), stdout=to, stderr=to, cwd=self.folder,
                stdin=subprocess.DEVNULL)
        self.children.append(child)
        return child, log

    def json(self, *words):
        return json.loads(self.run("--json", *words).done().out)

    def accounts(self):
        """What each account has, by its name."""
        return {it["name"]: it for it in self.json("balance")["accounts"]}

    def scores(self):
        """The reputation of each account, by its name."""
        return {name: it["reputation"] for name, it in self.accounts().items()}

    def leases(self):
        """The leases that jobs of this folder have bought."""
        jobs = [self.json("job", "status", job["name"]) for job in self.json("job", "list")]
        return [lease for job in jobs for lease in job["leases"]]

    def ask_of(self, provider):
        """What a provider offers in the book."""
        asks = [ask for ask in self.json("book") if ask["provider_name"] == provider]
        expect(asks, f"{provider} has no ask in the book")
        return asks[0]

    def newest_job(self):
        return self.json("job", "list")[0]["name"]

    def pid_of(self, provider):
        """The process that runs a provider."""
        wanted = [str(self.home / provider).encode(), b"provider", b"run"]
        for entry in pathlib.Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except (OSError, ValueError):
                continue
            if all(word in words for word in wanted):
                return int(entry.name)
        raise Failed(f"no process runs {provider}")

    def kill(self, provider):
        os.kill(self.pid_of(provider), signal.SIGKILL)


class Ran:
    """A command that has ended."""

    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def done(self):
        return self.ended(0)

    def ended(self, code):
        expect(self.code == code, f"exit {self.code} and not {code}: {self.last()}")
        return self

    def last(self):
        said = (self.err or self.out).strip().splitlines()
        errors = [line for line in said if line.startswith("error")]
        return (errors or said or [""])[-1][:300]


def wait_for(log, words, child=None):
    """Waits until a command has said something."""
    ends = time.monotonic() + PATIENCE
    while words not in log.read_text(errors="replace"):
        is_over = child is not None and child.poll() is not None
        expect(not is_over and time.monotonic() < ends, f"{words!r} was not said: "
               + log.read_text(errors="replace")[-300:])
        time.sleep(0.05)


def is_root():
    return hasattr(os, "geteuid") and os.geteuid() == 0

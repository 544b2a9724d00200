#!/usr/bin/env python3
"""Texts over providers that are far away: tokens a second for each distance, beside what the
distance alone allows.

    python3 llm/bench/distance.py target/release/souk [--round-trips 0 5 30 100] [--tokens 200]

Each host is a network namespace whose packets pass through this program, which holds each of them
for half of a round trip. A validator, two providers of one thread each and a buyer are set up by
the commands that docs/running-a-market.md prints. Takes root, iproute2 and /dev/net/tun, and a
souk with language models. One line for each text; `--json FILE` keeps them all.
"""
import argparse
import collections
import contextlib
import fcntl
import json
import os
import pathlib
import select
import struct
import subprocess
import tempfile
import threading
import time

# What Linux is asked for a device of packets, and of what kind: no header before each.
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 8_960
PORT = 4001
PROMPT = "A lease is"


class Wires:
    """A network whose packets are held."""

    def __init__(self, tag):
        self.tag, self.hosts, self.half = tag, {}, 0.0
        self.is_up = True
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def host(self, name):
        number = len(self.hosts) + 2
        space, device = f"{self.tag}{name}", f"{self.tag}{number}"
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        request = struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI)
        fcntl.ioctl(descriptor, TUNSETIFF, request)
        address = f"10.88.0.{number}"
        for command in (
            f"ip netns add {space}",
            f"ip link set {device} netns {space}",
            f"ip -n {space} link set lo up",
            f"ip -n {space} addr add {address}/24 dev {device}",
            f"ip -n {space} link set {device} mtu {MTU} up",
            f"ip -n {space} route add default dev {device}",
        ):
            subprocess.run(command.split(), check=True)
        self.hosts[bytes(int(part) for part in address.split("."))] = descriptor
        return space, address

    def run(self):
        """Moves what is due, in the order in which it came."""
        held = collections.deque()
        while self.is_up:
            wait = 0.2
            if held:
                wait = max(0.0, held[0][0] - time.monotonic())
            ready, _, _ = select.select(list(self.hosts.values()), [], [], wait)
            now = time.monotonic()
            for descriptor in ready:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        packet = os.read(descriptor, 65_536)
                        if packet[0] >> 4 == 4:
                            held.append((now + self.half, packet))
            now = time.monotonic()
            while held and held[0][0] <= now:
                packet = held.popleft()[1]
                to = self.hosts.get(packet[16:20])
                if to is not None:
                    with contextlib.suppress(OSError):
                        os.write(to, packet)

    def take_down(self):
        self.is_up = False
        self.thread.join()
        for descriptor in self.hosts.values():
            os.close(descriptor)
        listed = subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
        for line in listed.splitlines():
            if line.split() and line.split()[0].startswith(self.tag):
                subprocess.run(["ip", "netns", "del", line.split()[0]], check=False)


def one_thread(toml):
    """Has a provider run jobs on one thread."""
    text = toml.read_text()
    if "[limits]" not in text:
        text += "\n[limits]\n"
    toml.write_text(text.replace("[limits]", "[limits]\ncores = 1", 1))


class Market:
    """A market over those wires."""

    def __init__(self, souk, wires, work):
        self.souk, self.wires, self.work, self.running = souk, wires, work, []
        space = {name: wires.host(name) for name in ("v", "p1", "p2", "b")}
        self.space = {name: space for name, (space, _) in space.items()}
        self.address = {name: address for name, (_, address) in space.items()}

    def command(self, host, *words):
        souk = [self.souk, "--dir", str(self.work / host)]
        return ["ip", "netns", "exec", self.space[host], *souk, *words]

    def on(self, host, *words, timeout=120):
        command = self.command(host, *words)
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        if done.returncode:
            raise RuntimeError(f"{host}: souk {' '.join(words)}: {done.stderr} {done.stdout}")
        return done.stdout

    def start(self, host, *words):
        told = (self.work / f"{host}.log").open("ab")
        self.running.append(subprocess.Popen(self.command(host, *words), stdout=told, stderr=told))

    def until(self, seconds, attempt):
        end = time.monotonic() + seconds
        while True:
            try:
                return attempt()
            except (RuntimeError, AssertionError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    def set_up(self):
        line = json.loads(self.on("v", "--json", "market", "create", "--name", "distance"))["invitation"]
        self.start("v", "validator", "run")
        for name in ("p1", "p2", "b"):
            self.until(30, lambda: self.on(name, "market", "join", line))
        for name in ("p1", "p2"):
            self.on(name, "provider", "init", "--yes", "--name", name, "--price", "0.01")
            one_thread(self.work / name / "provider.toml")
            self.start(name, "provider", "run")
        self.on("b", "account", "new")
        self.on("b", "account", "deposit", "100", "--reference", "distance")
        self.until(30, lambda: self.on("v", "operator", "confirm", "1"))

        def offered():
            book = json.loads(self.on("b", "--json", "book"))
            assert json.dumps(book).count('"provider"') >= 2, "two providers ask"

        self.until(120, offered)

    def text(self, prompt, providers, tokens, *more):
        words = ["--json", "generate", "bundled", prompt, "--max-tokens", str(tokens)]
        words += ["--budget", "20"]
        words += ["--min-providers", str(providers), "--max-providers", str(providers)]
        return json.loads(self.on("b", *words, *more, timeout=600))

    def stop(self):
        for process in self.running:
            process.terminate()
        for process in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            process.kill()


def line(made):
    gap = made["milliseconds_between_tokens"]
    return (
        f"{made['round_trip']:5.0f} ms  {made['providers']} provider(s), {made['drafts']} drafts: "
        f"{len(made['tokens'])} tokens, {made['tokens_per_second']:7.1f} a second, "
        f"gap p50 {gap['p50']:7.2f} p99 {gap['p99']:7.2f} ms, "
        f"first {made['seconds_to_first_token']:.2f} s, "
        f"drafted {made['drafted']} accepted {made['accepted']}, "
        f"{len(made['receipts'])} receipts"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("souk")
    trips = [0, 5, 30, 100]
    parser.add_argument("--round-trips", type=float, nargs="+", default=trips, metavar="MS")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--json", type=pathlib.Path)
    asked = parser.parse_args()
    wires = Wires(f"skd{os.getpid() % 1000}")
    kept = []
    with tempfile.TemporaryDirectory() as work:
        market = Market(os.path.realpath(asked.souk), wires, pathlib.Path(work))
        try:
            market.set_up()
            text = None
            for trip in asked.round_trips:
                wires.half = trip / 2_000
                for providers in (1, 2):
                    for drafts in (0, asked.drafts):
                        made = market.text(asked.prompt, providers, asked.tokens,
                                           "--draft", str(drafts))
                        text = text or made["text"]
                        assert made["text"] == text, "a text is the same however far it came"
                        facts = {"round_trip": trip, "providers": providers, "drafts": drafts}
                        kept.append(facts | made)
                        print(line(kept[-1]), flush=True)
        except BaseException:
            for log in pathlib.Path(work).glob("*.log"):
                print(log.name, log.read_text()[-2_000:])
            raise
        finally:
            market.stop()
            wires.half = 0
            wires.take_down()
    if asked.json:
        asked.json.write_text(json.dumps(kept))


if __name__ == "__main__":
    main()

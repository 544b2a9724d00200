"""What goes wrong between buyers and providers: crashes, long work, full disks, blame."""
import resource
import signal
import subprocess
import time

import numpy as np

import graphs
from net import Skipped, alike, expect, is_root, wait_for

# Rows of work that takes a second at least, and how much of it passes before something dies.
LONG, INTO = 256, 0.5
# Work whose size nobody can know says nothing of a device: how far its plans may move, in times.
PLANS_NEAR = 1.5
# A provider that is started again is in the book within so many seconds.
BACK = 20
# Of a file system that is full: less than an output of 256 rows.
SMALL = "700k"
# How large a file may become where a limit stands for a full disk: less than such an output.
FILE_BYTES = 600 * 1024


def chain(net, rows, *more):
    """The words of a job of the long chain."""
    given = net.folder / f"rows{rows}.npy"
    return ("submit", net.folder / "chain.onnx", "-i", f"x={given}", "--backend", "cpu", *more)


def whole(path, rows):
    expect(path.exists(), f"{path.name} is not there")
    alike(np.load(path).shape, (rows, 1024), f"the shape of {path.name}")


def spent(net, job):
    return net.json("job", "status", job)["spent"]


def resume_after_crash(net):
    """A buyer is killed while a provider works; one `job resume` gives the output."""
    graphs.long_chain(net.folder)
    net.up()
    child, log = net.start(*chain(net, LONG, "-o", net.folder / "out"))
    wait_for(log, "runs part", child)
    time.sleep(INTO)
    child.kill()
    child.wait()
    net.run("job", "resume", net.newest_job()).done()
    whole(net.folder / "out/y.npy", LONG)
    alike(len(net.leases()), 1, "leases")


def wait_is_kept(net):
    """With --wait a second job waits for the only device that suits, and is done after it."""
    graphs.long_chain(net.folder)
    net.up()
    child, log = net.start(*chain(net, LONG, "-o", net.folder / "first"))
    wait_for(log, "runs part", child)
    net.run(*chain(net, 8, "-o", net.folder / "second", "--wait", "120")).done()
    whole(net.folder / "second/y.npy", 8)
    alike(child.wait(), 0, "the exit of the first")


def loop(net, turns):
    return net.run("submit", net.folder / "loop.onnx", "-i", f"x={net.folder / 'x.npy'}", "-i",
                   f"m={net.folder / f'turns{turns}.npy'}", "-o", net.folder / f"out{turns}",
                   "--backend", "cpu")


def loop_outlives_its_lease(net):
    """A loop of which no plan knows the turns is done, however often it turns."""
    weight, state = graphs.open_loop(net.folder)
    net.up()
    before = net.scores()
    for turns in (10, 1000, 20000):
        loop(net, turns).done()
        found = np.load(net.folder / f"out{turns}/y.npy")
        expect(found.shape == (256, 256) and np.isfinite(found).all(), f"of {turns} turns: no y")
    for _ in range(10):
        state = np.tanh(state @ weight)
    off = np.abs(np.load(net.folder / "out10/y.npy") - state).max()
    expect(off < 1e-3, f"after 10 turns y is off by {off}")
    for name, score in net.scores().items():
        expect(score >= before[name], f"{name} is blamed: {score}")


def loop_spoils_the_speed_stated(net):
    """After a loop of unknown length the plans of other models are what they were."""
    graphs.long_chain(net.folder)
    graphs.open_loop(net.folder)
    net.up()
    net.run(*chain(net, 256, "-o", net.folder / "out")).done()
    wanted = ("plan", *chain(net, 256)[1:])
    before = net.json(*wanted)
    loop(net, 1000).done()
    time.sleep(3)
    after = net.json(*wanted)
    for name in ("compute_seconds", "micro_credits"):
        times = after["times"][name] / before["times"][name]
        expect(1 / PLANS_NEAR <= times <= PLANS_NEAR, f"{name} of the plan is {times:.2f} times")


def limit_files():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))


def disk_full_at_the_buyer(net):
    """An output is there whole or not at all, and is paid for once."""
    graphs.long_chain(net.folder)
    net.up()
    out = net.folder / "out"
    ran = net.run(*chain(net, 256, "-o", out), preexec_fn=limit_files)
    expect(ran.code != 0, "a full disk is not told")
    expect(not (out / "y.npy").exists(), "a part of an output lies under its name")
    job = net.newest_job()
    paid = spent(net, job)
    expect(paid > 0, "the work is not paid for")
    net.run("job", "resume", job).done()
    whole(out / "y.npy", 256)
    alike(spent(net, job), paid, "what is paid after all")


def restarted_provider_stays_excluded(net):
    """The only provider is killed and started again: the job is done there, or when resumed."""
    graphs.long_chain(net.folder)
    net.up()
    out = net.folder / "out"
    child, log = net.start(*chain(net, LONG, "-o", out, "--wait", "20"))
    wait_for(log, "runs part", child)
    time.sleep(INTO)
    net.kill("provider-1")
    if child.wait() != 0:
        ends = time.monotonic() + BACK
        while "provider-1" not in [ask["provider_name"] for ask in net.json("book")]:
            expect(time.monotonic() < ends, "the provider is not back in the book")
            time.sleep(0.5)
        net.run("job", "resume", net.newest_job()).done()
    whole(out / "y.npy", LONG)


def provider_with_a_full_disk(net):
    """After the first "no space left" a provider sells nothing, until there is room again."""
    if not is_root():
        raise Skipped("no root, so no small file system for a provider")
    graphs.long_chain(net.folder)
    net.up()
    home = net.home / "atlas"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(home)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        raise Skipped("no small file system can be mounted")
    try:
        net.run("provider", "init", "--yes", "--price", "0.01", home=home).done()
        provider, _ = net.start("provider", "run", "--drain", "0", home=home)
        until_in_book(net, "atlas", True)
        losses = [lost_first_try(net, turn) for turn in range(3)]
        expect(sum(losses) <= 1, f"{sum(losses)} of 3 jobs lost a try there")
        expect(not in_book(net, "atlas"), "it still sells")
        subprocess.run(["mount", "-o", "remount,size=100m", str(home)], check=True)
        until_in_book(net, "atlas", True)
        provider.terminate()
        provider.wait(30)
    finally:
        subprocess.run(["umount", "--lazy", str(home)], check=False)


def in_book(net, name):
    return name in [ask["provider_name"] for ask in net.json("book")]


def until_in_book(net, name, wanted):
    ends = time.monotonic() + 90
    while in_book(net, name) != wanted:
        expect(time.monotonic() < ends, f"{name} is not in the book")
        time.sleep(0.5)


def lost_first_try(net, turn):
    """Whether a job lost a try at the provider whose disk is full; it is done anyway."""
    ran = net.run(*chain(net, 256, "-o", net.folder / f"out{turn}", "--wait", "30")).done()
    whole(net.folder / f"out{turn}/y.npy", 256)
    lines = [line for line in ran.err.splitlines() if "continues without" in line]
    return any("atlas" in line for line in lines)


def bad_data_blames_providers(net):
    """An index past the end: the buyer is told before a lease, and no provider is blamed."""
    table = graphs.constant("table", graphs.noise(1, 10, 4))
    model = graphs.save(
        net.folder / "model.onnx", [graphs.node("Gather", ["table", "ids"], ["y"])],
        [graphs.value("ids", graphs.INT64, ["n"])], [graphs.value("y")], [table])
    ids = graphs.array(net.folder / "ids.npy", np.int64([1, 99]))
    net.up()
    before = net.scores()
    ran = net.run("submit", model, "-i", f"ids={ids}", "-o", net.folder / "out").ended(3)
    expect("ids" in ran.last(), f"the input is not named: {ran.last()}")
    alike(len(net.leases()), 0, "leases that were bought")
    for name, account in net.accounts().items():
        score = account["reputation"]
        expect(score >= before[name], f"{name} is blamed: {score}")
        alike(account["escrow"], 0, f"what is held of {name}")


CASES = [resume_after_crash, wait_is_kept, loop_outlives_its_lease, loop_spoils_the_speed_stated,
         disk_full_at_the_buyer, restarted_provider_stays_excluded, provider_with_a_full_disk,
         bad_data_blames_providers]

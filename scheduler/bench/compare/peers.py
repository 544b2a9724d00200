"""Empty tasks on Ray and Dask, two workers each, and the comparison with souk and StarPU.

peers.py ray | dask prints one JSON object; peers.py compare FOLDER ROUNDS reads what peers.sh left.
"""

import json
import os
import pathlib
import re
import sys
import time

FAN_OUT = 5_000
CHAIN = 500
ROUND_TRIPS = 200


def measure(submit, chain, trip):
    """Microseconds a task of a fan-out and of a chain, tasks a second, and of one round trip."""
    submit(200), chain(20), trip()
    start = time.perf_counter()
    submit(FAN_OUT)
    fan = time.perf_counter() - start
    start = time.perf_counter()
    chain(CHAIN)
    chained = time.perf_counter() - start
    trips = []
    for _ in range(ROUND_TRIPS):
        start = time.perf_counter()
        trip()
        trips.append(time.perf_counter() - start)
    trips.sort()
    return {
        "fan_out_us": fan / FAN_OUT * 1e6,
        "chain_us": chained / CHAIN * 1e6,
        "round_trip_us": trips[len(trips) // 2] * 1e6,
        "tasks_per_second": FAN_OUT / fan,
        "load": os.getloadavg()[0],
    }


def ray():
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

    @ray.remote
    def nothing(value=None):
        return value

    def chain(length):
        link = nothing.remote()
        for _ in range(length - 1):
            link = nothing.remote(link)
        ray.get(link)

    fan = lambda count: ray.get([nothing.remote() for _ in range(count)])
    print(json.dumps(measure(fan, chain, lambda: ray.get(nothing.remote()))))
    ray.shutdown()


def dask():
    from distributed import Client, LocalCluster

    def nothing(value=None):
        return value

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster) as client:

            def chain(length):
                link = client.submit(nothing, pure=False)
                for _ in range(length - 1):
                    link = client.submit(nothing, link, pure=False)
                link.result()

            fan = lambda count: client.gather(
                [client.submit(nothing, pure=False) for _ in range(count)]
            )
            trip = lambda: client.submit(nothing, pure=False).result()
            print(json.dumps(measure(fan, chain, trip)))


def least(values):
    return min(values) if values else float("nan")


def texts(folder, name, rounds):
    return [(folder / f"{name}-{at}.txt").read_text() for at in range(1, rounds + 1)]


def jsons(folder, name, rounds):
    paths = [folder / f"{name}-{at}.json" for at in range(1, rounds + 1)]
    return [json.loads(path.read_text()) for path in paths]


def starpu(folder, rounds):
    """Microseconds a task by policy, and the efficiency at 4 and 16 us on 2 workers."""
    figures = {}
    for policy in ("lws", "dmda"):
        found = []
        for text in texts(folder, f"starpu-{policy}", rounds):
            found += [float(number) for number in re.findall(r"^Per task: ([\d.]+)", text, re.M)]
        figures[policy] = least(found)
    best = {}
    for text in texts(folder, "starpu-size", rounds):
        rows = {line.split()[0]: line.split() for line in text.splitlines() if line[:1] in '"2'}
        for place, size in ((2, 4), (4, 16)):
            sequential, parallel = float(rows['"seq"'][place]), float(rows["2"][place])
            best[size] = max(best.get(size, 0), sequential / 2 / parallel)
    return figures, best


def compare(folder, rounds):
    folder = pathlib.Path(folder)
    ours = jsons(folder, "souk", rounds)
    theirs = {name: jsons(folder, name, rounds) for name in ("ray", "dask")}
    policies, efficiency = starpu(folder, rounds)

    def overhead(graph, placement, field="wall_us"):
        rows = [row for run in ours for row in run["overhead"]]
        return least([row[field] for row in rows if (row["graph"], row["placement"]) == (graph, placement)])

    def of_peer(name, field):
        return least([run[field] for run in theirs[name]])

    print(f"load {os.getloadavg()[0]:.1f}; microseconds a task, the least of {rounds} rounds")
    print(f"{'':34} {'planned':>9} {'dynamic':>9} {'lws':>9} {'dmda':>9} {'Ray':>9} {'Dask':>9}")
    peers = {"fan-out": "fan_out_us", "chain": "chain_us"}
    for graph in ("fan-out", "chain", "three dependencies each", "independent"):
        planned, dynamic = (overhead(graph, placement) for placement in ("planned", "dynamic"))
        row = f"{graph:34} {planned:9.3f} {dynamic:9.3f}"
        if graph in ("fan-out", "independent"):
            row += f" {policies['lws']:9.2f} {policies['dmda']:9.2f}"
        else:
            row += f" {'':9} {'':9}"
        if graph in peers:
            row += "".join(f" {of_peer(name, peers[graph]):9.0f}" for name in ("ray", "dask"))
        print(row)
    print(f"StarPU's dmda over our dynamic placement: {policies['dmda'] / overhead('independent', 'dynamic'):.1f}")
    grown = max(row["grown_bytes"] for run in ours for row in run["overhead"])
    first = max(row["first_bytes"] for run in ours for row in run["overhead"])
    print(
        f"resident memory was at most {first / 2**20:.1f} MiB higher while up to a million tasks ran"
        f" for the first time, {grown / 2**20:.1f} MiB after it"
    )
    for size in (4, 16):
        for placement in ("planned", "dynamic"):
            rows = [row for run in ours for row in run["efficiency"]]
            fits = [row for row in rows if (row["task_us"], row["placement"]) == (size, placement)]
            wall = max(row["wall_efficiency"] for row in fits)
            processor = max(row["efficiency"] for row in fits)
            print(
                f"{size} us tasks, {placement}: {wall:.1%} of the wall time is work"
                f" ({processor:.1%} of the processor time); StarPU {efficiency[size]:.1%}"
            )
    across = [run["processes"] for run in ours if run.get("processes")]
    if across:
        rate = max(run["tasks_per_second"] for run in across)
        trip = least([run["round_trip_us"] for run in across])
        print(f"across two processes: {rate:.0f} tasks/s, round trip {trip:.0f} us")
        for name in theirs:
            print(
                f"  {name}: {max(run['tasks_per_second'] for run in theirs[name]):.0f} tasks/s,"
                f" {of_peer(name, 'round_trip_us'):.0f} us"
            )


if __name__ == "__main__":
    {"ray": ray, "dask": dask, "compare": compare}[sys.argv[1]](
        *sys.argv[2:3], *(int(text) for text in sys.argv[3:4])
    )

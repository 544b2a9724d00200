#!/usr/bin/env bash
# souk and etcd in turn, in one run: three members each on the loopback, their logs on the disk of
# DIR, 256 bytes a command, fdatasync on a majority, closed-loop clients.
#
#     etcd.sh SOUK DIR [SECONDS] [ROUNDS]
#
# SOUK is the binary (target/release/souk). Each round measures souk, then etcd, for 1, 64 and 256
# clients, SECONDS each; printed are the medians of all rounds and their ratio, one line of JSON a
# number of clients, and each round on standard error. What it needs is in Debian 12:
#     etcd-server golang-go golang-etcd-server-dev
# and is installed where apt-get and root are.
set -euo pipefail

souk=$(realpath "${1:?the souk binary}")
mkdir -p "${2:?folder}"
folder=$(realpath "$2")
seconds=${3:-5}
rounds=${4:-3}
here=$(cd "$(dirname "$0")" && pwd)
base=23790
packages=(etcd-server golang-go golang-etcd-server-dev)

for package in "${packages[@]}"; do
  dpkg -s "$package" >/dev/null 2>&1 && continue
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || {
    echo "needs the Debian packages ${packages[*]}: install them" >&2
    exit 1
  }
  apt-get -qq update >&2
  apt-get -qq install -y --no-install-recommends "${packages[@]}" >&2
  break
done

tool="$folder/etcd_clients"
GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE="$folder/go-cache" \
  go build -o "$tool" "$here/etcd_clients.go"

pids=()
stop() {
  [ "${#pids[@]}" = 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  pids=()
}
trap stop EXIT

# etcd CLIENTS: three members with an empty log each, measured and stopped.
etcd_round() {
  local members="" id client peer
  for id in 1 2 3; do
    members+="m$id=http://127.0.0.1:$((base + id * 10 + 1)),"
  done
  rm -rf "$folder"/etcd-?
  for id in 1 2 3; do
    client="http://127.0.0.1:$((base + id * 10))"
    peer="http://127.0.0.1:$((base + id * 10 + 1))"
    etcd --name "m$id" --data-dir "$folder/etcd-$id" --log-level error \
      --listen-client-urls "$client" --advertise-client-urls "$client" \
      --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
      --initial-cluster "${members%,}" --initial-cluster-state new \
      --quota-backend-bytes 8589934592 >"$folder/etcd-$id.log" 2>&1 &
    pids+=($!)
  done
  "$tool" "127.0.0.1:$((base + 10)),127.0.0.1:$((base + 20)),127.0.0.1:$((base + 30))" \
    "$1" "$seconds"
  stop
}

souk_round() {
  "$souk" bench consensus --nodes 3 --clients "$1" --size 256 --seconds "$seconds" \
    --disk "$folder" --json "${@:2}"
}

results="$folder/results.jsonl"
: >"$results"
note() {
  local line
  line=$(cat)
  echo "{\"what\":\"$1\",\"clients\":$2,\"measured\":$line}" | tee -a "$results" >&2
}
for _ in $(seq "$rounds"); do
  for clients in 1 64 256; do
    souk_round "$clients" | note souk "$clients"
    etcd_round "$clients" | note etcd "$clients"
  done
  souk_round 256 --signed each | note each 256
  souk_round 256 --signed batch64 | note batch64 256
done

python3 - "$results" <<'PYTHON'
import json, statistics, sys

rows = [json.loads(line) for line in open(sys.argv[1])]


def median(what, clients, field):
    return statistics.median(
        row["measured"][field]
        for row in rows
        if (row["what"], row["clients"]) == (what, clients)
    )


for what, clients in [("souk", 1), ("souk", 64), ("souk", 256), ("each", 256),
                      ("batch64", 256)]:
    line = {"what": what, "clients": clients}
    for field in ("operations_per_second", "p50_ms", "p99_ms"):
        ours, theirs = median(what, clients, field), median("etcd", clients, field)
        line[field] = {"souk": round(ours, 3), "etcd": round(theirs, 3), "ratio": round(ours / theirs, 3)}
    print(json.dumps(line))
PYTHON

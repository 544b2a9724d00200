#!/usr/bin/env bash
# Three etcd members on the loopback, each with its log on the disk of DIR, under closed-loop clients:
# etcd.sh DIR CLIENTS SECONDS. Everything it needs is in Debian 12:
#   apt-get install etcd-server golang-go golang-etcd-server-dev
set -euo pipefail

folder=${1:?folder}
clients=${2:?clients}
seconds=${3:?seconds}
here=$(cd "$(dirname "$0")" && pwd)
base=23790
members=""
mkdir -p "$folder"
for id in 1 2 3; do
  members+="m$id=http://127.0.0.1:$((base + id * 10 + 1)),"
done

pids=()
stop() {
  kill "${pids[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
}
trap stop EXIT

for id in 1 2 3; do
  mkdir -p "$folder/etcd-$id"
  client="http://127.0.0.1:$((base + id * 10))"
  peer="http://127.0.0.1:$((base + id * 10 + 1))"
  etcd --name "m$id" --data-dir "$folder/etcd-$id" --log-level error \
    --listen-client-urls "$client" --advertise-client-urls "$client" \
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
    --initial-cluster "${members%,}" --initial-cluster-state new \
    --quota-backend-bytes 8589934592 >"$folder/etcd-$id.log" 2>&1 &
  pids+=($!)
done

tool="$folder/etcd_clients"
if [ ! -x "$tool" ]; then
  GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE="$folder/go-cache" \
    go build -o "$tool" "$here/etcd_clients.go"
fi
endpoints="127.0.0.1:$((base + 10)),127.0.0.1:$((base + 20)),127.0.0.1:$((base + 30))"
"$tool" "$endpoints" "$clients" "$seconds"

#!/usr/bin/env bash
# Souk's executor beside StarPU, Ray and Dask, in turn, in one run: peers.sh FOLDER SOUK [ROUNDS].
# FOLDER keeps the Python packages and what each run printed; SOUK is the binary to measure. StarPU
# comes from Debian, Ray and Dask from PyPI:
#   apt-get install libstarpu-dev starpu-tools starpu-examples python3-venv
# The least of the rounds counts for everyone: what else the machine does only ever adds.
set -euo pipefail

folder=${1:?folder}
souk=${2:?the souk binary}
rounds=${3:-3}
here=$(cd "$(dirname "$0")" && pwd)
starpu=/usr/lib/x86_64-linux-gnu/starpu/examples
mkdir -p "$folder"

if [ ! -x "$starpu/tasks_overhead" ]; then
  echo "StarPU's examples are not there: apt-get install libstarpu-dev starpu-tools starpu-examples" >&2
  exit 2
fi
python="$folder/python/bin/python"
if [ ! -x "$python" ]; then
  python3 -m venv "$folder/python"
  "$folder/python/bin/pip" install --quiet ray==2.60.0 "dask[distributed]==2026.8.0"
fi

export STARPU_NCPU=2 STARPU_SILENT=1 STARPU_HOME="$folder/starpu" HOME="$folder"
export RAY_DEDUP_LOGS=0 RAY_USAGE_STATS_ENABLED=0
mkdir -p "$STARPU_HOME"
for round in $(seq "$rounds"); do
  echo "round $round of $rounds, load $(cut -d' ' -f1-3 /proc/loadavg)" >&2
  "$souk" --output json bench tasks >"$folder/souk-$round.json"
  for policy in lws dmda; do
    "$starpu/tasks_overhead" -i 100000 -b 0 -p $policy >"$folder/starpu-$policy-$round.txt" 2>&1
  done
  STARPU_SCHED=dmda "$starpu/tasks_size_overhead" -i 20000 -b 0 -c 2 -t 4 -T 16 -f 4 \
    >"$folder/starpu-size-$round.txt" 2>&1
  "$python" "$here/peers.py" ray >"$folder/ray-$round.json" 2>"$folder/ray-$round.log"
  "$python" "$here/peers.py" dask >"$folder/dask-$round.json" 2>"$folder/dask-$round.log"
done
"$python" "$here/peers.py" compare "$folder" "$rounds"

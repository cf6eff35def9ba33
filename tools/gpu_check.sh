#!/usr/bin/env bash
# Everything that only a GPU can show, in at most ten minutes, left behind as one archive of at most 16 MiB.
#
#   tools/gpu_check.sh FOLDER          FOLDER/gpu_check.tar.gz: environment, records, charts, logs
#
# What tells most comes first: two minutes of everything once (tools/gpu_smoke.py), the talk's configs, the best one, and
# the tests in the time that is left. A step that fails or runs out of time does not stop the others; the end lists what
# failed, and the exit code is then 1. The archive is there after each step, whatever ends the script. Without a usable
# GPU nothing is run: exit code 2.
#
#   PYTHON=...   an interpreter that has what tcbench needs (default: uv with the CUDA extra, else python3)
#   EXTRA=...    cuda13, cuda12 or volta, for uv (default: what suits the GPU and its driver)
#   WHEELS=...   a folder of wheels to install into PYTHON first, without a network and without looking for others
#   DEVICE=...   default cuda:0
#   BUDGET_S=... default 570: seconds for all steps together, the installation before them not counted
#   STEPS=...    only these, for example "smoke tests"
set -uo pipefail

if [[ $# -ne 1 || $1 == -* ]]; then
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
  exit 2
fi
mkdir -p "$1" || exit 2
folder=$(cd "$1" && pwd)
# What is named from here must be found from there.
[[ ${PYTHON:-} != /* && ${PYTHON:-} == */* ]] && PYTHON=$PWD/$PYTHON
if [[ -n ${WHEELS:-} ]]; then WHEELS=$(cd "$WHEELS" && pwd) || exit 2; fi
cd "$(dirname "$0")/.." || exit 2
root=$PWD
device=${DEVICE:-cuda:0}
budget_s=${BUDGET_S:-570}
max_bytes=$((16 * 1024 * 1024))

# -- an interpreter ----------------------------------------------------------------------------------------------------

# Which packages suit the GPU and its driver, tcbench knows: it asks the driver's library, with no CUDA package there.
suitable_extra() {
  uv run --quiet python -c '
from tcbench.accelerators.cuda import driver, packages
print(packages.extra_for(driver.gpus()).name)'
}

if [[ -n ${PYTHON:-} ]]; then
  python=("$PYTHON")
elif command -v uv >/dev/null; then
  EXTRA=${EXTRA:-$(suitable_extra)} || exit 2
  python=(uv run --quiet --extra "$EXTRA" python)
else
  python=(python3)
fi
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1

if [[ -n ${WHEELS:-} ]]; then
  "${python[@]}" -m pip install --quiet --disable-pip-version-check --no-index --no-deps "$WHEELS"/*.whl || exit 2
fi

tcbench() { "${python[@]}" -m tcbench "$@"; }

if ! refusal=$("${python[@]}" -c 'import tcbench' 2>&1); then
  echo "gpu_check: nothing was run, because this Python cannot: ${python[*]}" >&2
  echo "$refusal" >&2
  exit 2
fi
if ! refusal=$(tcbench run naruse2018 --device "$device" --dry-run 2>&1 >/dev/null); then
  echo "gpu_check: nothing was run, because $device cannot be used:" >&2
  echo "$refusal" >&2
  exit 2
fi

SECONDS=0 # what uv has installed till here may have taken minutes

# -- steps -------------------------------------------------------------------------------------------------------------

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
left_behind=$work/gpu_check
mkdir -p "$left_behind/logs" "$left_behind/charts"
failed=()
reserve_s=60 # for the charts
archive=$folder/gpu_check.tar.gz

pack() {
  printf '%s\n' "${failed[@]:-nothing failed}" >"$left_behind/failed.txt"
  # In one rename: what ends the script here too leaves a whole archive. Logs can be long, and this comes often: -1.
  tar -cf "$archive.part" -I 'gzip -1' -C "$work" gpu_check && mv "$archive.part" "$archive"
}

# step NAME SECONDS COMMAND...: run a command for at most so long, keep what it says, and note how it ended.
step() {
  local name=$1 limit_s=$2 left_s=$((budget_s - reserve_s - SECONDS)) code
  shift 2
  [[ -n ${STEPS:-} && " $STEPS " != *" $name "* ]] && return
  ((left_s < limit_s)) && limit_s=$left_s
  if ((limit_s < 5)); then
    echo "== $name: no time left"
    failed+=("$name (no time left)")
    return
  fi
  echo "== $name (at $SECONDS s, at most $limit_s s)"
  # An interrupt first: tcbench keeps what is done.
  timeout --signal=INT --kill-after=10 "$limit_s" "$@" 2>&1 |
    timeout "$((limit_s + 20))" tee "$left_behind/logs/$name.log"
  code=${PIPESTATUS[0]}
  if ((code == 124 || code == 130 || code == 137)); then
    failed+=("$name (ran out of its $limit_s s)")
  elif ((code != 0)); then
    failed+=("$name (exit code $code)")
  fi
  pack
}

say_environment() {
  date -u +%FT%TZ
  uname -a
  git -C "$root" rev-parse HEAD 2>/dev/null
  nvidia-smi 2>/dev/null
  "${python[@]}" -m pip list 2>/dev/null || uv pip list 2>/dev/null
}
say_environment >"$left_behind/logs/environment.log" 2>&1

step doctor 30 "${python[@]}" -m tcbench doctor
step data 60 "${python[@]}" -m tcbench data make --quiet
step smoke 140 "${python[@]}" tools/gpu_smoke.py --device "$device" --budget 120 --out "$left_behind/smoke"

if "${python[@]}" -c 'import nvidia.dali' 2>/dev/null; then
  best=fp16+dali+batched+nhwc+fused+static_graph
else
  echo "note: DALI is not installed; the best config is taken without it"
  best=fp16+batched+nhwc+fused+static_graph
fi
out=$left_behind/results
# Tuning takes a quarter to half a minute per batch size and dtype the first time: most of this.
step ladder 240 "${python[@]}" -m tcbench run naruse2018 --device "$device" --config "fp32,fp16,$best" --bs 64,256 \
  --trials 1 --max-time 5 --timeout 150 --out "$out"

# The longest config of the scenario that this GPU is new enough for has most of what goes beyond the talk; without DALI
# it is taken without.
beyond=$("${python[@]}" -c '
import sys
from tcbench.accelerators.device import find
from tcbench.run.plan import why_not
from tcbench.run.scenario import load
gpu = find(sys.argv[1], {"cuda": None})
able = [config for config in load("beyond").configs if why_not(config, gpu, remote=True) is None]
print(max(able, key=lambda config: len(config.rungs)).name)
' "$device" 2>/dev/null)
if [[ $best != *dali* ]]; then beyond=${beyond//+dali/}; fi
if [[ -n $beyond ]]; then
  step beyond 110 "${python[@]}" -m tcbench run beyond --device "$device" --config "$beyond" --bs 64,256 \
    --trials 1 --max-time 5 --timeout 150 --out "$out"
else
  failed+=("beyond (the scenario cannot be read)")
fi

# Only files with such tests are collected, and none of the suite's other options: what they need may not be here, no
# warning of a library is an error, and nothing is written to the working tree. PyTorch, which compiles for minutes, comes
# last.
mapfile -t tests < <(grep -rlE --include='*.py' 'mark\.gpu' tests | sort)
step tests 300 "${python[@]}" -m pytest -o addopts= --import-mode=importlib -W default -p no:cacheprovider -m gpu -q -ra \
  --durations=10 "${tests[@]}"

reserve_s=0
step chart 40 "${python[@]}" -m tcbench plot "$out" -o "$left_behind/charts/throughput.png"
step summary 40 "${python[@]}" -m tcbench plot "$out" --slide 33 -o "$left_behind/charts/summary.png"

# -- one archive -------------------------------------------------------------------------------------------------------

pack
if (($(stat -c %s "$archive") > max_bytes)); then
  for log in "$left_behind"/logs/*.log; do
    tail -c 100000 "$log" >"$log.tail" && mv "$log.tail" "$log"
  done
  pack
fi
if (($(stat -c %s "$archive") > max_bytes)); then
  failed+=("archive (more than 16 MiB even with short logs)")
fi

echo
echo "gpu_check: $SECONDS s; left $archive ($(stat -c %s "$archive") bytes)"
if ((${#failed[@]})); then
  printf 'failed: %s\n' "${failed[@]}"
  exit 1
fi
echo "nothing failed"

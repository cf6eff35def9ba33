#!/usr/bin/env bash
# Everything that only a GPU can show, left behind as one archive of at most 16 MiB. A call takes at most ten minutes;
# the same call again goes on where it ended, and three have time for all.
#
#   tools/gpu_check.sh FOLDER          FOLDER/gpu_check.tar.gz: environment, records, charts, logs
#
# In this order: doctor, one of everything (tools/gpu_smoke.py), the GPU tests, those of PyTorch, and at batch size 64 the
# talk's best config, its ladder, and what goes furthest beyond it. Without DALI the same configs run with synthetic
# input, and with OpenCV's. A step that fails or takes too long does not stop the others; FOLDER/gpu_check/steps.txt has
# how each ended, and a step that stands there is not run again. The exit code is 1 where a step failed or is still to
# come, and 2 where nothing could be run. The archive is there after each step, whatever ends the script.
#
#   PYTHON=...   an interpreter that has what tcbench needs (default: uv with the CUDA extra; python3 where uv is not, or
#                cannot install)
#   WHEELS=...   a folder of wheels that PYTHON (then: python3) lacks: installed into FOLDER/site, without a network
#   EXTRA=...    cuda13, cuda12 or volta, for uv (default: what suits the GPU and its driver)
#   DEVICE=...   default cuda:0
#   BUDGET_S=... default 570: seconds for all of a call, from its beginning
#   STEPS=...    only these, for example "smoke tests ladder"
SECONDS=0
set -uo pipefail

if [[ $# -ne 1 || $1 == -* ]]; then
  sed -n '2,/^SECONDS/{/^SECONDS/d;s/^# \{0,1\}//;p}' "$0"
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
from tcbench.engine.accelerators.cuda import driver, packages
print(packages.extra_for(driver.gpus()).name)'
}

python=("${PYTHON:-python3}")
if [[ -z ${PYTHON:-}${WHEELS:-} ]] && command -v uv >/dev/null; then
  if EXTRA=${EXTRA:-$(suitable_extra)} && uv run --quiet --extra "$EXTRA" python -c ''; then
    python=(uv run --quiet --extra "$EXTRA" python)
  else
    echo "note: uv has no environment here and cannot make one; python3 is taken"
  fi
fi

# Beside the interpreter, whose own folder may be read-only.
site=$folder/site
install_wheels() {
  ls "$WHEELS" >"$folder/wheels.txt"
  cmp -s "$folder/wheels.txt" "$site/wheels.txt" && return # by an earlier call
  rm -rf "$site"
  "${python[@]}" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --target "$site" \
    "$WHEELS"/*.whl && cp "$folder/wheels.txt" "$site/wheels.txt"
}
if [[ -n ${WHEELS:-} ]]; then install_wheels || exit 2; fi
export PYTHONPATH=$root:$site${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1
unset PYTHONDONTWRITEBYTECODE # every trial would compile everything anew

tcbench() { "${python[@]}" -m tcbench "$@"; }

if ! refusal=$("${python[@]}" -c 'import tcbench.commands.run, tcbench.run.plan, tcbench.engine.backends.chainer.compat' 2>&1); then
  echo "gpu_check: nothing was run, because this Python cannot: ${python[*]}" >&2
  echo "${refusal##*$'\n'}" >&2
  exit 2
fi
if ! refusal=$(tcbench run naruse2018 --device "$device" --dry-run 2>&1 >/dev/null); then
  echo "gpu_check: nothing was run, because $device cannot be used:" >&2
  echo "$refusal" >&2
  exit 2
fi

# -- steps -------------------------------------------------------------------------------------------------------------

left_behind=$folder/gpu_check
results=$left_behind/results
ended=$left_behind/steps.txt
mkdir -p "$left_behind/logs" "$left_behind/charts"
touch "$ended"
to_come=()
reserve_s=60 # for the charts
archive=$folder/gpu_check.tar.gz

pack() {
  # In one rename: what ends the script here too leaves a whole archive. Logs can be long, and this comes often: -1.
  tar -cf "$archive.part" -I 'gzip -1' -C "$folder" gpu_check && mv "$archive.part" "$archive"
}

# step NAME SECONDS COMMAND...: run a command for at most so long, keep what it says, and note how it ended. One that
# this call's budget cuts short is left to the next, and one that could not even begin well is not begun. NAME may end
# in -VARIANT, of which STEPS says nothing. `keeps`: it keeps what is done, and goes on whatever cuts it short.
step() {
  local name=$1 limit_s=$2 left_s=$((budget_s - reserve_s - SECONDS)) began=$SECONDS cut=${keeps:-} code words=ok
  shift 2
  [[ -n ${STEPS:-} && " $STEPS " != *" ${name%%-*} "* ]] && return
  if grep -q "^$name: " "$ended"; then
    echo "== $name: has run"
    return
  fi
  if ((left_s < limit_s / 2)); then
    echo "== $name: no time left"
    to_come+=("$name")
    return
  fi
  if ((left_s < limit_s)); then limit_s=$left_s cut=yes; fi
  echo "== $name (at $SECONDS s, at most $limit_s s)"
  # An interrupt first: tcbench keeps what is done, and pytest says what failed.
  timeout --signal=INT --kill-after=10 "$limit_s" "$@" 2>&1 |
    timeout "$((limit_s + 20))" tee "$left_behind/logs/$name.log"
  code=${PIPESTATUS[0]}
  if ((code == 124 || code == 130 || code == 137)); then
    words="ran out of its $limit_s s"
  elif ((code != 0)); then
    words="exit code $code"
  fi
  if [[ $cut && $words == "ran out"* ]]; then
    to_come+=("$name")
  else
    echo "$name: $words ($((SECONDS - began)) s)" >>"$ended"
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

# Only files with such tests are collected, and none of the suite's other options: what they need may not be here, no
# warning of a library is an error, and nothing is written to the working tree. Where a GPU fails at everything, what it
# says of thirty tests is enough, and is told within the time.
at_once=() # six at once did 1,945 tests in 51 s on an H200 with 16 cores
compute_mode=$(nvidia-smi --query-gpu=compute_mode --format=csv,noheader 2>/dev/null | sort -u)
if [[ $compute_mode == Default && $(nproc) -ge 12 ]] && "${python[@]}" -c 'import xdist' 2>/dev/null; then at_once=(-n 6 --dist worksteal); fi
gpu_tests() {
  local name=$1 limit_s=$2
  shift 2
  step "$name" "$limit_s" "${python[@]}" -m pytest -o addopts= --import-mode=importlib -W default -p no:cacheprovider \
    "${at_once[@]}" -m gpu -q -ra --tb=short --maxfail=30 --durations=10 "$@"
}
mapfile -t tests < <(grep -rlE --include='*.py' 'mark\.gpu' tests | grep -v '/torch/' | sort)
gpu_tests tests 240 "${tests[@]}"
if "${python[@]}" -c 'import torch' 2>/dev/null; then
  gpu_tests torch 160 tests/engine/backends/torch # which compiles for minutes
else
  echo "note: PyTorch is not installed; its tests are skipped"
fi

# The configs of a scenario that this GPU is new enough for, DALI or not: all, or the longest, which has most of what goes
# beyond the talk.
configs_of() {
  "${python[@]}" -c '
import sys
from tcbench.engine.accelerators.device import find
from tcbench.run.plan import why_not
from tcbench.run.scenario import load
scenario, which, device = sys.argv[1:]
gpu = find(device, {"cuda": None})
able = [config for config in load(scenario).configs if why_not(config, gpu, remote=True) is None]
chosen = [max(able, key=lambda config: len(config.rungs))] if which == "longest" else able
print(",".join(config.name for config in chosen))
' "$1" "$2" "$device"
}

# measure NAME SECONDS SCENARIO CONFIGS [OPTION...]: at batch size 64; what an earlier call measured of it stays.
measure() {
  local name=$1 limit_s=$2 scenario=$3 configs=$4 keeps=yes
  shift 4
  step "$name" "$limit_s" "${python[@]}" -m tcbench run "$scenario" --device "$device" --config "$configs" --bs 64 \
    --trials 1 --max-time 5 --timeout 150 --out "$results" --label "$name" --resume "$@"
}

# climb NAME SECONDS SCENARIO CONFIGS: measure them; without DALI, what can come in its place.
climb() {
  if [[ $dali ]]; then
    measure "$@"
  else
    measure "$1-synthetic" "$2" "$3" "${4//+dali/}" --data synthetic
    measure "$1-opencv" "$2" "$3" "${4//dali/opencv}"
  fi
}

dali=
best=fp16+dali+batched+nhwc+fused+static_graph
if ladder=$(configs_of naruse2018 all) && beyond=$(configs_of beyond longest); then
  if "${python[@]}" -c 'import nvidia.dali' 2>/dev/null; then
    dali=yes
  else
    echo "note: DALI is not installed; skipped are $(tr , '\n' <<<"$ladder,$beyond" | grep dali | paste -sd ' ')"
    echo "note: the same configs run with synthetic input (-synthetic) and with OpenCV's (-opencv)"
  fi
  # Tuning takes up to a minute per dtype and layout the first time: most of this.
  climb best 110 naruse2018 "$best"
  climb ladder 210 naruse2018 "$ladder"
  climb beyond 100 beyond "$beyond"
else
  echo "configs: cannot be read (0 s)" >>"$ended"
fi

reserve_s=0
has_records() { compgen -G "$results/*/*_$1*.jsonl" >/dev/null; }
sed -i '/^chart: /d;/^summary: /d' "$ended" # which have more to show after each call
if has_records ""; then
  step chart 40 "${python[@]}" -m tcbench plot "$results" -o "$left_behind/charts/throughput.png"
fi
if has_records ladder; then # fp32 and fp16, which slide 33 sets beside the best
  step summary 40 "${python[@]}" -m tcbench plot "$results" --slide 33 -o "$left_behind/charts/summary.png"
fi

# -- one archive -------------------------------------------------------------------------------------------------------

pack
if (($(stat -c %s "$archive") > max_bytes)); then
  for log in "$left_behind"/logs/*.log; do
    tail -c 100000 "$log" >"$log.tail" && mv "$log.tail" "$log"
  done
  pack
fi
if (($(stat -c %s "$archive") > max_bytes)); then
  echo "archive: more than 16 MiB even with short logs (0 s)" >>"$ended"
fi

echo
echo "gpu_check: $SECONDS s; left $archive ($(stat -c %s "$archive") bytes)"
failed=$(grep -v ': ok (' "$ended" | sed 's/^/failed: /')
if ((${#to_come[@]})); then printf 'to come: %s: the same call again goes on\n' "${to_come[*]}"; fi
if [[ -n $failed || ${#to_come[@]} -gt 0 ]]; then
  echo "${failed:-nothing failed so far}"
  exit 1
fi
echo "nothing failed"

# Read by .ci/run and .ci/all: the tools of a bare Debian machine, steps and their minutes, environments.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export UV_NO_PROGRESS=1
# Hundreds of tests start Python anew: on machines that forbid bytecode each start would compile all that it imports.
unset PYTHONDONTWRITEBYTECODE

out=$(mktemp -d)
declare -A _beside=() # process groups, by name
trap 'for group in "${_beside[@]}"; do kill -- "-$group" 2>/dev/null || true; done; rm -rf "$out"' EXIT

# A step ends where the next begins; `minutes` prints them all.
_names=() _began=()
step() {
  printf '\n== %s (%s)\n' "$1" "$(date -u +%T)"
  _names+=("$1") _began+=("$SECONDS")
}
minutes() {
  local i until
  printf '\n== minutes of each step\n'
  for i in "${!_names[@]}"; do
    until=${_began[i + 1]:-$SECONDS}
    printf '%6.1f  %s\n' "$(((until - _began[i]) * 100 / 60))e-2" "${_names[i]}"
  done
  printf '%6.1f  all\n' "$((SECONDS * 100 / 60))e-2"
}

# NAME COMMAND...: begins it beside what follows; `finished NAME` waits for it, prints what it said, and fails where it did.
beside() {
  local name=$1
  shift
  set -m # a process group of its own, which ends with this script
  "$@" >"$out/$name.said" 2>&1 </dev/null &
  set +m
  _beside[$name]=$!
}
finished() {
  local code=0
  wait "${_beside[$1]}" || code=$?
  grep -v '^WARNING' "$out/$1.said" || true
  return "$code"
}

# uv in an environment of its own: Debian's Python refuses `pip install` outside of one.
install_uv() {
  command -v uv >/dev/null && return
  python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -qq && apt-get install -qq -y python3-venv >/dev/null; }
  python3 -m venv "$HOME/.local/share/tcbench-uv"
  "$HOME/.local/share/tcbench-uv/bin/pip" install --quiet --disable-pip-version-check uv
  export PATH="$HOME/.local/share/tcbench-uv/bin:$PATH"
}

# PROGRAM PACKAGE pairs: installs the packages whose programs are not here.
install_programs() {
  local missing=()
  while (($#)); do
    command -v "$1" >/dev/null || missing+=("$2")
    shift 2
  done
  ((${#missing[@]})) || return 0
  apt-get update -qq
  apt-get install -qq -y "${missing[@]}" >/dev/null
}

# Debian's non-free component has Nsight Systems, and the driver's library, which cuDNN asks for even to plan for another
# GPU.
install_non_free() {
  local missing=()
  ldconfig -p | grep -q 'libcuda\.so\.1' || missing+=(libcuda1)
  command -v nsys >/dev/null || missing+=(nsight-systems)
  ((${#missing[@]})) || return 0
  local entries=/etc/apt/sources.list.d/debian.sources
  if [[ -f $entries ]]; then
    sed 's/^Components:.*/Components: main contrib non-free/' "$entries" >/etc/apt/sources.list.d/non-free.sources
  else
    sed -n 's/^\(deb .*\) main.*/\1 contrib non-free/p' /etc/apt/sources.list >/etc/apt/sources.list.d/non-free.list
  fi
  apt-get update -qq
  apt-get install -qq -y "${missing[@]}" >/dev/null
}

# pgrep finds workers, a C++20 compiler runs kernels without a GPU, Chromium opens reports, and slurmd and munged are a
# cluster of this one node.
install_tools() {
  install_programs git git python3 python3 pgrep procps g++ g++ chromium chromium chromedriver chromium-driver \
    slurmd slurm-wlm munged munge
  install_uv
  install_non_free
}

# What may be skipped where the group `ci` is installed: what has an environment of its own, and a GPU.
may_skip=(--may-skip 'torch|cudnn|cupy|pynvml|CUDA extras|cuDNN wheel|root may write|LFS|py-spy may not attach')

# NAME EXTRA [PACKAGE==VERSION...]: makes the environment .venv-NAME and runs what follows in it. On a user's machine there
# is no CUDA toolkit: empty files of its libraries' names hide the one that may be here.
environment() {
  local name=$1 extra=$2
  shift 2
  export UV_PROJECT_ENVIRONMENT=.venv-$name
  UV_NO_SYNC=false uv sync --quiet --extra "$extra"
  if (($#)); then uv pip install --quiet --python "$UV_PROJECT_ENVIRONMENT" "$@"; fi
  mkdir -p "$out/no_toolkit"
  touch "$out"/no_toolkit/lib{cudart,nvrtc,cublas,cublasLt,cupti}.so.{12,13}
  export LD_LIBRARY_PATH=$out/no_toolkit
}

# Functions for .ci/run and .ci/all: install tools on a bare Debian machine, time steps, make environments.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export UV_NO_PROGRESS=1
# Hundreds of tests start Python: without bytecode, each start would compile all imported modules again.
unset PYTHONDONTWRITEBYTECODE

out=$(mktemp -d)
declare -A _background=() # process groups, by name
trap 'for group in "${_background[@]}"; do kill -- "-$group" 2>/dev/null || true; done; rm -rf "$out"' EXIT

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

# NAME COMMAND...: starts the command in the background; `wait_for NAME` waits for it, prints its output, and fails if
# it failed.
in_background() {
  local name=$1
  shift
  set -m # give it a process group, which the trap above ends
  "$@" >"$out/$name.said" 2>&1 </dev/null &
  set +m
  _background[$name]=$!
}
wait_for() {
  local code=0
  wait "${_background[$1]}" || code=$?
  grep -v '^WARNING' "$out/$1.said" || true
  return "$code"
}

# Installs uv in a virtual environment, since Debian's Python refuses `pip install` outside of one.
install_uv() {
  command -v uv >/dev/null && return
  python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -qq && apt-get install -qq -y python3-venv >/dev/null; }
  python3 -m venv "$HOME/.local/share/tcbench-uv"
  "$HOME/.local/share/tcbench-uv/bin/pip" install --quiet --disable-pip-version-check uv
  export PATH="$HOME/.local/share/tcbench-uv/bin:$PATH"
}

# PROGRAM PACKAGE pairs: installs the packages whose programs are missing.
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

# Installs Nsight Systems and the driver's library from Debian's non-free component. cuDNN needs the driver's library
# even to make plans for another GPU.
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

# Tests use pgrep to find workers, a C++20 compiler to run kernels without a GPU, Chromium to open reports, and slurmd and
# munged as a cluster of one node.
install_tools() {
  install_programs git git python3 python3 pgrep procps g++ g++ chromium chromium chromedriver chromium-driver \
    slurmd slurm-wlm munged munge
  install_uv
  install_non_free
}

# Reasons to skip tests although the group `ci` is installed: they need another environment, or a GPU.
may_skip=(--may-skip 'torch|cudnn|cupy|pynvml|CUDA extras|cuDNN wheel|root may write|LFS|py-spy may not attach')

# NAME EXTRA [PACKAGE==VERSION...]: makes the environment .venv-NAME and uses it for all following commands. Users have
# no CUDA toolkit: empty files with its libraries' names hide one that may be installed here.
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

# SETTING COMMAND...: runs the command as on another machine, or with another user's settings.
#   avx2     a processor without AVX-512, another time zone, and the C locale, which has only ASCII
#   avx512   a processor without AMX and bfloat16, another time zone, a Latin-1 locale, and no C compiler
#   bf16     a processor with AVX-512 and bfloat16, but no AMX
#   one_core one core
#   busy     together with two processes that never wait
# A setting never adds instructions that this processor lacks.
as_on() {
  local setting=$1
  shift
  case $setting in
    avx2)
      env ONEDNN_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=Haswell TZ=Asia/Kolkata \
        LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 "$@"
      ;;
    avx512)
      mkdir -p "$out/locales"
      localedef -i en_US -f ISO-8859-1 "$out/locales/en_US.ISO-8859-1"
      env ONEDNN_MAX_CPU_ISA=AVX512_CORE TZ=America/St_Johns LC_ALL=en_US.ISO-8859-1 LOCPATH="$out/locales" \
        PATH="$(without_compiler)" "$@"
      ;;
    bf16) env ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 "$@" ;;
    one_core) taskset -c "$(taskset -cp $$ | grep -o '[0-9]*$')" "$@" ;;
    busy)
      local busy=() code=0
      for _ in 1 2; do
        python3 -c 'while True: pass' &
        busy+=($!)
      done
      "$@" || code=$?
      kill "${busy[@]}"
      return "$code"
      ;;
  esac
}
# A PATH with links to all programs but the compilers that tcbench asks for.
without_compiler() {
  local folders i programs=$PWD/build/programs # not in /tmp, which tools/planted.py hides
  rm -rf "$programs"
  IFS=: read -ra folders <<<"$PATH"
  mkdir -p "$programs"
  for ((i = ${#folders[@]} - 1; i >= 0; i--)); do # so that the first folder that has a program wins
    ln -sf "${folders[i]}"/* "$programs/" 2>/dev/null || true
  done
  rm -f "$programs"/{cc,gcc,g++,clang,clang++}
  printf %s "$programs"
}

#!/usr/bin/env bash
# Check that every extra, on every supported Python, resolves to packages that need no compiler: wheels, and Chainer,
# which is pure Python. Nothing is installed, and the Pythons need not be installed either.
#
#   tools/resolve.sh [PYTHON...]       default: 3.11 3.12 3.13 3.14
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

if (($#)); then pythons=("$@"); else pythons=(3.11 3.12 3.13 3.14); fi
# Each with all extras that fit it: if a combination has a solution, so has each of its parts.
extras=("cuda12 --extra nccl12 --extra cusolver12" "volta --extra nccl12 --extra cusolver12"
  "cuda13 --extra nccl13 --extra cusolver13" "cuda13 --extra torch"
  "host --constraints constraints.txt")

resolve() {
  local python=$1 extra=$2 said
  # shellcheck disable=SC2086 (an extra may be two)
  if said=$(uv pip compile --quiet --no-header --no-annotate --python-version "$python" --only-binary :all: \
    --no-binary chainer --extra $extra --extra ladder --extra opencv --extra parquet --extra slurm --extra host --extra mpi \
    pyproject.toml 2>&1); then
    echo "Python $python, ${extra// --extra / and }: $(grep -c == <<<"$said") packages"
  else
    printf 'Python %s, %s: no solution\n%s\n' "$python" "${extra// --extra / and }" "$said"
    return 1
  fi
}
export -f resolve

for python in "${pythons[@]}"; do
  for extra in "${extras[@]}"; do printf '%s\0%s\0' "$python" "$extra"; done
done | xargs -0 -n 2 -P 4 bash -c 'resolve "$1" "$2"' _

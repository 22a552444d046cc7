# Shared by the scripts in this folder: steps with logs, packages, the Python environment, builds.
# To be sourced by a bash script that has set TOTAL_STEPS.
# shellcheck shell=bash

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
BUILD=$ROOT/build
LOGS=$BUILD/log
VENV=$BUILD/venv
STEP=0
TOTAL_STEPS=${TOTAL_STEPS:-1}
# shellcheck disable=SC2034  # for the scripts that source this
STARTED=$SECONDS

cd "$ROOT"
mkdir -p "$LOGS"

# ------------------------------------------------------------------------------------------ output

say() { printf '%s\n' "$*"; }

# die MESSAGE...: one line of reason a parameter.
die() {
  printf 'error: %s\n' "$1" >&2
  shift
  [[ $# -eq 0 ]] || printf '       %s\n' "$@" >&2
  exit 1
}

# run COMMAND...: writes the command, then runs it; so that a log names the one that failed.
run() {
  printf '+'
  printf ' %q' "$@"
  printf '\n'
  "$@"
}

# Prints how far the log of a long step has come: all the time on a terminal, else every minute.
show_progress() {
  local log=$1 seconds=0 line
  while sleep 1 >/dev/null 2>&1; do
    seconds=$((seconds + 1))
    line=$(tail -n 1 "$log" 2>/dev/null | tr -d '\r' | cut -c 1-88) || true
    if [[ -t 1 ]]; then
      printf '\r\033[K      %d s  %s' "$seconds" "$line"
    elif ((seconds % 60 == 0)); then
      printf '      %d s  %s\n' "$seconds" "$line"
    fi
  done
}

# attempt NAME COMMAND...: a step that may fail. Its output goes to a log of its own; the variables
# ATTEMPT_STATUS, ATTEMPT_LOG and ATTEMPT_SECONDS tell what became of it.
# The command runs in a subshell under `set -e`; call attempt where its status is not tested, or
# bash switches `set -e` off inside.
attempt() {
  local name=$1 begin=$SECONDS slug watcher
  shift
  STEP=$((STEP + 1))
  slug=$(tr -cs 'a-z0-9\n' '-' <<<"${name,,}")
  ATTEMPT_LOG=$LOGS/$(basename "$0")-$(printf '%02d' "$STEP")-${slug%-}.log
  printf '[%d/%d] %s\n' "$STEP" "$TOTAL_STEPS" "$name"
  : >"$ATTEMPT_LOG"
  show_progress "$ATTEMPT_LOG" &
  watcher=$!
  set +e
  (
    set -e
    "$@"
  ) >>"$ATTEMPT_LOG" 2>&1 </dev/null
  ATTEMPT_STATUS=$?
  kill "$watcher" 2>/dev/null
  wait "$watcher" 2>/dev/null
  set -e
  [[ ! -t 1 ]] || printf '\r\033[K'
  ATTEMPT_SECONDS=$((SECONDS - begin))
  if ((ATTEMPT_STATUS == 0)); then
    printf '      ok, %d s\n' "$ATTEMPT_SECONDS"
  else
    printf '      FAILED, %d s\n' "$ATTEMPT_SECONDS"
    explain_failure
  fi
}

# Says which command of the last attempt failed, with the end of its log.
explain_failure() {
  local command
  command=$(grep '^+ ' "$ATTEMPT_LOG" | tail -n 1 | cut -c 3-400) || true
  say "      command: ${command:-see the log} (status $ATTEMPT_STATUS)"
  say "      log:     ${ATTEMPT_LOG#"$ROOT"/}, which ends:"
  tail -n 25 "$ATTEMPT_LOG" | cut -c 1-240 | sed 's/^/      | /'
}

# step NAME COMMAND...: an attempt that must succeed.
step() {
  attempt "$@"
  ((ATTEMPT_STATUS == 0)) || die "step $STEP of $TOTAL_STEPS failed: $1"
}

# ------------------------------------------------------------------------------------ the machine

# Cores that this process may use, by affinity and by cgroup quota.
cores() {
  local count quota period
  count=$(nproc)
  if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [[ $quota != max ]]; then
    quota=$(((quota + period - 1) / period))
    ((quota >= count)) || count=$quota
  fi
  echo $((count > 0 ? count : 1))
}

# Compiler jobs at a time: one a core, and 1.5 GiB of memory for each.
jobs_limit() {
  local kib limit count by_memory
  kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  if read -r limit 2>/dev/null </sys/fs/cgroup/memory.max && [[ $limit != max ]]; then
    limit=$((limit / 1024))
    ((limit >= kib)) || kib=$limit
  fi
  count=$(cores)
  by_memory=$((kib / (1536 * 1024)))
  ((by_memory >= count)) || count=$by_memory
  echo $((count > 0 ? count : 1))
}

# ---------------------------------------------------------------------------------------- packages

# Debian 12 and Ubuntu 24.04 have all of these under the same names, in the versions built against.
BUILD_PACKAGES=(
  ca-certificates g++ cmake ninja-build ccache pkg-config
  libgrpc-dev libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
  libc-ares-dev libre2-dev libssl-dev zlib1g-dev
  libtbb-dev libhwy-dev libisal-dev libspdlog-dev libcli11-dev nlohmann-json3-dev
  prometheus-cpp-dev
  libgtest-dev libgmock-dev
)
# clang-format is of one version, or machines would disagree on the format.
TEST_PACKAGES=(
  clang libclang-rt-dev clang-tidy clang-format-14 shellcheck libbenchmark-dev
  g++-aarch64-linux-gnu qemu-user googletest
)

# Those of the named packages that are not installed.
missing_packages() {
  local installed package
  installed=$(dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' 2>/dev/null |
    sed -n 's/^[ih]i *//p') || true
  for package in "$@"; do
    grep -qxF -- "$package" <<<"$installed" || echo "$package"
  done
}

as_root() {
  if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

apt_get() {
  run as_root env DEBIAN_FRONTEND=noninteractive apt-get -y -q \
    -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@"
}

# install_packages PACKAGE...: touches neither apt nor the network if all are there.
install_packages() {
  local missing try
  mapfile -t missing < <(missing_packages "$@")
  if [[ ${#missing[@]} -eq 0 ]]; then
    echo "all of $# packages are installed"
    return
  fi
  command -v apt-get >/dev/null ||
    die "this needs Debian 12 or Ubuntu 24.04 (no apt-get here)" "missing: ${missing[*]}"
  ((EUID == 0)) || command -v sudo >/dev/null ||
    die "packages are missing, and this is neither root nor is there sudo; as root, run:" \
      "apt-get install --no-install-recommends ${missing[*]}"
  echo "missing: ${missing[*]}"
  for try in 1 2 3; do
    # A package manager that was killed leaves packages half configured, and refuses to go on.
    run as_root env DEBIAN_FRONTEND=noninteractive dpkg --configure -a || true
    apt_get -f install || true
    if apt_get update && apt_get install --no-install-recommends "${missing[@]}"; then
      return
    fi
    echo "attempt $try of 3 failed"
    sleep $((try * 5))
  done
  die "these packages could not be installed: ${missing[*]}"
}

# ------------------------------------------------------------------------------------------ Python

# The first python3 that is new enough and can make virtual environments; nothing if there is none.
find_python() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
      >/dev/null 2>&1; then
      command -v "$python"
      return
    fi
  done
}

# venv_holds FILE...: whether build/venv works, belongs to this folder, and holds what the files name.
venv_holds() {
  [[ -x $VENV/bin/python ]] && grep -qF "$VENV" "$VENV/bin/activate" 2>/dev/null || return 1
  "$VENV/bin/python" - "$@" <<'PYTHON'
import importlib.metadata, pathlib, sys

assert pathlib.Path(sys.prefix).is_dir()
import pip  # a killed set-up leaves an environment without it
for path in sys.argv[1:]:
    for line in pathlib.Path(path).read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            name, version = line.split("==")
            distribution = importlib.metadata.distribution(name)
            assert distribution.version == version, (name, distribution.version)
            missing = [f for f in distribution.files or [] if not f.locate().exists()]
            assert not missing, (name, missing[:3])
PYTHON
}

# make_venv FILE...: build/venv with the packages of these requirement files, anew if it is broken.
make_venv() {
  local python arguments=() file
  if venv_holds "$@" 2>/dev/null; then
    echo "$VENV holds what it should"
    return
  fi
  python=$(find_python)
  [[ -n $python ]] || die "no python3 (3.11 or newer, with venv) found"
  for file in "$@"; do arguments+=(-r "$file"); done
  if ! venv_holds; then
    run rm -rf "$VENV"
    run "$python" -m venv "$VENV"
  fi
  # What is there is left alone, so that builds which use it need not start again; unless it turns
  # out to be incomplete.
  pip_install "${arguments[@]}"
  venv_holds "$@" 2>/dev/null || pip_install --force-reinstall "${arguments[@]}"
  venv_holds "$@"
}

pip_install() {
  run "$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-deps --retries 5 "$@"
}

# ------------------------------------------------------------------------------------------ set-up

# set_up build|test: packages and Python environment; with "test" also what only tests need.
set_up() {
  local packages=("${BUILD_PACKAGES[@]}") requirements=("$ROOT/scripts/requirements.txt")
  if [[ $1 == test ]]; then
    packages+=("${TEST_PACKAGES[@]}")
    requirements+=("$ROOT/scripts/requirements-test.txt" "$ROOT/client/examples/requirements.txt")
  fi
  [[ -n $(find_python) ]] || packages+=(python3 python3-venv)
  step "Packages" install_packages "${packages[@]}"
  step "Python environment build/venv" make_python "${requirements[@]}"
}

# Two scripts at a time must not make one environment.
make_python() {
  (
    flock -w 600 9 || die "another set-up has held build/.setup.lock for ten minutes"
    make_venv "$@"
  ) 9>"$BUILD/.setup.lock"
  # Imports of the contract in a folder of their own, where buf.yaml looks for them.
  local site
  site=$(echo "$VENV"/lib/python3*/site-packages)
  mkdir -p "$BUILD/googleapis/google/rpc"
  cp -u "$site"/google/rpc/{status,error_details}.proto "$BUILD/googleapis/google/rpc/"
}

# ------------------------------------------------------------------------------------------- build

# configure PRESET [OPTION...]: a cache that CMake refuses (another generator, a source folder that
# has moved) is dropped.
configure() {
  run cmake --preset "$@" && return
  [[ -e $BUILD/$1/CMakeCache.txt ]] || return 1
  echo "configuring again, without what build/$1 held"
  run cmake --fresh --preset "$@"
}

# build PRESET [TARGET...]: configures and builds.
build() {
  local preset=$1
  shift
  configure "$preset"
  run cmake --build "$BUILD/$preset" --parallel "$(jobs_limit)" ${1:+--target "$@"}
}

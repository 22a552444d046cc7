#!/usr/bin/env bash
# interrupt_test.sh OSCARKV SERVER RECORDING: a replay that is interrupted deletes its session and
# exits with 130.
set -euo pipefail

oscarkv=$1
server=$2
recording=$3
folder=$(mktemp -d)
address=unix:$folder/server
"$server" --address "$address" --metrics-address off 2>"$folder/log" &
pid=$!
trap 'kill "$pid" 2>/dev/null || true; wait "$pid" || true; rm -rf "$folder"' EXIT
for ((tries = 0; tries < 100; tries++)); do
  [[ -S $folder/server ]] && break
  sleep 0.1
done

# Long enough to be in the middle of it: all positions, again and again.
profiles=()
for ((i = 0; i < 100; i++)); do profiles+=(--profile all); done
# A shell without job control starts what runs beside it with SIGINT ignored; `env` undoes that.
env --default-signal=INT "$oscarkv" replay "$recording" --address "$address" --positions 1000 \
  "${profiles[@]}" >"$folder/out" 2>"$folder/err" &
replay=$!
for ((tries = 0; tries < 100; tries++)); do
  "$oscarkv" session list --address "$address" | grep -q replay- && break
  sleep 0.1
done
kill -INT "$replay"
status=0
wait "$replay" || status=$?
cat "$folder/err"
[[ $status == 130 ]] || { echo "exit status $status; expected 130"; exit 1; }
[[ ! -s $folder/out ]] || { echo "an interrupted replay printed results"; exit 1; }
left=$("$oscarkv" session list --address "$address" --json)
if grep -q replay- <<<"$left"; then
  echo "the session is left"
  exit 1
fi

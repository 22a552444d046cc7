#!/usr/bin/env bash
# quickstart_py_test.sh SERVER FOLDER: generates Python stubs from the contract and runs
# client/examples/quickstart.py against a server of its own. Runs in the environment that
# `scripts/setup --test` makes; where there is none, in one of its own in FOLDER, which is kept for
# the next time as long as requirements.txt stays as it is.
set -euo pipefail

server=$1
folder=$2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
requirements=$root/client/examples/requirements.txt
python=$root/build/venv/bin/python

mkdir -p "$folder"
if ! "$python" -c 'import google.rpc, grpc, grpc_tools, numpy' 2>/dev/null; then
  python=$folder/venv/bin/python
fi
if [[ $python == "$folder"/* ]] && ! cmp -s "$requirements" "$folder/requirements.txt"; then
  rm -rf "$folder"
  mkdir -p "$folder"
  python3 -m venv "$folder/venv"
  "$python" -m pip install --quiet --disable-pip-version-check -r "$requirements"
  cp "$requirements" "$folder/requirements.txt"
fi
googleapis=$("$python" -c 'import google.rpc; print(list(google.rpc.__path__)[0] + "/../..")')
"$python" -m grpc_tools.protoc -I "$root/proto" -I "$googleapis" \
  --python_out="$folder" --grpc_python_out="$folder" oscarkv/v1/kv_cache.proto

sockets=$(mktemp -d)
"$server" --address "unix:$sockets/server" --metrics-address off &
pid=$!
trap 'kill "$pid" 2>/dev/null || true; wait "$pid" || true; rm -rf "$sockets"' EXIT
for ((tries = 0; tries < 100; tries++)); do
  [[ -S $sockets/server ]] && break
  sleep 0.1
done
output=$(PYTHONPATH=$folder "$python" "$root/client/examples/quickstart.py" "unix:$sockets/server")
echo "$output"
# All values are 2, so the output is, whatever the weights; pages hold it to a rounding.
[[ $output == "300 tokens, output[0] = 2"* || $output == "300 tokens, output[0] = 1.99"* ]]

#!/usr/bin/env bash
# Trains on a single-host Cloud TPU slice (v5litepod-8, v6e-8, v4-8 ...): makes the machine if it is missing, copies this
# checkout there, installs it, and starts `bertfam pretrain` so that it outlives the connection. Called again, it goes on;
# while a run that it started is still on, it starts nothing and says so.
#
#   launch/tpu_vm.sh NAME ZONE ACCELERATOR_TYPE RUNTIME_VERSION PRETRAIN_FLAGS...
#
#   launch/tpu_vm.sh bert us-west4-a v5litepod-8 v2-alpha-tpuv5-lite \
#     --gin_file=runs/bert_small.gin --input='corpus/*.txt.gz' --input_format=paragraphs --vocab=vocab --model_dir=model
#
# Paths are those on the TPU machine, below its home folder. Its Python must be 3.11 or newer. What travels is the commit that
# is checked out: commit first what is to be run.
set -euo pipefail

if [ $# -lt 5 ]; then
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2
  exit 2
fi
name=$1 zone=$2 accelerator=$3 runtime=$4
shift 4
checkout=$(cd "$(dirname "$0")/.." && pwd)
tpu() { gcloud compute tpus tpu-vm "$@" --zone="$zone"; }

if [ -n "$(git -C "$checkout" status --porcelain)" ]; then
  echo "warning: $checkout has changes that are not committed; they stay here, and the commit without them runs" >&2
fi

tpu describe "$name" >/dev/null 2>&1 || tpu create "$name" --accelerator-type="$accelerator" --version="$runtime"

# A TPU serves one process. The file holds the id of the last run's; `ps` tells whether that is still bertfam's.
running='test -f pretrain.pid && ps -o args= -p "$(cat pretrain.pid)" | grep -q "bertfam pretrain"'
if tpu ssh "$name" --command="$running"; then
  echo "$name: the last run is still on, nothing was started: tail -f pretrain.log there, or end it: kill \$(cat pretrain.pid)" >&2
  exit 1
fi

# What git tracks, and nothing else, travels, into a fresh folder.
archive=$(mktemp -d)
trap 'rm -rf "$archive"' EXIT
git -C "$checkout" archive --format=tar.gz --output="$archive/bertfam.tar.gz" HEAD
tpu scp "$archive/bertfam.tar.gz" "$name:bertfam.tar.gz"
tpu ssh "$name" --command="rm -rf bertfam && mkdir bertfam && tar xzf bertfam.tar.gz -C bertfam && \
  (test -x venv/bin/python || python3 -m venv venv) && venv/bin/pip install --quiet './bertfam[tpu]'"

# Each flag is quoted again for the shell over there; the log is appended to, so that a restart loses nothing.
flags=$(printf ' %q' "$@")
tpu ssh "$name" --command="nohup venv/bin/bertfam pretrain$flags >> pretrain.log 2>&1 < /dev/null & echo \$! > pretrain.pid; \
echo started: tail -f pretrain.log"

#!/usr/bin/env bash
# Measures a simulator and a policy on vLLM on a GPU machine, and prints one table:
#
#     bash benchmarks/gpu.sh
#
# 1. vLLM serves MODEL as the experience model: episodes through dreamgym, then the same requests straight to vLLM.
# 2. POLICY learns the recorded episodes, is served, and takes GRPO updates whose episodes the server samples.
#
# What is already done in OUT is not repeated: after a failure the same command continues.
#
# It needs a checkout with `pip install -c constraints.txt '.[train,server,textworld-express]'`, and vLLM in a virtual
# environment of its own (docs/training.md); set DREAMGYM_VLLM_PYTHON to the Python there. MODEL and POLICY are
# checkpoint folders, or names on the Hugging Face hub, which are downloaded. All files are written to OUT, including
# the store; the table is OUT/table.md.
#
# To try it on CPUs from end to end, with so few episodes that the figures mean nothing:
#
#     MODEL=./small POLICY=./small EPISODES=2 AT_ONCE=2 EPISODE_STEPS=2 WARM_STEPS=2 STEPS=2 ACCUMULATE=1 \
#         GROUPS_AT_ONCE=2 GROUP_SIZE=2 PROBE=2 VLLM_CPU_KVCACHE_SPACE=2 VLLM_CPU_OMP_THREADS_BIND=nobind \
#         SERVE='--enforce-eager --no-enable-chunked-prefill' bash benchmarks/gpu.sh
set -euo pipefail
cd "$(dirname "$0")/.."

MODEL=${MODEL:-Qwen/Qwen2.5-0.5B-Instruct}
POLICY=${POLICY:-Qwen/Qwen2.5-0.5B-Instruct}
PYTHON=${PYTHON:-.venv/bin/python}
VLLM_PYTHON=${DREAMGYM_VLLM_PYTHON:-.venv-vllm/bin/python}
OUT=${OUT:-runs/gpu}
PORT=${PORT:-8941}
read -ra SERVE <<<"${SERVE:-}" # more options of both servers
# options of both trainings; the second shares the GPU with a server
read -ra TRAIN <<<"${TRAIN:---bf16 true --gradient-checkpointing true --episode-tokens 2048}"
TRAIN+=(--accumulate "${ACCUMULATE:-16}")
URL=http://127.0.0.1:$PORT
export VLLM_SERVER_DEV_MODE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1

mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
export DREAMGYM_HOME=$OUT/home

server=
stop() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
        server=
    fi
}
trap stop EXIT

serve() { # LOG FOLDER OPTIONS…: start a server, and wait until it answers
    local log=$OUT/$1 folder=$2
    shift 2
    "$VLLM_PYTHON" -m vllm.entrypoints.openai.api_server --model "$folder" --host 127.0.0.1 --port "$PORT" \
        --dtype bfloat16 "$@" "${SERVE[@]}" >"$log" 2>&1 &
    server=$!
    until curl --silent --fail --output /dev/null "$URL/health"; do
        if ! kill -0 "$server" 2>/dev/null; then
            tail -n 30 "$log" >&2
            exit 1
        fi
        sleep 2
    done
}

folder_of() { # NAME: the folder of a checkpoint, downloaded if it is a name on the hub
    if [ -d "$1" ]; then
        (cd "$1" && pwd)
    else
        "$PYTHON" -c 'import sys; from huggingface_hub import snapshot_download as get; print(get(sys.argv[1]))' "$1"
    fi
}

MODEL=$(folder_of "$MODEL")
POLICY=$(folder_of "$POLICY")

if [ ! -e "$OUT/figures.json" ]; then
    serve simulator.log "$MODEL" --max-model-len 8192 --gpu-memory-utilization 0.8
    "$PYTHON" benchmarks/gpu.py play "$URL" "$OUT" --episodes "${EPISODES:-256}" --at-once "${AT_ONCE:-64}" \
        --steps "${EPISODE_STEPS:-10}"
    stop
fi

"$PYTHON" -m dreamgym seed coin examples/coin
if [ ! -e "$OUT/warm/policy" ]; then
    "$PYTHON" -m dreamgym train examples/coin --algorithm sft --policy "$POLICY" --steps "${WARM_STEPS:-8}" \
        --probe 0 --out "$OUT/warm" "${TRAIN[@]}"
fi
if [ ! -e "$OUT/policy/policy" ]; then
    serve policy.log "$OUT/warm/policy" --max-model-len 4096 --gpu-memory-utilization 0.3 \
        --logprobs-mode processed_logprobs
    "$PYTHON" -m dreamgym train examples/coin --policy "$OUT/warm/policy" --model nearest --vllm "$URL" \
        --steps "${STEPS:-26}" --groups "${GROUPS_AT_ONCE:-8}" --group-size "${GROUP_SIZE:-8}" \
        --probe "${PROBE:-300}" --save-every 10 --out "$OUT/policy" "${TRAIN[@]}" \
        $([ ! -e "$OUT/policy" ] || echo --resume)
    stop
fi

"$PYTHON" benchmarks/gpu.py table "$OUT" | tee "$OUT/table.md"

#!/usr/bin/env bash
# GLM-5.3 in FP8 on one node of 8 H200 GPUs, tensor parallel, for few concurrent requests. Not yet run on a GPU.
# Usage: launch/tp8_low_latency.sh [MODEL [SGLANG_FLAG...]]
set -euo pipefail
model=${1:-zai-org/GLM-5.3}
shift $(($# > 0))

# Stops here when SGLang would not load this package: it would serve its stock model without a word.
glm53 doctor

args=(
  --model-path "$model"
  # Our model classes; the guard refuses to start when they cannot serve this checkpoint.
  --model-impl glm53
  # Every GPU works on every token, which gives the shortest time per token at a small batch.
  --tp-size 8
  # The published recipe's share of memory for weights and KV cache; the rest holds activations.
  --mem-fraction-static 0.8
  # GLM-5.3's formats for thinking and tool calls.
  --reasoning-parser glm45 --tool-call-parser glm47
)
# The published recipe adds MTP (EAGLE, 5 steps). It is left out until it has run on a GPU with this package.
exec python -m sglang.launch_server "${args[@]}" "$@"

#!/usr/bin/env bash
# The prefill half of a pair on two nodes: GLM-5.3 in FP8 on 8 H200 GPUs. Not yet run on a GPU.
# Usage: launch/pd_prefill.sh [MODEL [SGLANG_FLAG...]]     (then launch/pd_decode.sh elsewhere, and pd_router.sh)
set -euo pipefail
model=${1:-zai-org/GLM-5.3}
shift $(($# > 0))

# Stops here when SGLang would not load this package: it would serve its stock model without a word.
glm53 doctor

args=(
  --model-path "$model"
  # Our model classes; the guard refuses to start when they cannot serve this checkpoint.
  --model-impl glm53
  # Computes prompts alone and hands their KV rows and index pages to a decode server.
  --disaggregation-mode prefill --disaggregation-transfer-backend mooncake
  # Where the decode server asks for this one; launch/pd_router.sh names the same port.
  --disaggregation-bootstrap-port 8998
  # All GPUs work on one prompt. The KV cache is whole on each, so a decode of any size can take it.
  --tp-size 8
  # The tokens of one step: larger steps use the experts better, and hold a short prompt up for longer.
  --chunked-prefill-size 16384
  # The published recipe's share of memory for weights and KV cache; the rest holds activations.
  --mem-fraction-static 0.85
  # Other nodes reach it. The formats for thinking and tool calls must be those of the decode server.
  --host 0.0.0.0 --reasoning-parser glm45 --tool-call-parser glm47
)
exec python -m sglang.launch_server "${args[@]}" "$@"

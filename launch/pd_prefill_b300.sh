#!/usr/bin/env bash
# The prefill half of a pair on one host: GLM-5.3 in FP8 on GPUs 0 to 3 of 8 B300. Not yet run on a GPU.
# Usage: launch/pd_prefill_b300.sh [MODEL [SGLANG_FLAG...]]     (then launch/pd_decode_b300.sh and pd_router.sh)
set -euo pipefail
model=${1:-zai-org/GLM-5.3}
shift $(($# > 0))

# Stops here when SGLang would not load this package: it would serve its stock model without a word.
glm53 doctor

args=(
  --model-path "$model"
  # Our model classes; the guard refuses to start when they cannot serve this checkpoint.
  --model-impl glm53
  # Computes prompts alone and hands their KV rows and index pages to the decode server beside it.
  --disaggregation-mode prefill --disaggregation-transfer-backend mooncake
  # Where the decode server asks for this one; launch/pd_router.sh names the same port.
  --disaggregation-bootstrap-port 8998
  # Four GPUs hold the weights, and work on one prompt.
  --tp-size 4
  # The tokens of one step: larger steps use the experts better, and hold a short prompt up for longer.
  --chunked-prefill-size 16384
  # The published recipe's share of memory for weights and KV cache; the rest holds activations.
  --mem-fraction-static 0.85
  # GLM-5.3's formats for thinking and tool calls.
  --reasoning-parser glm45 --tool-call-parser glm47
)
exec python -m sglang.launch_server "${args[@]}" "$@"

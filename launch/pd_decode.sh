#!/usr/bin/env bash
# The decode half of a pair on two nodes: GLM-5.3 in FP8 on 8 H200 GPUs. Not yet run on a GPU.
# Usage: launch/pd_decode.sh [MODEL [SGLANG_FLAG...]]     (with launch/pd_prefill.sh and launch/pd_router.sh)
set -euo pipefail
model=${1:-zai-org/GLM-5.3}
shift $(($# > 0))
# The rows of a decode step on one GPU, 512 requests over 8: DeepEP's buffers hold just these.
export SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=${SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK:-64}
# Stops here when SGLang would not load this package: it would serve its stock model without a word.
glm53 doctor
args=(
  --model-path "$model"
  # Our model classes; the guard refuses to start when they cannot serve this checkpoint.
  --model-impl glm53
  # Takes the KV of each prompt from a prefill server, after comparing what both hold.
  --disaggregation-mode decode --disaggregation-transfer-backend mooncake
  # Every GPU runs the attention of its own requests; DeepEP takes their rows to 32 experts on each GPU.
  --tp-size 8 --attn-dp-size 8 --moe-a2a-backend deepep
  # No step prefills, so DeepEP needs its low-latency kernels alone.
  --deepep-mode low_latency
  # The three dense layers and the output head run on a GPU's own rows, without a gather.
  --moe-dense-tp-size 1 --enable-dp-lm-head
  # Bounds a decode step; the memory share is the published recipe's.
  --max-running-requests 512 --mem-fraction-static 0.85
  # Other nodes reach it. GLM-5.3's formats for thinking and tool calls.
  --host 0.0.0.0 --reasoning-parser glm45 --tool-call-parser glm47
)
exec python -m sglang.launch_server "${args[@]}" "$@"

#!/usr/bin/env bash
# GLM-5.3 in FP8 on one node of 8 B200 GPUs, for many concurrent requests. Not yet run on a GPU.
# Usage: launch/dp8_throughput_b200.sh [MODEL [SGLANG_FLAG...]]
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
  # Every GPU runs the attention of its own requests, so no GPU keeps the cache of another's.
  --tp-size 8 --attn-dp-size 8
  # The experts are divided among the GPUs, and DeepEP takes each row to its experts.
  --moe-a2a-backend deepep
  # The three dense layers and the output head run on a GPU's own rows, without a gather.
  --moe-dense-tp-size 1 --enable-dp-lm-head
  # The first bounds a decode step; each GPU prefills its part of the second, 8192 tokens, at a time.
  --max-running-requests 512 --chunked-prefill-size 65536
  # The H200 recipe's share of memory; the KV cache is FP8 on Blackwell without a flag.
  --mem-fraction-static 0.85
  # GLM-5.3's formats for thinking and tool calls.
  --reasoning-parser glm45 --tool-call-parser glm47
)
exec python -m sglang.launch_server "${args[@]}" "$@"

#!/usr/bin/env bash
# A wide decode half: GLM-5.3 in FP8 on 2 nodes of 8 H200 GPUs with two-batch overlap. Not yet run on a GPU.
# Usage, on every node: launch/pd_decode_ep16_overlap.sh NODE_RANK HEAD_HOST:PORT [MODEL [SGLANG_FLAG...]]
set -euo pipefail
rank=${1:?NODE_RANK is missing} head=${2:?HEAD_HOST:PORT is missing} model=${3:-zai-org/GLM-5.3}
shift $(($# > 2 ? 3 : 2))
# The rows of a decode step on one GPU, 2048 requests over 16: DeepEP's buffers hold just these.
export SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=${SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK:-128}
# Stops here when SGLang would not load this package: it would serve its stock model without a word.
glm53 doctor
args=(
  --model-path "$model"
  # Our model classes; the guard refuses to start when they cannot serve this checkpoint.
  --model-impl glm53
  # Node 0 answers HTTP; the others run its schedule.
  --nnodes 2 --node-rank "$rank" --dist-init-addr "$head"
  # Takes the KV of each prompt from a prefill server, after comparing what both hold.
  --disaggregation-mode decode --disaggregation-transfer-backend mooncake
  # Every GPU runs the attention of its own requests; no step prefills, so the low-latency kernels do.
  --tp-size 16 --attn-dp-size 16 --moe-a2a-backend deepep --deepep-mode low_latency
  # Two halves of a batch take turns: one computes while the other's rows are on the network.
  --enable-two-batch-overlap
  # The three dense layers and the output head run on a GPU's own rows, without a gather.
  --moe-dense-tp-size 1 --enable-dp-lm-head
  # The first bounds a decode step; for the second SGLang would keep memory free for a prefill.
  --max-running-requests 2048 --mem-fraction-static 0.8
  # Other nodes reach it. GLM-5.3's formats for thinking and tool calls.
  --host 0.0.0.0 --reasoning-parser glm45 --tool-call-parser glm47
)
exec python -m sglang.launch_server "${args[@]}" "$@"

#!/usr/bin/env bash
# GLM-5.3 in FP8 on 2 nodes of 8 H200 GPUs, expert parallel, with two-batch overlap. Not yet run on a GPU.
# Usage, on every node: launch/ep16_overlap.sh NODE_RANK HEAD_HOST:PORT [MODEL [SGLANG_FLAG...]]
set -euo pipefail
rank=${1:?NODE_RANK is missing} head=${2:?HEAD_HOST:PORT is missing} model=${3:-zai-org/GLM-5.3}
shift $(($# > 2 ? 3 : 2))
# The rows of a decode step on one GPU, 1024 requests over 16: DeepEP's buffers hold just these.
export SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=${SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK:-64}
# Stops here when SGLang would not load this package: it would serve its stock model without a word.
glm53 doctor
args=(
  --model-path "$model"
  # Our model classes; the guard refuses to start when they cannot serve this checkpoint.
  --model-impl glm53
  # Node 0 answers HTTP; the others run its schedule.
  --nnodes 2 --node-rank "$rank" --dist-init-addr "$head"
  # Every GPU runs the attention of its own requests; DeepEP takes their rows to 16 experts on each GPU.
  --tp-size 16 --attn-dp-size 16 --moe-a2a-backend deepep
  # Two halves of a batch take turns: one computes while the other's rows are on the network.
  --enable-two-batch-overlap
  # The three dense layers and the output head run on a GPU's own rows, without a gather.
  --moe-dense-tp-size 1 --enable-dp-lm-head
  # The first bounds a decode step; each GPU prefills its part of the second, 4096 tokens, at a time.
  --max-running-requests 1024 --chunked-prefill-size 65536
  # SGLang's own choice would keep memory free for the whole chunk, not for a GPU's part of it.
  --mem-fraction-static 0.8
  # GLM-5.3's formats for thinking and tool calls.
  --reasoning-parser glm45 --tool-call-parser glm47
)
exec python -m sglang.launch_server "${args[@]}" "$@"

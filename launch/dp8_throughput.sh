#!/usr/bin/env bash
# GLM-5.3 in FP8 on one node of 8 H200 GPUs, for many concurrent requests. Not yet run on a GPU.
# Usage: launch/dp8_throughput.sh [MODEL [SGLANG_FLAG...]]
set -euo pipefail
. "$(dirname "$0")/lib.sh"

flags=(
  # Every GPU runs the attention of its own requests, so no GPU keeps the cache of another's.
  --tp-size 8 --attn-dp-size 8
  # The experts are divided among the GPUs, and DeepEP takes each row to its experts.
  --moe-a2a-backend deepep
  # The three dense layers and the output head run on a GPU's own rows, without a gather.
  --moe-dense-tp-size 1 --enable-dp-lm-head
  # The first bounds a decode step; each GPU prefills its part of the second, 4096 tokens, at a time.
  --max-running-requests 256 --chunked-prefill-size 32768
  # The published recipe's share of memory for weights and KV cache; the rest holds activations.
  --mem-fraction-static 0.85
)
# The published recipe's: with many requests a longer chain verifies more than it gains.
mtp 1
# The requests of one GPU.
deepep_room $((256 / 8))
serve "$@"

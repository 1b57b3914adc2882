#!/usr/bin/env bash
# GLM-5.3 in FP8 on one node of 8 B300 GPUs, for many concurrent requests. Not yet run on a GPU.
# Usage: launch/dp8_throughput_b300.sh [MODEL [SGLANG_FLAG...]]
set -euo pipefail
. "$(dirname "$0")/lib.sh"

flags=(
  # Every GPU runs the attention of its own requests, so no GPU keeps the cache of another's.
  --tp-size 8 --attn-dp-size 8
  # The experts are divided among the GPUs, and DeepEP takes each row to its experts.
  --moe-a2a-backend deepep
  # The three dense layers and the output head run on a GPU's own rows, without a gather.
  --moe-dense-tp-size 1 --enable-dp-lm-head
  # The first bounds a decode step; each GPU prefills its part of the second, 8192 tokens, at a time.
  --max-running-requests 1024 --chunked-prefill-size 65536
  # The H200 recipe's share of memory; the KV cache is FP8 on Blackwell without a flag.
  --mem-fraction-static 0.85
)
# The published recipe's: with many requests a longer chain verifies more than it gains.
mtp 1
# The requests of one GPU.
deepep_room $((1024 / 8))
serve "$@"

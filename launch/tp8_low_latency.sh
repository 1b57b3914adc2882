#!/usr/bin/env bash
# GLM-5.3 in FP8 on one node of 8 H200 GPUs, tensor parallel, for few concurrent requests. Not yet run on a GPU.
# Usage: launch/tp8_low_latency.sh [MODEL [SGLANG_FLAG...]]
set -euo pipefail
. "$(dirname "$0")/lib.sh"

flags=(
  # Every GPU works on every token, which gives the shortest time per token at a small batch.
  --tp-size 8
  # The published recipe's share of memory for weights and KV cache; the rest holds activations.
  --mem-fraction-static 0.8
)
# The published recipe's: five drafts pay while the batch is small.
mtp 5
serve "$@"

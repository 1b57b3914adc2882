#!/usr/bin/env bash
# GLM-5.3 in FP8 on one node of 8 H200 GPUs, for a few long requests. Not yet run on a GPU.
# Usage: launch/tp8_long_context.sh [MODEL [SGLANG_FLAG...]]
set -euo pipefail
. "$(dirname "$0")/lib.sh"

flags=(
  # Every GPU works on every token and holds an eighth of the weights, which leaves the most room for one
  # request's cache. Attention DP would hold whole attention weights on each GPU.
  --tp-size 8
  # 656 bytes for a token and layer instead of 1152.
  --kv-cache-dtype fp8_e4m3
  # A longer request is refused at once, not when its cache runs out.
  --context-length 524288
  # Graphs and buffers are made for this many; more requests wait.
  --max-running-requests 16
  # The rest holds activations and the indexer's scores, which grow with the context.
  --mem-fraction-static 0.85
)
# No recipe with MTP is published for such requests.
serve "$@"

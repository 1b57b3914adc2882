#!/usr/bin/env bash
# The decode half of a pair on one host: GLM-5.3 in FP8 on GPUs 4 to 7 of 8 B300. Not yet run on a GPU.
# Usage: launch/pd_decode_b300.sh [MODEL [SGLANG_FLAG...]]     (with launch/pd_prefill_b300.sh and pd_router.sh)
set -euo pipefail
. "$(dirname "$0")/lib.sh"

flags=(
  # Takes the KV of each prompt from the prefill server, after comparing what both hold.
  --disaggregation-mode decode --disaggregation-transfer-backend mooncake
  # The GPUs that the prefill server leaves, and ports far enough from its own.
  --base-gpu-id 4 --port 30100
  # Four GPUs hold the weights.
  --tp-size 4
  # Bounds a decode step, and the requests whose KV is on its way.
  --max-running-requests 128
  # The published recipe's share of memory for weights and KV cache; the rest holds activations.
  --mem-fraction-static 0.85
)
# The published pair's, and the prefill server's: it sends the draft's rows too.
mtp 3
serve "$@"

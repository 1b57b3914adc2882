#!/usr/bin/env bash
# The decode half of a pair on two nodes: GLM-5.3 in FP8 on 8 H200 GPUs. Not yet run on a GPU.
# Usage: launch/pd_decode.sh [MODEL [SGLANG_FLAG...]]     (with launch/pd_prefill.sh and launch/pd_router.sh)
set -euo pipefail
. "$(dirname "$0")/lib.sh"

flags=(
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
  # Other nodes reach it.
  --host 0.0.0.0
)
# The published pair's, and the prefill server's: it sends the draft's rows too.
mtp 3
# The requests of one GPU.
deepep_room $((512 / 8))
serve "$@"

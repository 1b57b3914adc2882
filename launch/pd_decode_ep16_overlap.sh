#!/usr/bin/env bash
# A wide decode half: GLM-5.3 in FP8 on 2 nodes of 8 H200 GPUs with two-batch overlap. Not yet run on a GPU.
# Usage, on every node: launch/pd_decode_ep16_overlap.sh NODE_RANK HEAD_HOST:PORT [MODEL [SGLANG_FLAG...]]
set -euo pipefail
. "$(dirname "$0")/lib.sh"

flags=(
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
  # Other nodes reach it.
  --host 0.0.0.0
)
# The prefill server's, as it sends the draft's rows too; published wide decodes have MTP, without the overlap.
mtp 3
# The requests of one GPU.
deepep_room $((2048 / 16))
serve_node 2 "$@"

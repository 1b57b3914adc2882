#!/usr/bin/env bash
# GLM-5.3 in FP8 on 2 nodes of 8 H200 GPUs, expert parallel, with two-batch overlap. Not yet run on a GPU.
# Usage, on every node: launch/ep16_overlap.sh NODE_RANK HEAD_HOST:PORT [MODEL [SGLANG_FLAG...]]
set -euo pipefail
. "$(dirname "$0")/lib.sh"

flags=(
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
)
# No recipe of the overlap is published for this model (SGLang alone refuses it), so there is none with MTP.
# The requests of one GPU.
deepep_room $((1024 / 16))
serve_node 2 "$@"

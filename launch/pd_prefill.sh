#!/usr/bin/env bash
# The prefill half of a pair on two nodes: GLM-5.3 in FP8 on 8 H200 GPUs. Not yet run on a GPU.
# Usage: launch/pd_prefill.sh [MODEL [SGLANG_FLAG...]]     (then launch/pd_decode.sh elsewhere, and pd_router.sh)
set -euo pipefail
. "$(dirname "$0")/lib.sh"

flags=(
  # Computes prompts alone and hands their KV rows and index pages to a decode server.
  --disaggregation-mode prefill --disaggregation-transfer-backend mooncake
  # Where the decode server asks for this one; launch/pd_router.sh names the same port.
  --disaggregation-bootstrap-port 8998
  # All GPUs work on one prompt. The KV cache is whole on each, so a decode of any size can take it.
  --tp-size 8
  # The tokens of one step: larger steps use the experts better, and hold a short prompt up for longer.
  --chunked-prefill-size 16384
  # The prompts in work or on their way, as many as the decode server answers: with MTP SGLang would take 48.
  --max-running-requests 512
  # The published recipe's share of memory for weights and KV cache; the rest holds activations.
  --mem-fraction-static 0.85
  # Other nodes reach it.
  --host 0.0.0.0
)
# The published pair's. A prompt's draft rows cross to the decode server, so both halves have the same.
mtp 3
serve "$@"

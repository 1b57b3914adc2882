#!/usr/bin/env bash
# The prefill half of a pair on one host: GLM-5.3 in FP8 on GPUs 0 to 3 of 8 B300. Not yet run on a GPU.
# Usage: launch/pd_prefill_b300.sh [MODEL [SGLANG_FLAG...]]     (then launch/pd_decode_b300.sh and pd_router.sh)
set -euo pipefail
. "$(dirname "$0")/lib.sh"

flags=(
  # Computes prompts alone and hands their KV rows and index pages to the decode server beside it.
  --disaggregation-mode prefill --disaggregation-transfer-backend mooncake
  # Where the decode server asks for this one; launch/pd_router.sh names the same port.
  --disaggregation-bootstrap-port 8998
  # Four GPUs hold the weights, and work on one prompt.
  --tp-size 4
  # The tokens of one step: larger steps use the experts better, and hold a short prompt up for longer.
  --chunked-prefill-size 16384
  # The prompts in work or on their way, as many as the decode server answers: with MTP SGLang would take 48.
  --max-running-requests 128
  # The published recipe's share of memory for weights and KV cache; the rest holds activations.
  --mem-fraction-static 0.85
)
# The published pair's. A prompt's draft rows cross to the decode server, so both halves have the same.
mtp 3
serve "$@"

#!/usr/bin/env bash
# SGLang's router before one prefill and one decode server. It needs no GPU: pip install sglang-router==0.3.2
# Usage: launch/pd_router.sh PREFILL_URL DECODE_URL [ROUTER_FLAG...]   both with their ports
set -euo pipefail
. "$(dirname "$0")/lib.sh"
prefill=${1:?PREFILL_URL is missing} decode=${2:?DECODE_URL is missing}
shift 2
loads sglang-router==0.3.2 sglang_router

args=(
  # Each request goes to both: the prefill server computes its prompt, the decode server answers.
  --pd-disaggregation
  # The port is the prefill server's --disaggregation-bootstrap-port.
  --prefill "$prefill" 8998 --decode "$decode"
  # A server that compiles kernels at its first requests is slow, not dead.
  --disable-circuit-breaker
  # Where clients send their requests.
  --host 0.0.0.0 --port 8000
)
exec python -m sglang_router.launch_router "${args[@]}" "$@"

#!/usr/bin/env bash
# A prefill/decode pair and SGLang's router on the CPU reference platform: one answer through all three.
# Usage: launch/pd_smoke.sh [CHECKPOINT]     (a tiny random one is written when none is given)
set -euo pipefail
. "$(dirname "$0")/lib.sh"
loads "'.[pd]'" mooncake.engine sglang_router
# The one variable that selects the reference platform; the KV stays on the loopback.
export SGLANG_PLATFORM=glm53_cpu SGLANG_HOST_IP=127.0.0.1
ready
work=$(mktemp -d)
trap '[ $? = 0 ] || tail -n 20 "$work"/*.log; kill $(jobs -p) || true; wait; rm -rf "$work"' EXIT
checkpoint=${1:-$work/checkpoint}
[ $# -gt 0 ] || glm53 tiny "$checkpoint"
for role in "prefill 22000" "decode 22400"; do
  python -m sglang.launch_server --model-path "$checkpoint" --model-impl glm53 --skip-server-warmup \
    --disaggregation-mode "${role% *}" --disaggregation-transfer-backend mooncake_tcp \
    --disaggregation-bootstrap-port 22998 --port "${role#* }" >"$work/${role% *}.log" 2>&1 &
done
python -m sglang_router.launch_router --pd-disaggregation --prefill http://127.0.0.1:22000 22998 \
  --decode http://127.0.0.1:22400 --host 127.0.0.1 --port 22800 >"$work/router.log" 2>&1 &
python - "$(jobs -p)" <<'PY'
import json, os, sys, time, urllib.request as web
body = {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
request = web.Request("http://127.0.0.1:22800/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
for _ in range(300):
    [os.kill(int(process), 0) for process in sys.argv[1].split()]  # Raises once one has ended.
    try: sys.exit(print(web.urlopen(request, timeout=120).read().decode()))
    except OSError: time.sleep(2)
sys.exit("no answer within 10 minutes")
PY

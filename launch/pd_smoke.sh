#!/usr/bin/env bash
# A prefill/decode pair and SGLang's router on the CPU reference platform: one answer through all three.
# Usage: launch/pd_smoke.sh [CHECKPOINT]     (a tiny random one is written when none is given)
set -euo pipefail
# The one variable that selects the reference platform; the KV stays on the loopback.
export SGLANG_PLATFORM=glm53_cpu SGLANG_HOST_IP=127.0.0.1
glm53 doctor
work=$(mktemp -d)
trap 'tail -n 9 "$work"/*.log; kill $(jobs -p); wait; rm -rf "$work"' EXIT
checkpoint=${1:-$work/checkpoint}
[ $# -gt 0 ] || glm53 tiny "$checkpoint"
for role in "prefill 18000" "decode 18200"; do
  python -m sglang.launch_server --model-path "$checkpoint" --model-impl glm53 --skip-server-warmup \
    --disaggregation-mode "${role% *}" --disaggregation-transfer-backend mooncake_tcp \
    --disaggregation-bootstrap-port 18998 --port "${role#* }" >"$work/${role% *}.log" 2>&1 &
done
python -m sglang_router.launch_router --pd-disaggregation --prefill http://127.0.0.1:18000 18998 \
  --decode http://127.0.0.1:18200 --host 127.0.0.1 --port 18400 >"$work/router.log" 2>&1 &
python - $(jobs -p) <<'PY'
import json, os, sys, time, urllib.request as web
body = {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
request = web.Request("http://127.0.0.1:18400/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
for _ in range(300):
    [os.kill(int(process), 0) for process in sys.argv[1:]]  # Raises once one has ended.
    try: sys.exit(print(web.urlopen(request, timeout=120).read().decode()))
    except OSError: time.sleep(2)
sys.exit("no answer within 10 minutes")
PY

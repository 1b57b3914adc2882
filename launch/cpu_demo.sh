#!/usr/bin/env bash
# Serves a small checkpoint on the CPU reference platform: for a look and for tests, never for production.
# Usage: launch/cpu_demo.sh CHECKPOINT [SGLANG_FLAG...]     (`glm53 tiny CHECKPOINT` writes one)
set -euo pipefail
. "$(dirname "$0")/lib.sh"

[ $# -gt 0 ] || fail "usage: $0 CHECKPOINT [SGLANG_FLAG...]"
# The one variable that selects the reference platform; SGLang inherits it in every process.
export SGLANG_PLATFORM=glm53_cpu
start "$@"

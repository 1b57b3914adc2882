#!/usr/bin/env bash
# Serves a small checkpoint on the CPU reference platform: for a look and for tests, never for production.
# Usage: launch/cpu_demo.sh CHECKPOINT [SGLANG_FLAG...]     (`glm53 tiny CHECKPOINT` writes one)
set -euo pipefail
checkpoint=${1:?usage: launch/cpu_demo.sh CHECKPOINT [SGLANG_FLAG...]}
shift

# The one variable that selects the reference platform; SGLang inherits it in every process.
export SGLANG_PLATFORM=glm53_cpu
# Stops here when SGLang would not load this package: it would serve its stock model without a word.
glm53 doctor

args=(
  --model-path "$checkpoint"
  # Our model classes; the guard refuses to start when they cannot serve this checkpoint.
  --model-impl glm53
)
exec python -m sglang.launch_server "${args[@]}" "$@"

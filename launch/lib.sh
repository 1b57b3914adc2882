# shellcheck shell=bash
# Owns what the launch scripts share: MTP, DeepEP's room, the arguments, doctor and the start of the server.
# A script sources it, puts its SGLang flags into `flags`, and ends in serve, serve_node or start.

# The tokens of one request in a decode step, and whether the recipe has MTP flags: mtp changes both.
tokens=1 recipe_has_mtp=

fail() {
  echo "${0##*/}: $*" >&2
  exit 1
}

case ${MTP-1} in
  0 | 1) ;;
  *) fail "MTP=$MTP: 0 leaves the recipe's MTP flags out, 1 keeps them as without the variable" ;;
esac

# mtp STEPS: a chain of so many drafts, which one step verifies with the token before them; not with MTP=0.
mtp() {
  recipe_has_mtp=yes
  [ "${MTP-1}" = 1 ] || return 0
  tokens=$(($1 + 1))
  flags+=(--speculative-algorithm EAGLE --speculative-num-steps "$1" --speculative-eagle-topk 1)
  flags+=(--speculative-num-draft-tokens "$tokens")
}

# deepep_room REQUESTS: DeepEP's buffers hold the rows of so many requests' decode step on one GPU, and no more:
# each row costs 12.2 MiB there. Follows mtp. A value that the user set stays; the guard checks either.
deepep_room() {
  local name=SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK
  export "$name=${!name:-$(($1 * tokens))}"
}

# ready: stops a script that could not do what it was asked for.
ready() {
  if [ "${MTP-0}" = 1 ] && [ -z "$recipe_has_mtp" ]; then
    fail "MTP=1: this recipe has no MTP flags: leave MTP out, and give SGLang's --speculative-algorithm if need be"
  fi
  # Where SGLang would not load this package it would serve its stock model without a word.
  glm53 doctor
}

# loads PACKAGE MODULE...: stops where Python cannot load a module, with the repair: PACKAGE's, or the libraries of
# the system that Mooncake loads even for TCP. Otherwise the reason would lie deep in the log of one process of many.
loads() {
  local package=$1 module said repair
  shift
  for module; do
    said=$(python -c "import $module" 2>&1) && continue
    case $said in
      *libibverbs* | *librdmacm*) repair="apt-get install libibverbs1 librdmacm1" ;;
      *) repair="pip install $package" ;;
    esac
    fail "$module does not load: ${said##*$'\n'}: $repair"
  done
}

# start MODEL [SGLANG_FLAG...]: the server takes this process's place.
start() {
  local model=$1
  shift
  ready
  # Our model classes; the guard refuses to start when they cannot serve this checkpoint.
  exec python -m sglang.launch_server --model-path "$model" --model-impl glm53 "$@"
}

# serve [MODEL [SGLANG_FLAG...]]: start with `flags`. A flag of the user's comes last, so it wins.
serve() {
  local model=${1:-zai-org/GLM-5.3}
  shift $(($# > 0))
  # GLM-5.3's formats for thinking and tool calls.
  start "$model" "${flags[@]}" --reasoning-parser glm45 --tool-call-parser glm47 "$@"
}

# serve_node NODES [NODE_RANK HEAD_HOST:PORT [MODEL [SGLANG_FLAG...]]]: serve as one of so many nodes.
serve_node() {
  local nodes=$1 rank=${2-} head=${3-}
  [ $# -ge 3 ] || fail "usage: $0 NODE_RANK HEAD_HOST:PORT [MODEL [SGLANG_FLAG...]]"
  [[ $rank =~ ^[0-9]+$ && $rank -lt $nodes ]] || fail "NODE_RANK is $rank: give 0 to $((nodes - 1))"
  [[ $head =~ :[0-9]+$ ]] || fail "HEAD_HOST:PORT is $head: give node 0's address and a free port of it"
  shift 3
  # Node 0 answers HTTP; the others run its schedule.
  flags+=(--nnodes "$nodes" --node-rank "$rank" --dist-init-addr "$head")
  serve "$@"
}

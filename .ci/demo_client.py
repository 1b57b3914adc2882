"""Owns the demo's requests: waits for the server, sends one of each kind, prints what comes back."""

import json
import os
import sys
import time
import urllib.error
import urllib.request

START_SECONDS = 600
ANSWER_SECONDS = 120
PROMPT = "The capital of France is"


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
        return answer.read()


def post(url: str, body: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        return json.load(answer)


def wait_until_healthy(base: str, server: int) -> float:
    """Seconds until /health answered. Exits when the server process is gone or takes over START_SECONDS."""
    start = time.monotonic()
    while (waited := time.monotonic() - start) < START_SECONDS:
        try:
            os.kill(server, 0)
        except ProcessLookupError:
            sys.exit("the server stopped before it was ready")
        try:
            get(f"{base}/health")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(1)
        else:
            return waited
    sys.exit(f"the server was not ready after {START_SECONDS} s")


def main(base: str, server: int) -> None:
    print(f"Ready after {wait_until_healthy(base, server):.0f} s.")

    chat = {"model": "default", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 16}
    answer = post(f"{base}/v1/chat/completions", chat)["choices"][0]
    print(f"\n== An OpenAI chat request\n{json.dumps(answer, ensure_ascii=False)}")
    if answer["finish_reason"] not in ("stop", "length"):
        sys.exit("the chat request did not finish")

    native = {"text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}}
    answer = post(f"{base}/generate", native)
    print(f"\n== A native /generate request\n{json.dumps(answer['text'], ensure_ascii=False)}")
    if answer["meta_info"]["completion_tokens"] != 16:
        sys.exit("/generate did not return the 16 tokens that were asked for")

    states = json.loads(get(f"{base}/server_info"))["internal_states"]
    print("\n== What serves, from /server_info")
    idle = []
    for state in states:
        print(state["glm53"]["table"])
        fusions = state["glm53"]["fusions"]
        idle += [f"{name}: {entry['reason']}" for name, entry in fusions.items() if entry["state"] != "on"]
    if idle:
        sys.exit(f"fusions that are not on: {'; '.join(idle)}")
    print("\nThe weights are random, so the text means nothing; every request went through this package.")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""SGLang's own way to start, without the zygote: ready in time with our model, and stock where not asked."""

from __future__ import annotations

import pytest

from sglang_glm53.testing.server import ServerError, spawn
from tests.e2e.asking import prompt

READY_SECONDS = 60
OURS = "sglang_glm53.runtime.model.Glm53ForCausalLM"


@pytest.mark.parametrize("model_impl", ["glm53", "auto"])
def test_a_stock_start_is_ready_in_time(model_impl, checkpoint, folder, record_property):
    args = ["--model-path", str(checkpoint("default")), "--model-impl", model_impl]
    with spawn(args, folder / f"spawned-{model_impl}.log", {"TMPDIR": str(folder / "tmp")}) as server:
        record_property("startup_seconds", server.startup_seconds)
        print(f"--model-impl {model_impl}: ready after {server.startup_seconds:.1f} s")
        assert len(server.generate(prompt(90))["output_ids"]) == 8
        (state,) = server.server_info()["internal_states"]
        log = server.log_text()
    assert server.startup_seconds < READY_SECONDS
    assert (OURS in log) == (model_impl == "glm53")
    assert ("glm53" in state) == (model_impl == "glm53")


def test_a_zygote_server_is_ready_within_seconds(serve, checkpoint):
    with serve(checkpoint("default")) as server:
        assert server.startup_seconds < READY_SECONDS / 4


def test_a_server_that_fails_shows_its_own_exception(serve, checkpoint):
    with pytest.raises(ServerError, match="RuntimeError: the mutation's reason"):
        serve(checkpoint("default"), mutation="fails_at_start").__enter__()

"""The tiny tokenizer: special tokens, any text to ids and back, and the chat template."""

import json

import pytest

from sglang_glm53.tiny import tokenizer
from sglang_glm53.tiny.checkpoint import TinySpec, write

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Weather in "}, {"type": "text", "text": "Porto?"}],
    },
]
CALL = {"function": {"name": "weather", "arguments": {"city": "Porto", "days": 2}}}
SIGNATURE = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """The tokenizer as transformers, and so SGLang, loads it from a checkpoint's folder."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("tokenizer") / "tiny"
    sizes = {"hidden": 128, "heads": 1, "dense_intermediate": 8, "moe_intermediate": 8, "index_heads": 8}
    write(TinySpec(layers=4, experts=2, **sizes), folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    "text",
    [
        "plain words",
        "  two  spaces\tand tabs\r\n\n",
        "naïve façade Straße Ελληνικά",
        "今天天气 ありがとう 안녕하세요",
        "\U0001f600\U0001f468‍\U0001f469‍\U0001f467 é",
        "\x00\x07\x7f\ufeff\ufffd",
        "<think> <|nothing|> [gMASK",
        "",
    ],
)
def test_any_text_comes_back(loaded, text):
    ids = loaded(text)["input_ids"]
    assert loaded.decode(ids) == text
    assert all(0 <= token < 1024 for token in ids)


def test_every_byte_has_a_token_and_the_default_vocabulary_is_full(loaded):
    assert len(loaded) == TinySpec().vocab
    assert tokenizer.build(tokenizer.SMALLEST_VOCAB).get_vocab_size() == tokenizer.SMALLEST_VOCAB == 292


def test_a_larger_vocabulary_leaves_ids_over():
    assert 1024 < tokenizer.build(10240).get_vocab_size() < 10240


@pytest.mark.parametrize("token", [*tokenizer.CONTROL, *tokenizer.MARKUP])
def test_a_special_token_is_one_id(loaded, token):
    (only,) = loaded(token)["input_ids"]
    assert loaded.convert_ids_to_tokens(only) == token
    assert loaded.decode([only], skip_special_tokens=True) == ("" if token in tokenizer.CONTROL else token)


def test_the_special_tokens_follow_the_text_tokens_in_the_published_order(loaded):
    # Published ids: <|endoftext|> 154820, <|user|> +7, <|observation|> +9, <think> +21, <tool_call> +23.
    tokens = [tokenizer.END, tokenizer.USER, tokenizer.OBSERVATION, "<think>", "<tool_call>"]
    ids = loaded.convert_tokens_to_ids(tokens)
    assert [one - ids[0] for one in ids] == [0, 7, 9, 21, 23]
    assert ids[0] == 1024 - 36
    assert loaded.eos_token_id == loaded.pad_token_id == ids[0]


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({}, ""),
        ({"add_generation_prompt": True}, "<|assistant|><think>"),
        ({"add_generation_prompt": True, "enable_thinking": True}, "<|assistant|><think>"),
        ({"add_generation_prompt": True, "enable_thinking": False}, "<|assistant|></think>"),
    ],
)
def test_the_chat_template_opens_a_turn(loaded, options, end):
    text = loaded.apply_chat_template(MESSAGES, tokenize=False, **options)
    assert text == "[gMASK]<sop><|system|>Be brief.<|user|>Weather in Porto?" + end


def test_the_chat_template_renders_reasoning_calls_and_results(loaded):
    turns = [
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "", "reasoning_content": "Ask twice.", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "sunny"},
        {"role": "tool", "content": "windy"},
        {"role": "assistant", "content": "Fine."},
    ]
    call = (
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Porto</arg_value>"
        "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>"
    )
    results = "<tool_response>sunny</tool_response><tool_response>windy</tool_response>"
    assert loaded.apply_chat_template(turns, tokenize=False) == (
        f"[gMASK]<sop><|user|>And?<|assistant|><think>Ask twice.</think>{call}{call}"
        f"<|observation|>{results}<|assistant|></think>Fine."
    )


def test_the_chat_template_lists_tools(loaded):
    text = loaded.apply_chat_template([{"role": "user", "content": "hi"}], tools=[SIGNATURE], tokenize=False)
    start, rest = text.split("<tools>\n")
    listed, end = rest.split("\n</tools>\n")
    assert start.startswith("[gMASK]<sop><|system|>\n")
    assert json.loads(listed) == SIGNATURE["function"]
    assert end.endswith("</tool_call><|user|>hi")


def test_the_prompt_is_tokenised_with_its_special_tokens(loaded):
    ids = loaded.apply_chat_template([{"role": "user", "content": "a"}], add_generation_prompt=True)[
        "input_ids"
    ]
    names = loaded.convert_ids_to_tokens(ids)
    assert names == ["[gMASK]", "<sop>", "<|user|>", "a", "<|assistant|>", "<think>"]

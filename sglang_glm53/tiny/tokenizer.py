"""Owns the tiny checkpoint's tokenizer: GLM's special tokens, a byte-level BPE, and a chat template."""

from __future__ import annotations

from typing import Any

BYTES = 256
END, USER, OBSERVATION = "<|endoftext|>", "<|user|>", "<|observation|>"
# In the published tokenizer's order, which puts them after the text tokens. The first group is control: it
# never shows in decoded text. The second is markup that parsers of reasoning and tool calls need to see.
CONTROL = (
    END,
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    USER,
    "<|assistant|>",
    OBSERVATION,
    *(
        f"<|{edge}_of_{what}|>"
        for what in ("image", "video", "audio", "transcription")
        for edge in ("begin", "end")
    ),
    "<|code_prefix|>",
    "<|code_middle|>",
    "<|code_suffix|>",
)
MARKUP = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "/nothink",
    "<|begin_of_box|>",
    "<|end_of_box|>",
    "<|image|>",
    "<|video|>",
)
SMALLEST_VOCAB = BYTES + len(CONTROL) + len(MARKUP)

# What the merges are learnt from. Many different words, so that they suffice for a vocabulary of 1024.
TEXT = """
A harbour pilot climbs aboard every large vessel before it enters the narrow channel. She knows each sandbank,
the direction of currents at half tide, and which lights are hidden by new buildings. Captains remain legally
responsible, yet they usually follow her advice without argument. Yesterday morning fog covered everything
between the lighthouse and the northern breakwater; three ferries waited outside while a tanker turned slowly.
Mountain gardeners learn patience. Soil warms late, frost returns in June, and hungry deer visit whenever
fences are left open. Beans, cabbages, potatoes and rhubarb grow well; tomatoes rarely ripen unless somebody
builds a greenhouse against the southern wall. In September neighbours exchange seeds, jars of plum jam and
stories about unusual weather. What would happen if rain stopped for eighty days? Nobody could remember.
The museum keeps twelve mechanical calculators, seven of which still work. Visitors may multiply 384 by 25,
divide 1000 by 16, or simply listen to the brass wheels. Young people often ask how programmers managed with
such machines; an old engineer explains punched cards, drum memory and the long nights spent hunting errors.
def area(width: float, height: float) -> float: return width * height
for index, value in enumerate(numbers): print(f"{index}: {value}")
SELECT name, price FROM products WHERE quantity > 10 ORDER BY price DESC;
{"city": "Porto", "temperature": 21.5, "windy": true, "tags": ["coast", "bridge"]}
Der Zug nach Leipzig verlässt den Bahnhof um zwölf Uhr. Le marché ouvre à huit heures près de l'église.
El niño pequeño dibuja árboles y montañas. 今天天气很好。我们去公园散步。你好世界。请问火车站在哪里。
"""

CHAT_TEMPLATE = """\
[gMASK]<sop>
{%- macro text_of(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content is iterable -%}
{%- for part in content if part.type == "text" -%}{{ part.text }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- if tools -%}
<|system|>
The functions that may be called, one JSON signature in each line:
<tools>
{% for tool in tools -%}
{{ (tool.function if tool.function is defined else tool) | tojson(ensure_ascii=False) }}
{% endfor -%}
</tools>
A call looks like this: <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == "tool" -%}
{%- if loop.first or messages[loop.index0 - 1].role != "tool" -%}<|observation|>{%- endif -%}
<tool_response>{{ text_of(message.content) }}</tool_response>
{%- elif message.role == "assistant" -%}
<|assistant|>
{%- if message.reasoning_content is string -%}<think>{{ message.reasoning_content }}{%- endif -%}
</think>{{ text_of(message.content) }}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function if call.function is defined else call -%}
<tool_call>{{ function.name }}
{%- for key, value in function.arguments.items() -%}
<arg_key>{{ key }}</arg_key><arg_value>
{{- value if value is string else value | tojson(ensure_ascii=False) -}}
</arg_value>
{%- endfor -%}
</tool_call>
{%- endfor -%}
{%- else -%}
<|{{ message.role }}|>{{ text_of(message.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|assistant|>
{%- if enable_thinking is defined and not enable_thinking -%}</think>{%- else -%}<think>{%- endif -%}
{%- endif -%}
"""


def build(vocab: int) -> Any:
    """A tokenizers.Tokenizer with at most vocab tokens, any UTF-8 text to ids and back.

    vocab: at least SMALLEST_VOCAB. The text above yields 732 merges at least; ids that a larger vocabulary
    leaves over stand for nothing, as the last ones of the published checkpoint do.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=vocab - len(CONTROL) - len(MARKUP),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in CONTROL])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in MARKUP])
    return tokenizer


def settings(max_positions: int) -> dict[str, Any]:
    """tokenizer_config.json, as the published checkpoint has it. max_positions: tokens."""
    return {
        "tokenizer_class": "TokenizersBackend",
        "backend": "tokenizers",
        "eos_token": END,
        "pad_token": END,
        "extra_special_tokens": list(CONTROL),
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
    }

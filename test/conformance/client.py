"""What OpenAI's Python client makes of the gateway: one JSON line a check, with what it raised where it failed.

Base URL and key come in OPENAI_BASE_URL and OPENAI_API_KEY, as users have them.
"""

import asyncio
import json
import os
import traceback
from typing import Literal

import openai
from pydantic import BaseModel

client = openai.OpenAI(max_retries=0)
MESSAGES = [{"role": "user", "content": "Tell me a story."}]
CHAT = {"model": "tiny", "messages": MESSAGES, "max_completion_tokens": 12, "seed": 7}
checks = []


def check(function):
    checks.append(function)
    return function


@check
def models():
    names = sorted(model.id for model in client.models.list())
    assert names == ["foreign", "gpt-tiny", "org/thinker", "tiny", "tools"], names
    assert client.models.retrieve("org/thinker").id == "org/thinker"


@check
def chat_completion():
    answer = client.chat.completions.create(**CHAT, n=2, logprobs=True, top_logprobs=2, user="me", metadata={"a": "b"})
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.completion_tokens == 24
    assert answer._request_id.startswith("req_")
    for choice in answer.choices:
        raw = bytes(byte for token in choice.logprobs.content for byte in token.bytes)
        assert raw.decode("utf-8", "replace") == choice.message.content
        assert choice.finish_reason == "length"
    assert not answer.model_extra, answer.model_extra


@check
def stream():
    whole = client.chat.completions.create(**CHAT).choices[0].message.content
    text, usages, finishes = "", [], []
    for chunk in client.chat.completions.create(**CHAT, stream=True):
        assert "usage" not in chunk.model_fields_set
        assert not chunk.model_extra, chunk.model_extra
        text += chunk.choices[0].delta.content or ""
        finishes.append(chunk.choices[0].finish_reason)
    assert text == whole
    assert [finish for finish in finishes if finish] == ["length"]
    for chunk in client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}):
        usages.append(chunk.usage)
    assert usages[-1].completion_tokens == 12 and not any(usages[:-1])


@check
def stream_logprobs():
    def read(body):
        chunks = list(client.chat.completions.create(**body, stream=True))
        choices = [chunk.choices[0] for chunk in chunks]
        return {
            index: (
                "".join(one.delta.content or "" for one in choices if one.index == index),
                [token for one in choices if one.index == index and one.logprobs for token in one.logprobs.content],
            )
            for index in {one.index for one in choices}
        }

    body = {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 3}
    whole = client.chat.completions.create(**body)
    streamed = read(body)
    assert sorted(streamed) == [0, 1]
    for choice in whole.choices:
        text, tokens = streamed[choice.index]
        assert text == choice.message.content
        # Token by token what the whole answer says: text, bytes, logarithm, and the alternatives with theirs.
        assert tokens == choice.logprobs.content and len(tokens) == 12, tokens
        for token in tokens:
            assert len(token.top_logprobs) == 3
            ranked = [other.logprob for other in token.top_logprobs]
            assert ranked == sorted(ranked, reverse=True) and token.logprob <= 0
    # Without alternatives their list is empty; without logprobs there are none.
    bare = [tokens for _, tokens in read({**CHAT, "logprobs": True}).values()]
    assert [len(tokens) for tokens in bare] == [12] and not any(token.top_logprobs for token in bare[0])
    assert [tokens for _, tokens in read(CHAT).values()] == [[]]
    # An answer is cut off by its stop string, and so are its tokens.
    stop = whole.choices[0].message.content[6:9]
    stopped = client.chat.completions.create(**{**body, "n": 1}, stop=stop).choices[0]
    assert read({**body, "n": 1, "stop": stop})[0] == (stopped.message.content, stopped.logprobs.content)


@check
def completions_logprobs_stream():
    body = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 8, "seed": 3, "logprobs": 2}
    whole = client.completions.create(**body).choices[0]
    tokens, logprobs, offsets, tops = [], [], [], []
    for chunk in client.completions.create(**body, stream=True):
        of = chunk.choices[0].logprobs
        if of is None:
            continue
        tokens += of.tokens
        logprobs += of.token_logprobs
        offsets += of.text_offset
        tops += of.top_logprobs
    assert (tokens, logprobs, offsets, tops) == (
        whole.logprobs.tokens,
        whole.logprobs.token_logprobs,
        whole.logprobs.text_offset,
        whole.logprobs.top_logprobs,
    )
    assert len(tokens) == 8 and all(len(top) >= 2 for top in tops)


@check
def stream_helper():
    # The helper takes an answer that was cut off at its length for a failure: this one ends at a stop string.
    whole = client.chat.completions.create(**CHAT).choices[0].message.content
    with client.chat.completions.stream(**CHAT, stop=whole[9:12]) as events:
        final = events.get_final_completion()
    assert final.choices[0].finish_reason == "stop"
    assert final.choices[0].message.content == whole[: whole.index(whole[9:12])]


@check
def stream_left_early():
    with client.chat.completions.create(**{**CHAT, "max_completion_tokens": 900}, stream=True) as chunks:
        for _ in zip(range(3), chunks):
            pass
    assert client.chat.completions.create(**CHAT).usage.completion_tokens == 12


@check
def structured_output():
    class Person(BaseModel):
        name: Literal["ann", "bob"]
        grown: bool

    parsed = client.chat.completions.parse(**{**CHAT, "max_completion_tokens": 400}, response_format=Person)
    assert isinstance(parsed.choices[0].message.parsed, Person)


@check
def tools():
    tool = {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Bern", "Oslo"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    body = {**CHAT, "model": "tools", "max_completion_tokens": 200, "tools": [tool], "tool_choice": "required"}
    choice = client.chat.completions.create(**body).choices[0]
    assert choice.finish_reason == "tool_calls"
    arguments = [call.function.arguments for call in choice.message.tool_calls]
    assert all(json.loads(text)["city"] in ("Bern", "Oslo") for text in arguments)
    streamed = {}
    for chunk in client.chat.completions.create(**body, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            streamed[call.index] = streamed.get(call.index, "") + call.function.arguments
    assert list(streamed.values()) == arguments


@check
def messages_go_back():
    class Person(BaseModel):
        name: Literal["ann", "bob"]

    class Weather(BaseModel):
        city: Literal["Bern", "Oslo"]

    long = {**CHAT, "max_completion_tokens": 200}
    parsed = client.chat.completions.parse(**long, response_format=Person).choices[0].message
    with client.chat.completions.stream(**long, response_format=Person) as events:
        streamed = events.get_final_completion().choices[0].message
    for message in (parsed, streamed):
        assert isinstance(message.parsed, Person)
        again = client.chat.completions.create(**{**CHAT, "messages": [*MESSAGES, message, *MESSAGES]})
        assert again.usage.completion_tokens == 12
    tools = [openai.pydantic_function_tool(Weather, name="weather")]
    asked = {**long, "model": "tools", "tools": tools}
    called = client.chat.completions.parse(**asked, tool_choice="required").choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": call.function.parsed_arguments.city}
        for call in called.tool_calls
    ]
    messages = [*MESSAGES, called, *results]
    last = client.chat.completions.create(**{**asked, "messages": messages, "max_completion_tokens": 12}, tool_choice="none")
    assert last.choices[0].message.role == "assistant"


@check
def image():
    url = "data:image/png;base64,iVBORw0KGgo="
    content = [{"type": "image_url", "image_url": {"url": url}}]
    try:
        client.chat.completions.create(**{**CHAT, "messages": [{"role": "user", "content": content}]})
    except openai.BadRequestError as error:
        assert "image" in str(error), error
    else:
        raise AssertionError("no model of the tests sees")


@check
def responses():
    ask = {"model": "tiny", "input": "Tell me a story.", "max_output_tokens": 12, "temperature": 0}
    whole = client.responses.create(**ask)
    assert whole.status == "incomplete" and whole.usage.output_tokens == 12
    with client.responses.stream(**ask) as events:
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text

    class Digit(BaseModel):
        digit: Literal["1", "2"]

    parsed = client.responses.parse(**{**ask, "max_output_tokens": 100}, text_format=Digit)
    assert parsed.output_parsed.digit in "12"


@check
def reasoning():
    body = {**CHAT, "model": "org/thinker", "max_completion_tokens": 40, "extra_body": {"reasoning": {"max_tokens": 8}}}
    answer = client.chat.completions.create(**body)
    assert answer.choices[0].message.reasoning_content
    assert answer.choices[0].message.content
    assert 8 < answer.usage.completion_tokens_details.reasoning_tokens < 25


@check
def completions():
    body = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 8, "seed": 3}
    answer = client.completions.create(**body, echo=True, logprobs=1)
    assert answer.choices[0].text.startswith("Once upon a time")
    assert "".join(answer.choices[0].logprobs.tokens).endswith(answer.choices[0].text[-4:])
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**body, stream=True))
    assert "Once upon a time" + streamed == answer.choices[0].text


@check
def embeddings():
    answer = client.embeddings.create(model="tiny", input=["one", "two"])
    floats = client.embeddings.create(model="tiny", input=["one", "two"], encoding_format="float")
    for one, other in zip(answer.data, floats.data):
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding)) < 1e-6
    tokens = client.embeddings.create(model="tiny", input=[[72, 73], [74]])
    assert tokens.usage.prompt_tokens == 3


@check
def errors():
    def raised(kind, ask):
        try:
            ask()
        except kind as error:
            return error
        raise AssertionError(f"{kind.__name__} was not raised")

    create = client.chat.completions.create
    unknown = raised(openai.NotFoundError, lambda: create(**{**CHAT, "model": "nobody"}))
    assert unknown.code == "model_not_found" and unknown.status_code == 404 and unknown.request_id
    wrong = raised(openai.BadRequestError, lambda: create(**CHAT, top_p=7))
    assert wrong.param == "top_p" and wrong.type == "invalid_request_error"
    stranger = client.with_options(api_key="hsk-wrong")
    refused = raised(openai.AuthenticationError, lambda: stranger.models.list())
    assert refused.code == "invalid_api_key"
    envelope = json.dumps({"error": {"message": "m", "type": "t", "param": None, "code": "c"}})
    for status, kind in ((429, openai.RateLimitError), (500, openai.InternalServerError), (422, openai.UnprocessableEntityError)):
        body = {"status": status, "answer": envelope}
        failed = raised(kind, lambda: create(model="foreign", messages=MESSAGES, extra_body=body))
        assert failed.code == "c"


@check
def asynchronous():
    async def ask():
        async with openai.AsyncOpenAI(max_retries=0) as many:
            answers = await asyncio.gather(*(many.chat.completions.create(**CHAT) for _ in range(6)))
        return {answer.choices[0].message.content for answer in answers}

    assert len(asyncio.run(ask())) == 1


for function in checks:
    try:
        function()
        print(json.dumps({"name": function.__name__, "failed": None}), flush=True)
    except Exception:
        print(json.dumps({"name": function.__name__, "failed": traceback.format_exc()}), flush=True)
print(json.dumps({"version": openai.__version__, "base_url": os.environ["OPENAI_BASE_URL"]}), flush=True)

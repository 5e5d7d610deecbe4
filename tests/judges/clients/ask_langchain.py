"""LangChain asks a server for all that it can: `ask_langchain.py <url> <model> <model that calls functions>`.

With `lose` before them it streams a long answer, says so, and tells by which error it heard of a node's loss.
"""

import sys
from typing import Any

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

lose, url, model, speaks = sys.argv[1] == "lose", *sys.argv[-3:]
SERVER: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}


@tool
def get_weather(city: str) -> str:
    """Tell how the weather is."""
    return f"sunny in {city}"


if lose:
    endless = ChatOpenAI(model=model, max_tokens=4000, logit_bias={2: -100}, **SERVER)  # the token that ends an answer
    try:
        for number, _ in enumerate(endless.stream("Tell a story.")):
            if number == 3:
                print("streaming", flush=True)
    except Exception as error:  # noqa: BLE001 (which it is, is the answer)
        print(type(error).__name__)
    else:
        print("a silent end")
    sys.exit()

chat = ChatOpenAI(model=model, max_tokens=16, temperature=0, **SERVER)
whole = chat.invoke("What is the capital of France?")
assert "Paris" in whole.content
assert whole.usage_metadata["total_tokens"] > 0
pieces = list(chat.stream("What is the capital of France?"))
assert "".join(piece.content for piece in pieces) == whole.content
assert len(chat.batch(["Hello?"] * 3)) == 3
assert OpenAI(model=model, max_tokens=4, **SERVER).invoke("Paris is the")

try:
    chat.bind_tools([get_weather]).invoke("How is the weather?")
except openai.BadRequestError as error:
    assert error.param == "tools"
else:
    raise AssertionError("a model that was taught no functions took one")

speaking = ChatOpenAI(model=speaks, max_tokens=100, **SERVER).bind_tools([get_weather])
asked: list[Any] = [HumanMessage("How is the weather in Paris?")]
message = speaking.invoke(asked)
[call] = message.tool_calls
assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
streamed = None
for piece in speaking.stream(asked):
    streamed = piece if streamed is None else streamed + piece
assert [(one["name"], one["args"]) for one in streamed.tool_calls] == [("get_weather", {"city": "Paris"})]
result = get_weather.invoke(call)
assert isinstance(result, ToolMessage)
assert speaking.invoke([*asked, message, result]).content == "Sunny, 21 degrees."
print("done")

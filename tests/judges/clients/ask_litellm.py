"""litellm asks a server for all that it can: `ask_litellm.py <url> <model> <model that calls functions>`.

With `lose` before them it streams a long answer, says so, and tells by which error it heard of a node's loss.
"""

import json
import sys
import time
from typing import Any

import litellm

lose, url, model, speaks = sys.argv[1] == "lose", *sys.argv[-3:]
SERVER: dict[str, Any] = {"api_base": f"{url}/v1", "api_key": "none", "max_retries": 0}
PARIS = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def ask(messages: list[Any] = PARIS, name: str = model, **options: Any) -> Any:
    return litellm.completion(model=f"openai/{name}", messages=messages, **SERVER | options)


def refused(kind: type[Exception], **options: Any) -> None:
    try:
        ask(**options)
    except kind:
        return
    raise AssertionError(f"{options} was not refused as {kind.__name__}")


if lose:
    endless = ask(max_tokens=4000, logit_bias={"2": -100}, stream=True)  # the token that ends an answer
    try:
        for number, _ in enumerate(endless):
            if number == 3:
                print("streaming", flush=True)
    except Exception as error:  # noqa: BLE001 (which it is, is the answer)
        print(type(error).__name__)
    else:
        print("a silent end")
    sys.exit()

whole = ask(max_tokens=16)
assert "Paris" in whole.choices[0].message.content
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
chunks = list(ask(max_tokens=16, stream=True, stream_options={"include_usage": True}))
text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
assert text == whole.choices[0].message.content
text = litellm.text_completion(model=f"text-completion-openai/{model}", prompt="Paris is the", max_tokens=4, **SERVER)
assert text.choices[0].text

refused(litellm.NotFoundError, name="org/none")
refused(litellm.BadRequestError, temperature=9)
refused(litellm.BadRequestError, tools=[TOOL])
refused(litellm.ContextWindowExceededError, messages=[{"role": "user", "content": "word " * 9000}])

weather: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
message = ask(weather, speaks, tools=[TOOL], max_tokens=100).choices[0].message
[call] = message.tool_calls
assert json.loads(call.function.arguments) == {"city": "Paris"}
result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
answer = ask([*weather, message.model_dump(), result], speaks, tools=[TOOL], max_tokens=100)
assert answer.choices[0].message.content == "Sunny, 21 degrees."

body = {"model": model, "messages": PARIS, "max_tokens": 4}
line = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": body}
server = {"custom_llm_provider": "openai", "api_base": f"{url}/v1", "api_key": "none"}
file = litellm.create_file(file=("lines.jsonl", json.dumps(line).encode()), purpose="batch", **server)
batch = litellm.create_batch("24h", "/v1/chat/completions", file.id, **server)
end = time.monotonic() + 90
while batch.status not in ("completed", "failed", "expired") and time.monotonic() < end:
    time.sleep(0.5)
    batch = litellm.retrieve_batch(batch.id, **server)
assert batch.status == "completed", batch
content = litellm.file_content(batch.output_file_id, **server).content
assert json.loads(content)["custom_id"] == "one"
print("done")

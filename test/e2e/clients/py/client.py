# Uses agents by the clients of others, each with a tool of its own, and prints
# what came of it as one JSON object.
import asyncio
import json
import sys

import agents
import anthropic
import openai
import pydantic
import pydantic_ai
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

url, key = sys.argv[1:3]
question = "How is the weather in Bonn?"
messages = [{"role": "user", "content": question}]
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
asked = []
out = {}


def get_weather(city: str) -> str:
    """Tells the weather."""
    asked.append(city)
    return "rain"


class Weather(pydantic.BaseModel):
    city: str


client = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
functions = [{"type": "function", "function": {"name": "get_weather", "parameters": schema}}]
first = client.chat.completions.create(model="coder", messages=messages, tools=functions).choices[0].message
call = first.tool_calls[0]
second = client.chat.completions.create(model="coder", tools=functions, messages=[
    *messages, first, {"role": "tool", "tool_call_id": call.id, "content": get_weather(**json.loads(call.function.arguments))}])
out["openai_tools"] = second.choices[0].message.content
out["openai_parse"] = client.chat.completions.parse(model="plain", messages=messages, response_format=Weather).choices[0].message.parsed.city
with client.chat.completions.stream(model="coder", messages=messages, tools=functions) as stream:
    stream.until_done()
    out["openai_stream"] = stream.get_final_completion().choices[0].message.tool_calls[0].function.arguments
tool = {"type": "function", "name": "get_weather", "parameters": schema, "strict": False}
asks = client.responses.create(model="coder", input=question, tools=[tool])
outputs = [{"type": "function_call_output", "call_id": o.call_id, "output": get_weather(**json.loads(o.arguments))} for o in asks.output if o.type == "function_call"]
out["responses_tools"] = client.responses.create(model="coder", input=outputs, tools=[tool], previous_response_id=asks.id).output_text
out["responses_parse"] = client.responses.parse(model="plain", input=question, text_format=Weather).output_parsed.city
with client.responses.stream(model="coder", input=question, tools=[tool]) as stream:
    out["responses_stream"] = next(o for o in stream.get_final_response().output if o.type == "function_call").arguments
pdf = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjcK"}
out["responses_pdf"] = client.responses.create(model="plain", input=[{"role": "user", "content": [{"type": "input_text", "text": "Read."}, pdf]}]).output_text
out["embeddings"] = [len(d.embedding) for d in client.embeddings.create(model="built-in:words-1", input=["rain in Bonn", "sun"]).data]
try:
    openai.OpenAI(base_url=url + "/v1", api_key="wrong", max_retries=0).models.list()
except openai.AuthenticationError as e:
    out["openai_key"] = e.code

claude = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
tools = [{"name": "get_weather", "input_schema": schema}]
with claude.messages.stream(model="coder", max_tokens=100, messages=messages, tools=tools) as stream:
    message = stream.get_final_message()
use = next(b for b in message.content if b.type == "tool_use")
answer = claude.messages.create(model="coder", max_tokens=100, tools=tools, messages=[
    *messages, {"role": "assistant", "content": message.content},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": get_weather(**use.input)}]}])
out["anthropic_tools"] = answer.content[0].text

agents.set_tracing_disabled(True)
worker = agents.Agent(
    name="worker", tools=[agents.function_tool(get_weather)],
    model=agents.OpenAIChatCompletionsModel("coder", openai.AsyncOpenAI(base_url=url + "/v1", api_key=key)))
out["openai_agents"] = asyncio.run(agents.Runner.run(worker, question)).final_output
worker.model = agents.OpenAIResponsesModel("coder", openai.AsyncOpenAI(base_url=url + "/v1", api_key=key))
out["openai_agents_responses"] = asyncio.run(agents.Runner.run(worker, question)).final_output

for name, model in {
    "pydantic_ai_openai": OpenAIChatModel("coder", provider=OpenAIProvider(base_url=url + "/v1", api_key=key)),
    "pydantic_ai_responses": OpenAIResponsesModel("coder", provider=OpenAIProvider(base_url=url + "/v1", api_key=key)),
    "pydantic_ai_anthropic": AnthropicModel("coder", provider=AnthropicProvider(base_url=url, api_key=key)),
}.items():
    out[name] = pydantic_ai.Agent(model, tools=[get_weather]).run_sync(question).output

out["asked"] = asked
print(json.dumps(out))

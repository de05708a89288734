# Uses agents by frameworks of others, each with a tool of its own, and prints what
# came of it as one JSON object.
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # fetch nothing
os.environ["LANGCHAIN_TRACING_V2"] = "false"

import instructor
import litellm
import openai
import pydantic
import smolagents
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

url, key = sys.argv[1:3]
question = "How is the weather in Bonn?"
messages = [{"role": "user", "content": question}]
asked = []
out = {}


def get_weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: where
    """
    asked.append(city)
    return "rain"


class Weather(pydantic.BaseModel):
    city: str


settings = {"base_url": url + "/v1", "api_key": key, "max_retries": 0}
weather = tool(get_weather)
for name, options in {"langchain": {}, "langchain_responses": {"use_responses_api": True, "use_previous_response_id": True}}.items():
    model = ChatOpenAI(model="coder", **settings, **options).bind_tools([weather])
    first = model.invoke(question)
    second = model.invoke([("user", question), first, *[weather.invoke(c) for c in first.tool_calls]])
    out[name] = second.text
chunks = ChatOpenAI(model="coder", **settings).bind_tools([weather]).stream(question)
out["langchain_stream"] = "".join(c.text for c in chunks)
out["langchain_typed"] = ChatOpenAI(model="plain", **settings).with_structured_output(Weather).invoke(question).city
vectors = OpenAIEmbeddings(model="built-in:words-1", check_embedding_ctx_length=False, **settings).embed_documents(["rain in Bonn", "sun"])
out["langchain_embeddings"] = [len(v) for v in vectors]

client = instructor.from_openai(openai.OpenAI(**settings))
out["instructor"] = client.chat.completions.create(model="plain", messages=messages, response_model=Weather).city

litellm.suppress_debug_info = True
site = {"api_base": url + "/v1", "api_key": key}
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
functions = [{"type": "function", "function": {"name": "get_weather", "parameters": schema}}]
answer = litellm.completion(model="openai/coder", messages=messages, tools=functions, **site).choices[0].message
results = [{"role": "tool", "tool_call_id": c.id, "content": get_weather(**json.loads(c.function.arguments))} for c in answer.tool_calls]
out["litellm"] = litellm.completion(model="openai/coder", messages=[*messages, answer.model_dump(), *results], tools=functions, **site).choices[0].message.content
functions = [{"type": "function", "name": "get_weather", "parameters": schema}]
answer = litellm.responses(model="openai/coder", input=question, tools=functions, **site)
results = [{"type": "function_call_output", "call_id": o.call_id, "output": get_weather(**json.loads(o.arguments))} for o in answer.output if o.type == "function_call"]
answer = litellm.responses(model="openai/coder", input=results, tools=functions, previous_response_id=answer.id, **site)
out["litellm_responses"] = "".join(c.text for o in answer.output for c in o.content)

agent = smolagents.ToolCallingAgent(
    tools=[smolagents.tool(get_weather)], model=smolagents.OpenAIServerModel("coder", api_base=url + "/v1", api_key=key), verbosity_level=0)
out["smolagents"] = agent.run(question)

out["asked"] = asked
print(json.dumps(out))

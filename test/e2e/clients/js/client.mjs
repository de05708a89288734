// Uses agents by the clients of others, each with a tool of its own, and
// prints what came of it as one JSON object.
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [url, key] = process.argv.slice(2);
const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const question = [{ role: "user", content: "How is the weather in Bonn?" }];
const asked = [];
const weather = ({ city }) => { asked.push(city); return "rain"; };
const out = {};

const openai = new OpenAI({ baseURL: url + "/v1", apiKey: key, maxRetries: 0 });
const functions = [{ type: "function", function: { name: "get_weather", description: "Tells the weather.", parameters: city } }];
out.models = (await openai.models.list()).data.map((m) => m.id);
out.model = (await openai.models.retrieve("coder")).id;
const runner = openai.chat.completions.runTools({
  model: "coder", messages: question,
  tools: [{ type: "function", function: { name: "get_weather", parameters: city, parse: JSON.parse, function: weather } }],
});
out.openaiTools = await runner.finalContent();
const streamed = openai.chat.completions.stream({ model: "coder", messages: question, tools: functions, stream_options: { include_usage: true } });
const whole = await streamed.finalChatCompletion();
out.openaiStream = whole.choices[0].message.tool_calls.map((c) => c.function.name + c.function.arguments).join();
out.openaiUsage = whole.usage.total_tokens > 0;
out.openaiParse = JSON.parse((await openai.chat.completions.create({
  model: "plain", messages: question, response_format: { type: "json_schema", json_schema: { name: "weather", strict: true, schema: { ...city, additionalProperties: false } } },
})).choices[0].message.content);
for (const [name, options] of Object.entries({ refused: { seed: 1 }, missing: { model: "nobody" } })) {
  await openai.chat.completions.create({ model: "coder", messages: question, ...options }).catch((e) => { out["openai_" + name] = `${e.status} ${e.code} ${e.type}`; });
}
await new OpenAI({ baseURL: url + "/v1", apiKey: "wrong", maxRetries: 0 }).models.list().catch((e) => { out.openai_key = `${e.constructor.name} ${e.code}`; });

const said = { model: "coder", input: "How is the weather in Bonn?", tools: [{ type: "function", name: "get_weather", parameters: city, strict: false }] };
const asks = await openai.responses.create(said);
const outputs = asks.output.filter((o) => o.type === "function_call").map((o) => ({ type: "function_call_output", call_id: o.call_id, output: weather(JSON.parse(o.arguments)) }));
const told = await openai.responses.create({ ...said, input: outputs, previous_response_id: asks.id });
out.responsesTools = told.output_text;
out.responsesItems = (await openai.responses.create({ ...said, store: false, input: [{ role: "user", content: said.input }, ...asks.output, ...outputs] })).output_text;
const events = [];
const following = openai.responses.stream(said).on("event", (e) => { if (events.at(-1) !== e.type) events.push(e.type); });
const finished = await following.finalResponse();
out.responsesStream = finished.output.map((o) => o.type === "message" ? o.content[0].text : o.name + o.arguments);
out.responsesEvents = events;
out.responsesAgain = (await openai.responses.stream({ response_id: finished.id, starting_after: 3 }).finalResponse()).id === finished.id;
out.responsesParse = (await openai.responses.parse({ model: "plain", input: "Where?", text: { format: zodTextFormat(z.object({ city: z.string() }), "place") } })).output_parsed;
out.responsesGet = (await openai.responses.retrieve(told.id)).output_text;
await openai.responses.delete(told.id);
await openai.responses.retrieve(told.id).catch((e) => { out.responsesGone = e.status; });
const slow = await openai.responses.create({ model: "plain", input: "Wait.", background: true });
out.responsesCancel = [slow.status, (await openai.responses.cancel(slow.id)).status];
await openai.responses.create({ model: "coder", input: "x", truncation: "auto" }).catch((e) => { out.responsesRefused = `${e.status} ${e.param}`; });
out.embeddings = (await openai.embeddings.create({ model: out.models.at(-1), input: ["rain in Bonn", "sun"] })).data.map((d) => d.embedding.length);

const anthropic = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
const tools = [{ name: "get_weather", description: "Tells the weather.", input_schema: city }];
const first = await anthropic.messages.create({ model: "coder", max_tokens: 100, messages: question, tools });
const call = first.content.find((b) => b.type === "tool_use");
const results = [{ type: "tool_result", tool_use_id: call.id, content: weather(call.input) }];
const second = await anthropic.messages.create({
  model: "coder", max_tokens: 100, tools, messages: [...question, { role: "assistant", content: first.content }, { role: "user", content: results }],
});
out.anthropicTools = second.content.map((b) => b.text).join("");
const message = await anthropic.messages.stream({ model: "coder", max_tokens: 100, messages: question, tools }).finalMessage();
out.anthropicStream = message.content.filter((b) => b.type === "tool_use").map((b) => b.name + JSON.stringify(b.input)).join();
out.anthropicStop = message.stop_reason;
out.anthropicCount = (await anthropic.messages.countTokens({ model: "coder", messages: question })).input_tokens > 0;
await anthropic.messages.create({ model: "nobody", max_tokens: 1, messages: question }).catch((e) => { out.anthropic_missing = `${e.status} ${e.constructor.name}`; });

const compatible = createOpenAICompatible({ name: "engi", baseURL: url + "/v1", apiKey: key, includeUsage: true });
const set = { get_weather: tool({ description: "Tells the weather.", inputSchema: jsonSchema(city), execute: async (input) => weather(input) }) };
out.aiText = (await generateText({ model: compatible("coder"), messages: question, tools: set, stopWhen: stepCountIs(5) })).text;
const text = streamText({ model: compatible("coder"), messages: question, tools: set, stopWhen: stepCountIs(5) });
out.aiStream = "";
for await (const part of text.textStream) out.aiStream += part;

const responses = createOpenAI({ baseURL: url + "/v1", apiKey: key });
out.aiResponses = (await generateText({ model: responses("coder"), messages: question, tools: set, stopWhen: stepCountIs(5) })).text;
const spoken = streamText({ model: responses("coder"), messages: question, tools: set, stopWhen: stepCountIs(5) });
out.aiResponsesStream = "";
for await (const part of spoken.textStream) out.aiResponsesStream += part;

out.asked = asked;
console.log(JSON.stringify(out));

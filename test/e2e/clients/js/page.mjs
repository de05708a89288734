// Reads the streams of the page of a session by the clients of others, and prints what
// they have as one JSON object.
import { readFileSync } from "node:fs";
import { A2uiMessageSchema, MessageProcessor } from "@a2ui/web_core/v0_9";
import { basicCatalog } from "@a2ui/web_core/v0_9/basic_catalog";
import { HttpAgent } from "@ag-ui/client";
import { createSpecStreamCompiler, validateSpec } from "@json-render/core";
import Ajv2020 from "ajv/dist/2020.js";
import formats from "ajv-formats";
import { AbstractChat, DefaultChatTransport, readUIMessageStream } from "ai";

const [url, key, session, form] = process.argv.slice(2);
const ui = `${url}/v1/sessions/${session}/page`;
const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };
const act = async (action, data) => (await (await fetch(`${ui}/actions`, { method: "POST", headers, body: JSON.stringify({ action, data }) })).json()).seq;
const page = async () => (await (await fetch(ui, { headers: { ...headers, Accept: "application/json" } })).json());
const out = {};
process.on("unhandledRejection", (e) => { console.error(e); process.exit(1); });

// A body that ends after so many events, and the ID of the last.
async function cut(response, events) {
  const text = [];
  let last = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let buffer = ""; events > 0;) {
    const { done, value } = await reader.read();
    if (done) break;
    buffer += value;
    for (let at; events > 0 && (at = buffer.indexOf("\n\n")) >= 0;) {
      const event = buffer.slice(0, at + 2);
      buffer = buffer.slice(at + 2);
      if (/^data:/m.test(event)) events--; // else it says that the server is there
      text.push(event);
      last = /^id: (\d+)$/m.exec(event)?.[1] ?? last;
    }
  }
  await reader.cancel();
  return { last, response: new Response(text.join(""), { headers: response.headers }) };
}

// The AI SDK: what its hooks for React, Vue and Svelte are made of.
class Chat extends AbstractChat {
  constructor(init) {
    const state = { status: "ready", error: undefined, messages: [] };
    Object.assign(state, {
      pushMessage: (m) => state.messages.push(m), popMessage: () => state.messages.pop(), replaceMessage: (i, m) => { state.messages[i] = m; }, snapshot: structuredClone,
    });
    super({ ...init, state });
  }
}

const partsOf = (m) => m.parts.map((p) => p.type + (p.state ? ` ${p.state}` : "") + (p.type === "dynamic-tool" ? ` ${p.toolName} ${JSON.stringify(p.input)} ${p.output ?? p.errorText ?? ""}` : ""));

const seen = [];
const transport = new DefaultChatTransport({
  api: `${ui}/actions?format=ai-sdk`, headers,
  prepareSendMessagesRequest: ({ messages }) => ({ body: { action: messages.at(-1).parts[0].text } }),
  prepareReconnectToStreamRequest: () => ({ api: `${ui}/stream?format=ai-sdk&after=${transport.after}` }),
});
const chat = new Chat({ transport, onData: (p) => seen.push(p.type), onError: (e) => { out.aiError = e.message; } });
for (const action of ["demo-counter", "tools", "bad", "fail"]) {
  await chat.sendMessage({ text: action });
  const m = chat.messages.at(-1);
  out[`ai_${action}`] = [chat.status, m.role, m.id.startsWith("run_"), ...partsOf(m)];
}
out.aiMessages = chat.messages.length;

// One that comes back where nobody answers, then after an answer, and then again.
const back = new Chat({ transport, onData: (p) => { seen.push(p.type); transport.after = p.data.seq ?? transport.after; } });
seen.length = 0;
transport.after = 0;
await back.resumeStream();
out.aiIdle = [back.messages.length, back.status];
transport.after = await act("stats");
for (let i = 0; i < 2; i++) await back.resumeStream();
const told = seen.length;
transport.after += 3; // the end of the answer, which is no part of data
await back.resumeStream();
out.aiBack = [back.messages.length, back.status, seen.length - told, ...partsOf(back.messages[0])];
out.aiSeen = seen.join(" ");

// Its reader, which comes back in the middle of a call and of an answer.
for (const [action, after] of [["tools", 2], ["bad", 2]]) {
  const seq = await act(action);
  const read = async (message, from, events) => {
    let last = "";
    const t = new DefaultChatTransport({
      api: ui, headers, prepareReconnectToStreamRequest: () => ({ api: `${ui}/stream?format=ai-sdk&after=${from}` }),
      fetch: async (...args) => {
        const response = await fetch(...args);
        if (!events) return response;
        const part = await cut(response, events);
        last = part.last;
        return part.response;
      },
    });
    for await (const m of readUIMessageStream({ message, stream: await t.reconnectToStream({ chatId: "c" }), terminateOnError: true })) message = m;
    return { message, last };
  };
  const whole = await read(undefined, seq);
  const begun = await read(undefined, seq, after);
  const one = JSON.stringify(partsOf(begun.message));
  const ended = await read(begun.message, begun.last);
  const all = JSON.stringify(partsOf(whole.message));
  out[`aiResume_${action}`] = [one !== all, JSON.stringify(partsOf(ended.message)) === all, ended.message.id === whole.message.id];
}

// AG-UI's client, which verifies what it reads.
class Agent extends HttpAgent {
  requestInit(input) {
    const stay = this.query !== undefined;
    return { method: stay ? "GET" : "POST", headers: { ...this.headers, Accept: "text/event-stream" }, signal: this.abortController.signal, body: stay ? undefined : JSON.stringify({ action: input.forwardedProps.action }) };
  }
}
const agent = (query, events) => {
  const a = new Agent({ url: query === undefined ? `${ui}/actions?format=ag-ui` : `${ui}/stream?format=ag-ui&after=${query}`, headers });
  a.query = query;
  if (events) {
    a.fetch = async (...args) => {
      const part = await cut(await fetch(...args), events);
      a.last = part.last;
      return part.response;
    };
  }
  return a;
};
const types = (list) => ({ onEvent: ({ event }) => { list.push(event.type); } });
const stateOf = (a) => [a.state.html, (a.state.patches ?? []).length];
const messagesOf = (a) => a.messages.map((m) => [m.role, m.content, (m.toolCalls ?? []).map((c) => c.function.name + c.function.arguments).join()].join("|"));
for (const action of ["demo-counter", "add", "tools", "bad", "stats"]) {
  const a = agent();
  const events = [];
  await a.runAgent({ forwardedProps: { action } }, types(events));
  out[`agui_${action}`] = [events.join(" "), messagesOf(a).join("; ")];
  if (action === "demo-counter") out.aguiState = stateOf(a);
}
const failing = agent();
const events = [];
await failing.runAgent({ forwardedProps: { action: "fail" } }, { ...types(events), onRunErrorEvent: ({ event }) => { out.aguiError = event.message; } }).catch(() => {});
out.agui_fail = events.join(" ");

// It is there before the answer.
const waiting = agent(0);
const waited = [];
const ended = waiting.runAgent({}, types(waited));
while (!waited.includes("RUN_FINISHED")) await new Promise((done) => setTimeout(done, 5));
await act("demo-counter");
await ended;
out.aguiEarly = [waited.join(" "), ...stateOf(waiting)];

// It comes back in the middle of a call and of a message.
for (const [action, after] of [["tools", 5], ["bad", 4]]) {
  const seq = await act(action);
  const whole = agent(seq);
  await whole.runAgent({});
  const first = agent(seq, after);
  await first.runAgent({}).catch(() => {});
  const before = JSON.stringify([messagesOf(first), stateOf(first)]);
  const later = agent(first.last);
  later.messages = first.messages;
  later.state = first.state;
  const again = [];
  await later.runAgent({}, types(again));
  const all = JSON.stringify([messagesOf(whole), stateOf(whole)]);
  out[`aguiResume_${action}`] = [before !== all, JSON.stringify([messagesOf(later), stateOf(later)]) === all, again.join(" ")];
}

// json-render's compiler.
const html = (spec, id = spec.root) => {
  const { type, props, children } = spec.elements[id];
  if (type === "text") return props.text;
  const inner = children.map((c) => html(spec, c)).join("");
  return id === spec.root ? inner : `<${type}${Object.entries(props).map(([k, v]) => ` ${k}="${v}"`).join("")}>${inner}</${type}>`;
};
const compiler = createSpecStreamCompiler();
const shows = async (after, wanted) => {
  const abort = new AbortController();
  const response = await fetch(`${ui}/stream?format=json-render&after=${after}`, { headers, signal: abort.signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let patches = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the stream ended");
    const { result, newPatches } = compiler.push(value);
    patches += newPatches.length;
    if (result.elements && html(result) === await wanted()) {
      abort.abort();
      const check = validateSpec(result);
      return [check.valid, check.issues.length, Object.keys(result.elements).length, patches];
    }
  }
};
const begun = await act("demo-counter");
out.jsonRender = await shows(0, async () => (await page()).html);
const counted = await act("add");
await act("add"); // so that no page between is the last one
out.jsonRenderOn = await shows(begun, async () => (await page()).html);
await act("add");
out.jsonRenderLater = await shows(counted, async () => (await page()).html);
out.jsonRenderPage = html(compiler.getResult());

// A2UI's processor, and its schemas.
const ajv = formats(new Ajv2020({ strict: false }));
const schemas = import.meta.dirname + "/node_modules/@a2ui/web_core/src/v0_9/schemas/";
const readSchema = (path) => JSON.parse(readFileSync(schemas + path, "utf8"));
const catalog = readSchema("catalogs/basic/catalog.json");
ajv.addSchema(readSchema("common_types.json"));
ajv.addSchema(catalog).addSchema(catalog, "https://a2ui.org/specification/v0_9/catalog.json");
const valid = ajv.compile(readSchema("server_to_client.json"));
const draw = (surface, id = "root") => {
  const { type, properties } = surface.componentsModel.get(id);
  const inner = properties.children ?? (properties.child ? [properties.child] : []);
  return `${type}${properties.text ? ` ${properties.text}` : ""}${inner.length ? `(${inner.map((c) => draw(surface, c)).join(", ")})` : ""}`;
};
const surfaces = async (processor, after, wanted, id = session) => {
  const abort = new AbortController();
  const response = await fetch(`${url}/v1/sessions/${id}/page/stream?format=a2ui&after=${after}`, { headers, signal: abort.signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let faults = 0;
  for (let buffer = ""; ;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the stream ended");
    const lines = (buffer + value).split("\n");
    buffer = lines.pop();
    const messages = lines.filter(Boolean).map((line) => JSON.parse(line)).filter((m) => m.type !== "heartbeat");
    for (const m of messages) if (!valid(m) || !A2uiMessageSchema.safeParse(m).success) faults++, console.error(JSON.stringify(m), valid.errors);
    processor.processMessages(messages);
    const surface = processor.model.getSurface(id);
    if (!surface?.componentsModel.get("root") || !draw(surface).includes(wanted)) continue;
    abort.abort();
    return [faults, draw(surface)];
  }
};
const pressed = [];
const processor = new MessageProcessor([basicCatalog], (a) => pressed.push(a));
const started = await act("demo-counter");
out.a2ui = await surfaces(processor, 0, "Text 0");
await act("add");
out.a2uiOn = await surfaces(processor, started, "Text 1");
const surface = processor.model.getSurface(session);
const [button] = [...surface.componentsModel.entries].map(([, c]) => c).filter((c) => c.type === "Button");
await surface.dispatchAction(button.properties.action, button.id);
out.a2uiForm = await surfaces(processor, 0, "Button", form);
out.a2uiData = processor.model.getSurface(form).dataModel.get("/");
out.a2uiAction = pressed.map((a) => [a.name ?? a.action?.name, a.surfaceId === session, a.context]);

console.log(JSON.stringify(out));

// Uses every tool that is listed, over the transport that the first argument
// names: "http URL KEY" or "stdio ENGI". Prints one line of JSON: what was
// listed, what was used, what was told on the way.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const [kind, where, key] = process.argv.slice(2);
const transport = kind === "http"
  ? new StreamableHTTPClientTransport(new URL(where), { requestInit: { headers: { Authorization: `Bearer ${key}` } } })
  : new StdioClientTransport({ command: where, args: ["mcp"], env: process.env });
const client = new Client({ name: "test", version: "1" });
await client.connect(transport);

const used = [];
let progress = "";
async function use(name, args, want) {
  const r = await client.callTool({ name, arguments: args }, undefined, { onprogress: (p) => { progress += p.message ?? ""; } });
  const text = r.content.map((c) => c.text ?? "").join("");
  if (r.isError || !text.includes(want)) throw new Error(`${name}: ${text}`);
  used.push(name);
  return text;
}

const listed = (await client.listTools()).tools.map((t) => t.name);
const { sandbox } = JSON.parse(await use("create_sandbox", { timeout_seconds: 120 }, "sbx_"));
await use("list_sandboxes", {}, sandbox);
await use("write_file", { sandbox, path: "/workspace/a.txt", content: "one\ntwo\n" }, "created");
await use("edit_file", { sandbox, path: "/workspace/a.txt", edits: [{ old: "two", new: "zwei" }] }, "1 replacement in");
await use("read_file", { sandbox, path: "/workspace/a.txt" }, "zwei");
await use("list_files", { sandbox, path: "/workspace" }, "a.txt");
await use("glob", { sandbox, pattern: "**/*.txt", dir: "/workspace" }, "a.txt");
await use("grep", { sandbox, pattern: "zw.i", path: "/workspace" }, ":2:zwei");
await use("run_command", { sandbox, command: "echo $((6*7)); id -un" }, "42");
await use("get_port_url", { sandbox, port: 5173 }, "5173-");
const file = await client.readResource({ uri: `engi://sandboxes/${sandbox}/files/workspace/a.txt` });
if (!file.contents[0].text.includes("zwei")) throw new Error("resource");
await use("remove_file", { sandbox, path: "/workspace/a.txt" }, "removed");
await use("execute_code", { language: "python", code: "import time\nfor i in range(3):\n    print('step', i, flush=True)\n    time.sleep(.2)\n" }, "step 2");
const { session } = JSON.parse(await use("create_session", {}, "ses_"));
await use("list_sessions", {}, session);
await use("act_on_page", { session, action: "demo-counter" }, 'id="count"');
await use("show_page", { session }, 'id="count"');
await use("end_session", { session }, "ended");
await use("create_app", { name: kind, template: "node-api" }, "server.js (");
await use("apply_to_app", { app: kind, text: '<file path="a.txt">a</file>' }, `revision 2 of app ${kind} is served`);
await use("read_app", { app: kind, path: "a.txt" }, "a");
await use("create_workspace", { name: kind, services: ["postgres", "mongodb"] }, "postgres.workspace.internal:5432");
await use("add_service", { workspace: kind, type: "redis" }, "redis.workspace.internal");
await use("write_workspace", { workspace: kind, files: [{ path: "index.html", content: "<h1>Hi</h1>" }] }, "revision 1");
await use("read_workspace", { workspace: kind, path: "index.html" }, "<h1>Hi</h1>");
await use("move_workspace_file", { workspace: kind, from: "index.html", to: "pages/index.html" }, "revision 2");
await use("run_sql", { workspace: kind, query: "create table orders (id int primary key)" }, "");
await use("describe_tables", { workspace: kind }, "public.orders");
await use("query_collection", { workspace: kind, collection: "orders", filter: '{"total": {"$gt": 5}}' }, "(0 documents)");
await use("run_redis_command", { workspace: kind, command: ["PING"] }, "PONG");
const shown = await use("enable_preview", { workspace: kind, public: true }, "It is for everybody.");
if (!/^preview https?:\/\/ws-/.test(shown)) throw new Error(shown);
const begun = await fetch(new URL("/v1/workflows", kind === "http" ? where : process.env.ENGI_URL), {
  method: "POST", headers: { Authorization: `Bearer ${key ?? process.env.ENGI_KEY}`, "Content-Type": "application/json" }, body: JSON.stringify({ workspace: kind }),
});
if (begun.status !== 201) throw new Error(await begun.text());
await use("submit_for_review", { workspace: kind, notes: "done" }, "in stage review");
await use("submit_review", { workspace: kind, approved: false, feedback: "no" }, "in stage revision");
await use("get_review_feedback", { workspace: kind }, "feedback:\nno");
await use("search_docs", { query: "read a CSV file" }, "");
const gone = new AbortController();
setTimeout(() => gone.abort("enough"), 500);
let cancelled = false;
try {
  await client.callTool({ name: "run_command", arguments: { sandbox, command: "sleep 60" } }, undefined, { signal: gone.signal });
} catch {
  cancelled = true;
}
const refused = await client.callTool({ name: "read_file", arguments: { sandbox, path: "workspace/../a" } });
await use("stop_sandbox", { sandbox }, "stopped");
await client.close();
console.log(JSON.stringify({ listed: listed.sort(), used: used.sort(), progress, cancelled, refused: refused.isError === true }));
process.exit(0);

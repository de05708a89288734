// Stays connected while the server restarts. Arguments: the package ("sdk" or
// "client"), the mode of the newest package ("legacy" or "auto"), and "http URL
// KEY" or "stdio ENGI". Reads the names of things to do, one in a line, and prints
// one line of JSON for each thing that happens.
import readline from "node:readline";

const [name, mode, kind, where, key] = process.argv.slice(2);
const old = name === "sdk";
const { Client } = await import(old ? "@modelcontextprotocol/sdk/client/index.js" : "@modelcontextprotocol/client");
let transport;
if (kind === "http") {
  const { StreamableHTTPClientTransport } = await import(old ? "@modelcontextprotocol/sdk/client/streamableHttp.js" : "@modelcontextprotocol/client");
  transport = new StreamableHTTPClientTransport(new URL(where), {
    requestInit: { headers: { Authorization: `Bearer ${key}` } },
    reconnectionOptions: { maxRetries: 100, initialReconnectionDelay: 200, maxReconnectionDelay: 500, reconnectionDelayGrowFactor: 1.1 },
  });
} else {
  const { StdioClientTransport } = await import(old ? "@modelcontextprotocol/sdk/client/stdio.js" : "@modelcontextprotocol/client/stdio");
  transport = new StdioClientTransport({ command: where, args: ["mcp"], env: process.env });
}
const client = new Client({ name: "stay", version: "1" }, old ? undefined : { versionNegotiation: { mode } });
const tell = (x) => console.log(JSON.stringify(x));
await client.connect(transport);
tell({ connected: transport.sessionId ?? "", version: transport.protocolVersion ?? client.getNegotiatedProtocolVersion?.() ?? "" });
const call = (p, o) => (old ? client.callTool(p, undefined, o) : client.callTool(p, o));
const todo = {
  long: () => call({ name: "execute_code", arguments: { language: "bash", code: "echo begun; sleep 5; echo over" } }, { onprogress: (p) => tell({ progress: p.message }), timeout: 90000 }),
  quick: () => call({ name: "list_sandboxes", arguments: {} }),
};
for await (const line of readline.createInterface({ input: process.stdin })) {
  todo[line]().then(
    (r) => tell({ did: line, text: r.content.map((c) => c.text ?? "").join(""), failed: r.isError === true, session: transport.sessionId ?? "" }),
    (e) => tell({ did: line, text: String(e), failed: true }),
  );
}
await client.close();
process.exit(0);

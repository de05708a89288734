// A server of tools without any package: it says where it runs.
const fs = require("node:fs");
const os = require("node:os");
let text = "";
process.stdin.on("data", (piece) => {
  text += piece;
  for (let end; (end = text.indexOf("\n")) >= 0; text = text.slice(end + 1)) answer(JSON.parse(text.slice(0, end)));
});
function answer({ id, method, params }) {
  if (id === undefined) return;
  const say = (m) => console.log(JSON.stringify({ jsonrpc: "2.0", id, ...m }));
  if (method === "initialize") {
    say({ result: { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: "small", version: "1" } } });
  } else if (method === "tools/list") {
    say({ result: { tools: ["where", "die"].map((name) => ({ name, description: name, inputSchema: { type: "object" } })) } });
  } else if (method === "tools/call" && params.name === "die") {
    process.exit(3);
  } else if (method === "tools/call") {
    const seen = { host: os.hostname(), canary: fs.existsSync(process.env.CANARY), workspace: fs.readdirSync("/workspace") };
    say({ result: { content: [{ type: "text", text: JSON.stringify(seen) }] } });
  } else {
    say({ error: { code: -32601, message: "no" } });
  }
}

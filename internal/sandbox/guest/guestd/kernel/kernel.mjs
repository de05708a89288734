// The kernel of JavaScript and TypeScript, for Deno and Node. It reads commands
// from the named pipe in, one JSON object per line, and writes events to the
// named pipe out. Cells run in V8's REPL mode: variables persist between cells,
// const and let may be redeclared, and await works at the top level. User code
// prints to descriptors 1 and 2.
import fs from "node:fs";
import inspector from "node:inspector";
import nodeModule from "node:module";
import path from "node:path";
import process from "node:process";
import url from "node:url";
import util from "node:util";

const here = path.dirname(url.fileURLToPath(import.meta.url));
const language = process.argv[2];
const most = 12 << 20; // bytes of an event; the guest accepts no more
const input = fs.openSync(here + "/in", "r");
const output = fs.openSync(here + "/out", "w");

function send(event) {
  const line = Buffer.from(JSON.stringify(event) + "\n");
  if (line.length > most) {
    fs.writeSync(2, `a result of ${line.length} bytes is left out: it is over ${most}\n`);
    return;
  }
  for (let at = 0; at < line.length;) {
    at += fs.writeSync(output, line, at, line.length - at);
  }
}

// ---- display

const symbol = Symbol.for("Jupyter.display");
const names = { html: "text/html", md: "text/markdown", markdown: "text/markdown", svg: "image/svg+xml", latex: "text/latex" };

function image(bytes) {
  if (bytes[0] === 0x89 && bytes[1] === 0x50 && bytes[2] === 0x4e && bytes[3] === 0x47) return "image/png";
  if (bytes[0] === 0xff && bytes[1] === 0xd8) return "image/jpeg";
}

function clean(bundle) {
  const data = {};
  for (const [mime, value] of Object.entries(bundle)) {
    if (value === undefined || value === null) continue;
    data[mime] = value instanceof Uint8Array ? Buffer.from(value).toString("base64") : value;
  }
  return data;
}

async function bundleOf(value) {
  if (value !== null && (typeof value === "object" || typeof value === "function")) {
    if (typeof value[symbol] === "function") return clean(await value[symbol]());
    const kind = value instanceof Uint8Array && image(value);
    if (kind) return clean({ "text/plain": `[${kind}, ${value.length} bytes]`, [kind]: value });
  }
  return { "text/plain": typeof value === "string" ? value : util.inspect(value, { colors: false, depth: 4, maxArrayLength: 200 }) };
}

// Displaying is asynchronous. A cell ends when all of its displays have.
let pending = [];
function display(value, options) {
  const done = (async () => {
    const data = options?.raw ? clean(value) : await bundleOf(value);
    if (Object.keys(data).length > 0) send({ event: "result", main: false, data });
  })();
  pending.push(done);
  return done;
}

const displayable = (bundle) => ({ [symbol]: () => bundle });
const template = (mime) => (strings, ...values) =>
  displayable({ [mime]: typeof strings === "string" ? strings : String.raw({ raw: strings }, ...values) });
const shows = Object.fromEntries(Object.entries(names).map(([k, mime]) => [k, template(mime)]));
shows.image = (source) => {
  const bytes = typeof source === "string" ? fs.readFileSync(source) : source;
  return displayable({ [image(bytes) ?? "image/png"]: bytes });
};

const jupyter = { ...shows, display, $display: symbol, format: bundleOf, broadcast: async () => {} };
if (globalThis.Deno) {
  try {
    Deno.jupyter = jupyter; // it has a setter for this
  } catch {
    // this version seals it; display works without
  }
}
// The names other notebooks for JavaScript use.
const show = Object.fromEntries(Object.entries(shows).map(([k, f]) => [k, (v) => void display(f(v))]));
show.png = (base64) => void display({ "image/png": base64 }, { raw: true });
show.jpeg = (base64) => void display({ "image/jpeg": base64 }, { raw: true });
show.mime = (bundle) => void display(bundle, { raw: true });
show.display = display;

// ---- modules

const base = () => process.cwd() + "/";

async function load(name, options) {
  name = String(name);
  const from = url.pathToFileURL(base());
  if (/^(\.{0,2}\/)/.test(name)) return import(new URL(name, from).href, options);
  if (nodeModule.builtinModules.includes(name)) return import("node:" + name);
  if (name.startsWith("npm:") && !globalThis.Deno) name = name.slice(4).replace(/^((?:@[^/]+\/)?[^@/]+)@[^/]*/, "$1");
  if (/^[a-z]+:/i.test(name)) return import(name, options);
  try {
    return await import(url.pathToFileURL(nodeModule.createRequire(from).resolve(name)).href, options);
  } catch (e) {
    if (!globalThis.Deno || e.code !== "MODULE_NOT_FOUND") throw e;
    return import("npm:" + name, options);
  }
}

const meta = {
  get url() { return url.pathToFileURL(base()).href; },
  get dirname() { return process.cwd(); },
  main: true,
  resolve: (name) => new URL(name, url.pathToFileURL(base())).href,
};

// rewrite turns import declarations, which only modules can have, into calls, and
// removes export. It scans the source once and skips strings, comments, templates
// and regular expressions.
const declaration = /import\s+(?:(type)\s+)?(?:([^'"();]*?)\s*from\s*)?(['"])((?:(?!\3)[^\\\n])+)\3(?:\s*with\s*(\{[^}]*\}))?[ \t]*;?/y;
const exported = /export\s+(?:default\s+)?(?=(?:const|let|var|function|class|async|enum|interface|type|abstract|namespace)\b)/y;

function rewrite(code) {
  if (!/\b(import|export)\b/.test(code)) return code;
  let out = "", at = 0, depth = 0, last = "", word = "";
  const templates = [];
  const take = (n) => { out += code.slice(at, at + n); at += n; };
  const until = (end) => {
    let i = at + 1;
    while (i < code.length && code[i] !== end) i += code[i] === "\\" ? 2 : 1;
    take(i + 1 - at);
  };
  const templateRest = () => { // from inside a template to its end or its next ${
    while (at < code.length) {
      if (code[at] === "\\") take(2);
      else if (code[at] === "`") return take(1);
      else if (code.startsWith("${", at)) { take(2); templates.push(depth++); return; }
      else take(1);
    }
  };
  while (at < code.length) {
    const c = code[at];
    if (c === "\n" || c === " " || c === "\t" || c === "\r") { take(1); continue; }
    if (code.startsWith("//", at)) { const i = code.indexOf("\n", at); take((i < 0 ? code.length : i) - at); continue; }
    if (code.startsWith("/*", at)) { const i = code.indexOf("*/", at + 2); take((i < 0 ? code.length : i + 2) - at); continue; }
    if (c === "'" || c === '"') { until(c); last = c; word = ""; continue; }
    if (c === "`") { take(1); templateRest(); last = "`"; word = ""; continue; }
    if (c === "/") {
      const operand = /[\w$)\]}'"`]/.test(last) && !/^(return|typeof|case|in|of|delete|void|throw|new|else|do|await|yield)$/.test(word);
      if (operand) { take(1); last = "/"; word = ""; continue; }
      let i = at + 1, set = false;
      for (; i < code.length && code[i] !== "\n" && (set || code[i] !== "/"); i++) {
        if (code[i] === "\\") i++;
        else if (code[i] === "[") set = true;
        else if (code[i] === "]") set = false;
      }
      take(i + 1 - at); last = ")"; word = ""; continue;
    }
    const id = /[A-Za-z_$][\w$]*/y;
    id.lastIndex = at;
    const found = /[A-Za-z_$]/.test(c) && id.exec(code);
    if (found) {
      const member = last === "." && !out.endsWith("..");
      if (found[0] === "import" && !member) {
        const rest = code.slice(at + 6);
        if (/^\s*\(/.test(rest)) { out += "__engi.load"; at += 6; last = "d"; word = ""; continue; }
        if (/^\s*\.\s*meta\b/.test(rest)) { out += "__engi.meta"; at += 6 + rest.match(/^\s*\.\s*meta/)[0].length; last = "a"; word = ""; continue; }
        declaration.lastIndex = at;
        const d = depth === 0 && declaration.exec(code);
        if (d) { out += imported(d); at += d[0].length; last = ";"; word = ""; continue; }
      }
      if (found[0] === "export" && !member && depth === 0) {
        exported.lastIndex = at;
        const e = exported.exec(code);
        if (e) { at += e[0].length; continue; }
      }
      take(found[0].length); last = "a"; word = found[0]; continue;
    }
    if ("([{".includes(c)) depth++;
    if (")]}".includes(c)) {
      depth = Math.max(0, depth - 1);
      if (c === "}" && templates.at(-1) === depth) { templates.pop(); take(1); templateRest(); last = "`"; word = ""; continue; }
    }
    take(1); last = c; word = "";
  }
  return out;
}

let modules = 0;
function imported([all, type, clause, , name, options]) {
  const lines = "\n".repeat(all.split("\n").length - 1);
  if (type) return lines;
  const call = `await __engi.load(${JSON.stringify(name)}${options ? `, { with: ${options} }` : ""});`;
  if (!clause) return call + lines;
  const module = `__engi_module_${++modules}`;
  let code = `const ${module} = ${call}`;
  for (const part of clause.trim().match(/\{[^}]*\}|\*\s*as\s+[\w$]+|[\w$]+/g) ?? []) {
    if (part.startsWith("{")) {
      const parts = part.slice(1, -1).split(",").map((p) => p.trim()).filter((p) => p && !/^type\s+(?!as\b)/.test(p));
      if (parts.length > 0) code += ` const { ${parts.map((p) => p.replace(/\s+as\s+/, ": ")).join(", ")} } = ${module};`;
    } else if (part.startsWith("*")) {
      code += ` const ${part.replace(/\*\s*as\s+/, "")} = ${module};`;
    } else {
      code += ` const ${part} = ${module}.default;`;
    }
  }
  return code + lines;
}

const AsyncFunction = (async () => {}).constructor;

function parses(code) {
  try {
    new AsyncFunction(code);
    return true;
  } catch {
    return false;
  }
}

function toScript(code) {
  code = rewrite(code);
  // An object literal, not a block with labels, as in a console.
  if (/^\s*\{/.test(code) && /\}\s*$/.test(code) && parses(`return (${code}\n)`)) code = `(${code}\n)`;
  // Code that does not parse may have types. If not, V8 has the best error.
  if (language !== "typescript" && parses(code)) return code;
  if (!nodeModule.stripTypeScriptTypes) {
    if (language !== "typescript") return code;
    throw new Error("this Node cannot run TypeScript: it needs version 22.13 or Deno");
  }
  try {
    return nodeModule.stripTypeScriptTypes(code, { mode: "transform" });
  } catch (e) {
    if (language !== "typescript") return code;
    const error = new SyntaxError(e.message.trim());
    error.stack = `SyntaxError: ${error.message}`;
    throw error;
  }
}

// ---- execution

const session = new inspector.Session();
session.connect();
const post = (method, params) => new Promise((resolve, reject) =>
  session.post(method, params, (error, result) => error ? reject(new Error(error.message)) : resolve(result)));

Object.defineProperty(globalThis, "__engi", { value: { load, meta, take: null } });
for (const [k, v] of Object.entries({ display, $$: show, require: nodeModule.createRequire(url.pathToFileURL(base())) })) {
  Object.defineProperty(globalThis, k, { value: v, writable: true, configurable: true });
}
const globalObject = (await post("Runtime.evaluate", { expression: "globalThis" })).result.objectId;

// valueOf returns the value of a remote object of the inspector.
async function valueOf(remote) {
  if (remote.type === "undefined") return undefined;
  if (remote.subtype === "null") return null;
  if (remote.unserializableValue === undefined && "value" in remote && remote.objectId === undefined) return remote.value;
  let value;
  __engi.take = (v) => void (value = v);
  const argument = remote.objectId ? { objectId: remote.objectId } : { unserializableValue: remote.unserializableValue };
  await post("Runtime.callFunctionOn", { functionDeclaration: "function (v) { __engi.take(v) }", objectId: globalObject, arguments: [argument] });
  return value;
}

function errorEvent(error) {
  if (!(error instanceof Error) && typeof error?.stack !== "string") {
    const text = typeof error === "string" ? error : util.inspect(error, { colors: false });
    return { event: "error", name: "Error", value: text, traceback: "Uncaught " + text };
  }
  // Frames below those of the cell belong to this program.
  const lines = String(error.stack).split("\n");
  const last = lines.findLastIndex((l) => /^\s+at .*<anonymous>:\d+:\d+/.test(l));
  const own = lines.findIndex((l) => l.includes(here) || /^\s+at (async )?(Session\.post|post) /.test(l));
  const stack = lines.slice(0, own >= 0 ? Math.max(last + 1, own) : lines.length).filter((l) => !l.includes(here) && !/ext:deno_node\/inspector|node:inspector/.test(l));
  return { event: "error", name: String(error.name), value: String(error.message), traceback: stack.join("\n") };
}

let interrupt = () => {};
process.on("SIGINT", () => interrupt());

// Code that exits ends its cell, then the kernel, which cannot exit in the middle
// of an evaluation.
let exitCode = null;
let leave = () => {};
function exit(code) {
  exitCode = Number(code ?? process.exitCode ?? 0) || 0;
  leave();
  throw new Error(`exit status ${exitCode}`);
}
process.exit = exit;
try {
  if (globalThis.Deno) Deno.exit = exit;
} catch {
  // this version seals it, so that it ends the kernel at once
}

async function cell(code) {
  const { result, exceptionDetails } = await post("Runtime.evaluate", {
    expression: toScript(code), replMode: true, awaitPromise: true, objectGroup: "cell", userGesture: false,
  });
  const value = await valueOf(exceptionDetails?.exception ?? result);
  if (exceptionDetails) return errorEvent(value);
  while (pending.length > 0) await Promise.all(pending.splice(0));
  if (value === undefined) return null;
  const data = await bundleOf(value);
  return Object.keys(data).length > 0 ? { event: "result", main: true, data } : null;
}

function environ(changes) {
  for (const [k, v] of Object.entries(changes ?? {})) {
    if (v === null) delete process.env[k];
    else process.env[k] = v;
  }
}

async function execute(c) {
  environ(c.env);
  const before = Object.fromEntries(Object.keys(c.own ?? {}).map((k) => [k, process.env[k] ?? null]));
  environ(c.own);
  pending = [];
  const interrupted = new Promise((resolve) => {
    interrupt = () => resolve({ event: "error", name: "KeyboardInterrupt", value: "", traceback: "KeyboardInterrupt" });
  });
  const left = new Promise((resolve) => { leave = () => resolve(null); });
  let event;
  try {
    event = await Promise.race([left, interrupted, cell(c.code)]);
  } catch (e) {
    event = errorEvent(e);
  } finally {
    interrupt = leave = () => {};
    environ(before);
    post("Runtime.releaseObjectGroup", { objectGroup: "cell" }).catch(() => {});
  }
  const over = exitCode !== null;
  if (over) {
    const text = `exit status ${exitCode}`;
    event = exitCode === 0 ? null : { event: "error", name: "ExitError", value: text, traceback: text };
  }
  if (event) send(event);
  send({ event: "end", id: c.id, over });
  // The evaluation that exited is still below this microtask on the stack, and
  // Node would wait for the thread that reads commands.
  if (over) setTimeout(() => process.kill(process.pid, "SIGKILL"), 0);
}

// Background work of user code may fail later, which must not end the kernel.
const complain = (e) => {
  if (exitCode === null) console.error("Uncaught (in background)", e); // otherwise it is the error of exit
};
if (globalThis.Deno) {
  globalThis.addEventListener("unhandledrejection", (e) => { e.preventDefault(); complain(e.reason); });
  globalThis.addEventListener("error", (e) => { e.preventDefault(); complain(e.error); });
} else {
  process.on("uncaughtException", complain);
  process.on("unhandledRejection", complain);
}

await cell("1 + 1"); // warm up
if (language === "typescript") toScript("let x: number");
send({ event: "ready" });
let rest = "";
for await (const piece of fs.createReadStream("", { fd: input, encoding: "utf8" })) {
  rest += piece;
  for (let i; (i = rest.indexOf("\n")) >= 0;) {
    const line = rest.slice(0, i);
    rest = rest.slice(i + 1);
    await execute(JSON.parse(line));
  }
}

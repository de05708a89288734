// Runs one piece of TypeScript or JavaScript under Deno and ends. It reads one
// line of JSON from standard input: the code, the mark that its answer on
// standard output begins with, and bounds. What the code prints goes to
// descriptors 1 and 2 as it is.
//
// The code runs as a module, as Deno runs any; two things are done to it
// before, and neither moves a line. Relative names are made absolute, because
// the module has no place in the file system. And if its last statement is an
// expression, that becomes the default export, which is the answer's value.
import nodeModule from "node:module";

const work = new URL(Deno.args[0]); // directory that relative names start in
const here = import.meta.url;

// Before the code can change them.
const { stringify } = JSON;
const encode = TextEncoder.prototype.encode.bind(new TextEncoder());
const write = Deno.stdout.writeSync.bind(Deno.stdout);
const leave = Deno.exit.bind(Deno);

let bounds = { mark: "", most: 1 << 20 };
let answered = false;

function answer(a) {
  if (answered) return;
  answered = true;
  const bytes = encode("\x1e" + bounds.mark + stringify(a) + "\n");
  for (let at = 0; at < bytes.length;) at += write(bytes.subarray(at));
  leave(a.ok ? 0 : 1);
}

// ---- reading the code

const names = /(?:import|export)\s(?:[^'"();]*?\sfrom\s*|\s*)(['"])((?:(?!\1)[^\\\n])+)\1|(?:import)(['"])((?:(?!\3)[^\\\n])+)\3/y;

// scan goes over the code once, past strings, comments, templates and regular
// expressions. It returns what is to be changed, where statements may begin at
// the top, where the last one ends, and whether a default export is there.
function scan(code) {
  const edits = [], starts = [], imports = [];
  let at = 0, depth = 0, last = "", word = "", end = 0, fresh = true, exported = false;
  const templates = [];
  const computed = []; // imports whose names are computed, and their depths
  const absolute = (from, to) => {
    const name = code.slice(from, to);
    if (/^\.{0,2}\//.test(name)) edits.push({ at: from, length: to - from, text: new URL(name, work).href });
    else if (!/^[a-z]+:/i.test(name) && nodeModule.builtinModules.includes(name)) edits.push({ at: from, length: to - from, text: "node:" + name });
  };
  const closeName = () => edits.push({ at: computed.pop().from, length: 0, text: "__engi.name(" }, { at, length: 0, text: ")" });
  const past = (to, mark, w = "") => {
    if (depth === 0 && fresh) starts.push(at);
    fresh = false;
    at = to; last = mark; word = w;
    if (mark !== ";") end = at;
  };
  const string = (quote) => {
    let i = at + 1;
    while (i < code.length && code[i] !== quote && code[i] !== "\n") i += code[i] === "\\" ? 2 : 1;
    return i + 1;
  };
  const template = (i) => { // from inside a template to its end or its next ${
    for (; i < code.length; i++) {
      if (code[i] === "\\") i++;
      else if (code[i] === "`") return i + 1;
      else if (code.startsWith("${", i)) { templates.push(depth++); return i + 2; }
    }
    return i;
  };
  const identifier = /[A-Za-z_$\u0080-\uffff][\w$\u0080-\uffff]*/y;
  while (at < code.length) {
    const c = code[at];
    if (c === "\n") { fresh = true; at++; continue; }
    if (/\s/.test(c)) { at++; continue; }
    if (code.startsWith("//", at)) { const i = code.indexOf("\n", at); at = i < 0 ? code.length : i; continue; }
    if (code.startsWith("/*", at)) { const i = code.indexOf("*/", at + 2); at = i < 0 ? code.length : i + 2; continue; }
    if (c === "'" || c === '"') { past(string(c), c); continue; }
    if (c === "`") {
      if (depth === 0 && fresh) starts.push(at);
      fresh = false;
      at = template(at + 1); last = "`"; word = ""; end = at;
      continue;
    }
    if (c === "/") {
      const divides = /[\w$)\]}'"`]/.test(last) && !/^(return|typeof|case|in|of|delete|void|throw|new|else|do|await|yield)$/.test(word);
      if (divides) { past(at + 1, "/"); continue; }
      let i = at + 1, set = false;
      for (; i < code.length && code[i] !== "\n" && (set || code[i] !== "/"); i++) {
        if (code[i] === "\\") i++;
        else if (code[i] === "[") set = true;
        else if (code[i] === "]") set = false;
      }
      past(i + 1, ")");
      continue;
    }
    identifier.lastIndex = at;
    const id = identifier.exec(code)?.[0];
    if (id) {
      if ((id === "import" || id === "export") && last !== ".") {
        names.lastIndex = at;
        const d = depth === 0 && names.exec(code);
        const call = id === "import" && /^import\s*\(\s*/.exec(code.slice(at, at + 200));
        if (d && !call) {
          const to = names.lastIndex - 1;
          absolute(to - (d[2] ?? d[4]).length, to);
          if (id === "import") imports.push([at, names.lastIndex]);
          past(names.lastIndex, "'");
          continue;
        }
        if (call) {
          const from = at + call[0].length;
          const literal = /^(['"])((?:(?!\1)[^\\\n])+)\1/.exec(code.slice(from, from + 2000));
          if (literal) absolute(from + 1, from + 1 + literal[2].length);
          else computed.push({ from, depth });
        }
        if (/^import\s*\.\s*meta\b/.test(code.slice(at, at + 200)) && id === "import") {
          const n = /^import\s*\.\s*meta/.exec(code.slice(at))[0].length;
          edits.push({ at, length: n, text: "__engi.meta" });
          past(at + n, "a");
          continue;
        }
        if (id === "export" && depth === 0 && /^export\s+default\b/.test(code.slice(at, at + 200))) exported = true;
      }
      past(at + id.length, "a", last === "." ? "" : id);
      continue;
    }
    if ("([{".includes(c)) { past(at + 1, c); depth++; continue; }
    if (c === "," && computed.at(-1)?.depth === depth - 1) closeName();
    if (")]}".includes(c)) {
      depth = Math.max(0, depth - 1);
      if (computed.at(-1)?.depth === depth) closeName();
      if (c === "}" && templates.at(-1) === depth) {
        templates.pop();
        at = template(at + 1); last = "`"; word = ""; end = at;
        continue;
      }
      past(at + 1, c);
      if (c === "}" && depth === 0) fresh = true;
      continue;
    }
    past(at + 1, c);
    if (c === ";" && depth === 0) fresh = true;
  }
  return { edits, starts, end, exported, imports };
}

const AsyncFunction = (async () => {}).constructor;

function strips(text) {
  try {
    return nodeModule.stripTypeScriptTypes(text, { mode: "transform" });
  } catch {
    return null;
  }
}

function isExpression(text) {
  if (/^(?:(?:async\s+)?function|class|abstract\s+class|enum|interface|namespace|declare|type\s+[\w$]+\s*[=<]|@)(?![\w$])/.test(text)) return false;
  try {
    const js = nodeModule.stripTypeScriptTypes(`(${text}\n)`, { mode: "strip" });
    new AsyncFunction("return " + js.replace(/\bimport(\s*)\.(\s*)meta\b/g, "import_$1$2meta")); // which only modules have
    return true;
  } catch {
    return false;
  }
}

const far = 40; // places that are tried before the one that was found

// tail returns where the code's last statement begins, if that is an
// expression. It asks the parser, from the end on: the statement is the
// longest one expression up to the end whose beginning is complete without it.
function tail(code, { starts, end, exported }) {
  if (exported) return -1;
  let found = -1, tries = 0;
  for (let i = starts.length - 1; i >= 0 && tries < far; i--, tries++) {
    if (end - starts[i] > 1 << 16) break;
    if (starts[i] < end && isExpression(code.slice(starts[i], end))) [found, tries] = [starts[i], 0];
  }
  if (found < 0) return -1;
  const before = code.slice(0, found);
  if (before.trim() === "") return found;
  if (strips(before) === null) return -1;
  // What begins like this goes on with the statement before, if it can.
  const closed = /;\s*$/.test(before);
  if (!closed && /^[([`/+\-]/.test(code.slice(found)) && strips(before + "\n.x") !== null) return -1;
  return found;
}

let moved = null; // {line, column, by}: what stands on line from column on is by characters too far right

// edited returns code with edits made.
function edited(code, edits) {
  let out = "", from = 0;
  for (const e of edits.sort((a, b) => a.at - b.at)) { // in the order they were made, where they meet
    out += code.slice(from, e.at) + e.text;
    from = e.at + e.length;
  }
  return out + code.slice(from);
}

// moduleOf returns the code as a module.
function moduleOf(code) {
  const s = scan(code), at = tail(code, s);
  if (at < 0) return edited(code, s.edits);
  const prefix = "export default (", lines = code.slice(0, at).split("\n");
  moved = { line: lines.length, column: lines.at(-1).length + 1, by: prefix.length };
  return edited(code, [{ at, length: 0, text: prefix }, ...s.edits, { at: s.end, length: 0, text: "\n)" }]);
}

// returning is moduleOf for code with return at its top, as if it were the
// body of a function. Imports go before that.
function returning(code) {
  const s = scan(code);
  const head = s.imports.map(([from, to]) => {
    const text = code.slice(from, to);
    return edited(text, scan(text).edits).replaceAll("\n", " ") + ";";
  }).join("");
  const prefix = head + "export default await (async () => {";
  moved = { line: 1, column: 1, by: prefix.length };
  const inside = s.edits.filter((e) => !s.imports.some(([from, to]) => e.at >= from && e.at < to));
  const blanks = s.imports.map(([at, to]) => ({ at, length: to - at, text: code.slice(at, to).replace(/[^\n]/g, " ") }));
  return prefix + edited(code, [...inside, ...blanks]) + "\n})()";
}

// ---- errors

let own = null; // URL of the module

function origin(line, column) {
  if (moved && line === moved.line && column >= moved.column) column = Math.max(moved.column, column - moved.by);
  return [line, column];
}

function failure(error) {
  let name = "", message = "", stack = "";
  try {
    if (error instanceof Error || typeof error?.stack === "string") {
      [name, message, stack] = [String(error.name), String(error.message), String(error.stack)];
      for (let e = error.cause, n = 0; e instanceof Error && n < 4; e = e.cause, n++) message += ": " + e.message;
    } else {
      message = "uncaught " + (typeof error === "string" ? error : Deno.inspect(error, { colors: false }));
    }
  } catch {
    message = "an error that cannot be shown";
  }
  const place = new RegExp(own.replace(/[.*+?^${}()|[\]\\]/g, "\\$&") + ":(\\d+):(\\d+)");
  let line = 0, column = 0;
  const frames = [];
  const reading = place.exec(message);
  if (reading) {
    // It is about reading the module: with an excerpt of what is not the
    // author's text.
    [line, column] = origin(Number(reading[1]), Number(reading[2]));
    const first = message.split("\n")[0];
    if (/^SyntaxError: /.test(first)) name = "SyntaxError";
    message = first.replace(/^SyntaxError: /, "").replace(new RegExp("\\s*(?:at )?" + place.source), "");
  }
  for (let frame of stack.split("\n").filter((l) => /^\s+at /.test(l))) {
    if (frame.includes(here) || /\b(ext|node):/.test(frame)) continue;
    const at = place.exec(frame);
    if (at) {
      const [l, c] = origin(Number(at[1]), Number(at[2]));
      frame = frame.replace(place, `main.ts:${l}:${c}`);
      if (line === 0) [line, column] = [l, c];
    }
    if (frames.length < 20) frames.push(frame.trim().slice(0, 400).replaceAll(work.href, "").replaceAll("file://", ""));
  }
  message = message.replace(/, run again with the (--[\w-]+) flag/, ": the session's policy does not allow it")
    .replace(/^Import "([^"]*)" not a dependency[^]*|^Failed loading \S+ for package "([^"]*)"[^]*|^JSR package manifest for '([^']*)' failed to load[^]*/, (all, a, b, c) =>
      `the package ${stringify(a ?? b ?? c)} is not installed: the node's configuration names those that are, in [[sandbox.dependencies]]`);
  return { name, message: message.slice(0, 16384), line, column, stack: frames.join("\n") };
}

// ---- values

function plain(value) {
  const warnings = [];
  const warn = (text) => { if (!warnings.includes(text) && warnings.length < 20) warnings.push(text); };
  const most = 100_000, deepest = 32;
  let nodes = 0;
  const above = [];
  const show = (v, depth) => {
    if (++nodes > most) { warn(`the result has more than ${most} values: the rest is left out`); return null; }
    switch (typeof v) {
      case "string": case "boolean": return v;
      case "number":
        if (Number.isFinite(v)) return v;
        warn(`${v} is not a number in JSON: it is written as text`);
        return String(v);
      case "bigint": warn("a BigInt is written as text"); return String(v);
      case "symbol": warn("a symbol is written as text"); return String(v);
      case "function": warn("a function is written as text"); return `[Function: ${v.name || "anonymous"}]`;
      case "undefined": return undefined;
    }
    if (v === null) return null;
    if (above.includes(v)) { warn("a cycle is cut"); return "[Circular]"; }
    if (depth >= deepest) { warn(`the result is deeper than ${deepest} levels: what is below is left out`); return Array.isArray(v) ? "[Array]" : "[Object]"; }
    above.push(v);
    try {
      if (typeof v.toJSON === "function") return show(v.toJSON(), depth + 1);
      if (v instanceof Error) return { ...show({ ...v }, depth), name: String(v.name), message: String(v.message) };
      if (v instanceof Map) { warn("a Map is written as a list of pairs"); return [...v].map((p) => show(p, depth + 1) ?? null); }
      if (v instanceof Set) { warn("a Set is written as a list"); return [...v].map((x) => show(x, depth + 1) ?? null); }
      if (v instanceof Promise) { warn("a promise inside the result is not waited for"); return "[Promise]"; }
      if (v instanceof RegExp) return String(v);
      if (v instanceof ArrayBuffer) { warn("an ArrayBuffer is written as its size"); return { byteLength: v.byteLength }; }
      if (ArrayBuffer.isView(v) && !(v instanceof DataView)) v = Array.prototype.slice.call(v, 0, most);
      if (Array.isArray(v)) {
        const list = [];
        for (let i = 0; i < v.length && nodes <= most; i++) list.push(show(v[i], depth + 1) ?? null);
        return list;
      }
      const out = {};
      for (const k of Object.keys(v)) {
        if (nodes > most) break;
        let x;
        try { x = show(v[k], depth + 1); } catch (e) { warn(`the property ${k} cannot be read: ${e}`.slice(0, 200)); continue; }
        if (x !== undefined) Object.defineProperty(out, k, { value: x, enumerable: true, configurable: true, writable: true });
      }
      return out;
    } finally {
      above.pop();
    }
  };
  const shown = show(value, 0);
  if (shown === undefined) return { ok: true, warnings };
  if (encode(stringify(shown)).length > bounds.most) {
    warn(`the result has more than ${bounds.most} bytes: it is left out`);
    return { ok: true, warnings };
  }
  return { ok: true, value: shown, warnings };
}

// ---- running

const main = new URL("main.ts", work);
const directory = decodeURIComponent(work.pathname).replace(/(.)\/$/, "$1");
Object.defineProperty(globalThis, "__engi", {
  value: {
    name: (name) => {
      name = String(name);
      return /^\.{0,2}\//.test(name) ? new URL(name, work).href : name;
    },
    meta: { url: main.href, filename: decodeURIComponent(main.pathname), dirname: directory, main: true, resolve: (name) => new URL(name, work).href },
  },
});

async function run(code, language) {
  const type = language === "javascript" ? "application/javascript" : "application/typescript";
  const load = (text) => import(own = URL.createObjectURL(new Blob([text], { type })));
  let module;
  try {
    module = await load(moduleOf(code));
  } catch (e) {
    if (!(e instanceof SyntaxError) || !/Illegal return statement/.test(e.message)) throw e;
    module = await load(returning(code));
  }
  return plain(await module.default);
}

globalThis.addEventListener("unhandledrejection", (e) => { e.preventDefault(); answer({ ok: false, error: failure(e.reason) }); });
globalThis.addEventListener("error", (e) => { e.preventDefault(); answer({ ok: false, error: failure(e.error ?? e.message) }); });

// The first of each is slow, and nobody waits yet.
await import(URL.createObjectURL(new Blob(["const a: number = 1; export default a"], { type: "application/typescript" })));
isExpression("a as b");
strips("let x: number");

function readLine() {
  const decoder = new TextDecoder(), piece = new Uint8Array(1 << 16);
  let text = "";
  for (;;) {
    const n = Deno.stdin.readSync(piece);
    if (n === null) leave(0); // nobody wants anything
    text += decoder.decode(piece.subarray(0, n), { stream: true });
    if (text.endsWith("\n")) return text;
  }
}

const request = JSON.parse(readLine());
bounds = { mark: request.mark, most: request.most };
own = "";
run(request.code, request.language).then(answer, (e) => answer({ ok: false, error: failure(e) }));

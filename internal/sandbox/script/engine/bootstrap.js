// Runs before an untrusted program, in the same realm. It takes everything it needs
// from the global objects now and looks nothing up later, so that the program cannot
// affect it by changing them. It can only spoil its own result.
(function (send, clock, names, max) {
  "use strict";
  const { apply, ownKeys, getOwnPropertyDescriptor: describe, get: reflectGet } = Reflect;
  const { defineProperty, freeze, create, getPrototypeOf } = Object;
  const { isArray } = Array;
  const { stringify, parse } = JSON;
  const { isView } = ArrayBuffer;
  const P = Promise, E = Error, S = String, N = Number;
  const kinds = { __proto__: null, Error: E, TypeError, RangeError, SyntaxError, ReferenceError };
  const call = (f, self, ...args) => apply(f, self, args);
  const proto = {
    __proto__: null,
    slice: S.prototype.slice, keys: create(null), date: Date.prototype.toISOString, time: Date.prototype.getTime,
    symbol: Symbol.prototype.toString, regexp: RegExp.prototype.toString, big: BigInt.prototype.toString,
    mapEach: Map.prototype.forEach, setEach: Set.prototype.forEach, index: S.prototype.indexOf, split: S.prototype.split,
    valueOf: { __proto__: null, string: S.prototype.valueOf, number: N.prototype.valueOf, boolean: Boolean.prototype.valueOf },
    mapSize: describe(Map.prototype, "size").get, setSize: describe(Set.prototype, "size").get,
    bufferSize: describe(ArrayBuffer.prototype, "byteLength").get,
    viewLength: describe(getPrototypeOf(Uint8Array.prototype), "length").get,
  };
  const tries = (f, otherwise) => { try { return f(); } catch { return otherwise; } };
  const is = (method, v) => tries(() => { call(method, v); return true; }, false);

  // Results.
  const warnings = [], lines = { __proto__: null, stdout: [], stderr: [] };
  let printed = 0, shown = 0, text = 0, nodes = 0;
  const push = (list, v) => defineProperty(list, list.length, { __proto__: null, value: v, writable: true, enumerable: true, configurable: true });
  const warn = (w) => { for (let i = 0; i < warnings.length; i++) if (warnings[i] === w) return; push(warnings, w); };
  const cut = (s, what) => {
    if (s.length <= max.text) return s;
    warn(`${what} had ${s.length} characters, the first ${max.text} are kept`);
    return call(proto.slice, s, 0, max.text);
  };

  // say encodes a string as JSON and counts its characters.
  const say = (s, what) => {
    if (text > max.text) { warn(`the result has more than ${max.text} characters: the rest is left out`); return '""'; }
    s = cut(s, what);
    text += s.length;
    return stringify(s);
  };

  // fit encodes any value as JSON.
  function fit(v, depth, above) {
    if (++nodes > max.nodes) { warn(`the result has more than ${max.nodes} values: the rest is left out`); return "null"; }
    switch (typeof v) {
      case "string": return say(v, "a string");
      case "number":
        if (v !== v || v === Infinity || v === -Infinity) { warn(`${v} is not a number in JSON: it is written as text`); return stringify(S(v)); }
        return S(v === 0 ? 0 : v);
      case "boolean": return v ? "true" : "false";
      case "bigint": warn("a BigInt is written as text"); return say(call(proto.big, v), "a BigInt");
      case "symbol": warn("a symbol is written as text"); return say(call(proto.symbol, v), "a symbol");
      case "undefined": return "null";
      case "function": warn("a function is written as text"); return say(`[Function: ${nameOf(v)}]`, "a name");
    }
    if (v === null) return "null";
    for (let a = above; a; a = a.above) if (a.v === v) { warn("a cycle is cut"); return '"[Circular]"'; }
    const list = tries(() => isArray(v), false);
    if (depth >= max.depth) { warn(`the result is deeper than ${max.depth} levels: what is below is left out`); return list ? '"[Array]"' : '"[Object]"'; }
    const me = { __proto__: null, v, above };
    const inner = (x) => fit(x, depth + 1, me);
    if (is(proto.time, v)) return tries(() => stringify(call(proto.date, v)), '"Invalid Date"');
    if (is(proto.regexp, v) && tries(() => v instanceof RegExp, false)) return say(tries(() => call(proto.regexp, v), "[RegExp]"), "a regular expression");
    if (tries(() => v instanceof E, false)) return `{"name":${say(textOf(v, "name", "Error"), "a name")},"message":${say(textOf(v, "message", ""), "a message")}}`;
    if (is(proto.mapSize, v)) {
      let out = "";
      warn("a Map is written as a list of pairs");
      call(proto.mapEach, v, (val, key) => { if (nodes <= max.nodes) out += `${out && ","}[${inner(key)},${inner(val)}]`; });
      return `[${out}]`;
    }
    if (is(proto.setSize, v)) {
      let out = "";
      warn("a Set is written as a list");
      call(proto.setEach, v, (val) => { if (nodes <= max.nodes) out += (out && ",") + inner(val); });
      return `[${out}]`;
    }
    if (is(proto.bufferSize, v)) { warn("an ArrayBuffer is written as its size"); return `{"byteLength":${call(proto.bufferSize, v)}}`; }
    for (const kind in proto.valueOf) if (is(proto.valueOf[kind], v)) return inner(call(proto.valueOf[kind], v));
    if (tries(() => v instanceof P, false)) { warn("a promise inside the result is not waited for"); return '"[Promise]"'; }
    if (list || (isView(v) && is(proto.viewLength, v))) {
      const n = tries(() => N(list ? v.length : call(proto.viewLength, v)), 0);
      let out = "";
      for (let i = 0; i < n; i++) {
        if (nodes > max.nodes) { warn(`the result has more than ${max.nodes} values: the rest is left out`); break; }
        out += (i ? "," : "") + inner(tries(() => v[i], undefined));
      }
      return `[${out}]`;
    }
    let out = "", hidden = false;
    const keys = tries(() => ownKeys(v), []);
    for (let i = 0; i < keys.length; i++) {
      const k = keys[i];
      const d = tries(() => describe(v, k), undefined);
      if (!d || !d.enumerable) continue;
      if (typeof k === "symbol") { hidden = true; continue; }
      if (nodes > max.nodes) { warn(`the result has more than ${max.nodes} values: the rest is left out`); break; }
      const val = tries(() => reflectGet(v, k), "[Throws]");
      if (val === undefined) continue;
      if (text > max.text) { warn(`the result has more than ${max.text} characters: the rest is left out`); break; }
      out += `${out && ","}${say(k, "a key")}:${inner(val)}`;
    }
    if (hidden) warn("properties named by symbols are left out");
    return `{${out}}`;
  }
  function nameOf(f) { const n = tries(() => f.name, ""); return typeof n === "string" && n ? cut(n, "a name") : "anonymous"; }
  function textOf(v, key, otherwise) { return tries(() => { const t = v[key]; return typeof t === "string" ? t : t === undefined ? otherwise : S(t); }, otherwise); }

  // show formats an argument of console.
  function show(v) {
    if (typeof v === "string") return v;
    if (v === undefined) return "undefined";
    if (typeof v === "bigint") return call(proto.big, v) + "n";
    if (typeof v === "symbol") return call(proto.symbol, v);
    if (typeof v === "function") return `[Function: ${nameOf(v)}]`;
    if (typeof v === "number") return S(v);
    if (v !== null && tries(() => v instanceof E, false)) return `${textOf(v, "name", "Error")}: ${textOf(v, "message", "")}`;
    const n = nodes, t = text, w = warnings.length;
    nodes = 0; text = 0;
    const out = fit(v, 0, null);
    nodes = n; text = t; warnings.length = w; // these apply only to the result
    return out;
  }
  const print = (list) => (...args) => {
    let line = "";
    for (let i = 0; i < args.length; i++) line += (i ? " " : "") + show(args[i]);
    const parts = call(proto.split, line, "\n");
    for (let i = 0; i < parts.length; i++) {
      if (printed >= max.lines) { warn(`more than ${max.lines} lines were printed: the rest is left out`); return; }
      if (shown > max.console) { warn(`more than ${max.console} characters were printed: the rest is left out`); return; }
      printed++;
      const part = cut(parts[i], "a line");
      shown += part.length;
      push(list, part);
    }
  };
  const out = print(lines.stdout), err = print(lines.stderr);
  const hide = (o, k, value) => defineProperty(o, k, { __proto__: null, value, writable: true, configurable: true, enumerable: false });
  hide(globalThis, "console", { __proto__: null, log: out, info: out, debug: out, warn: err, error: err, trace: err, dir: out, table: out });

  // Timers.
  const timers = new Map(), { get: mapGet, set: mapSet, delete: mapDelete } = Map.prototype;
  let lastTimer = 0;
  const arm = (repeat) => (f, ms, ...args) => {
    if (typeof f !== "function") throw new TypeError("a timer needs a function");
    if (call(proto.mapSize, timers) >= 1000) throw new RangeError("1000 timers are waiting, which is the most");
    const wait = ms > 0 ? N(ms) : 0, id = ++lastTimer;
    call(mapSet, timers, id, { __proto__: null, f, args, due: clock() + wait, every: repeat ? (wait > 1 ? wait : 1) : 0, id });
    return id;
  };
  const disarm = (id) => { call(mapDelete, timers, id); };
  hide(globalThis, "setTimeout", arm(false));
  hide(globalThis, "setInterval", arm(true));
  hide(globalThis, "clearTimeout", disarm);
  hide(globalThis, "clearInterval", disarm);
  const jobs = P.resolve(), then = P.prototype.then;
  hide(globalThis, "queueMicrotask", (f) => { if (typeof f !== "function") throw new TypeError("a microtask needs a function"); call(then, jobs, () => f()); });

  // Host functions.
  const waiting = new Map();
  let lastCall = 0;
  const api = {};
  for (let i = 0; i < names.length; i++) {
    const name = names[i], path = call(proto.split, name, ".");
    let at = api;
    for (let j = 0; j < path.length - 1; j++) at = at[path[j]] ??= {};
    const last = path[path.length - 1];
    const f = { [last]: (...args) => new P((resolve, reject) => {
      if (call(proto.mapSize, waiting) >= max.calls) throw new RangeError(`${max.calls} calls of api functions are waiting, which is the most`);
      if (lastCall >= max.all) throw new RangeError(`api functions were called ${max.all} times, which is the most`);
      defineProperty(args, "toJSON", { __proto__: null, value: undefined });
      const json = stringify(args);
      if (typeof json !== "string") throw new TypeError("the arguments cannot be written as JSON");
      const id = ++lastCall;
      call(mapSet, waiting, id, { __proto__: null, resolve, reject });
      send(id, name, json);
    }) }[last];
    at[last] = freeze(f);
  }
  const seal = (o) => { for (const k of ownKeys(o)) if (typeof o[k] === "object") seal(o[k]); return freeze(o); };
  defineProperty(globalThis, "api", { __proto__: null, value: seal(api), writable: false, configurable: false, enumerable: false });

  // Methods for the host.
  let state = "running", value, failure;
  const end = (v) => {
    if (state !== "running") return;
    if (v !== undefined) value = fit(v, 0, null); // an exception here is a failure of the program
    state = "done";
  };
  const fail = (e) => {
    if (state !== "running") return;
    state = "failed";
    failure = { __proto__: null, name: "", message: "", stack: "" };
    if (e !== null && (typeof e === "object" || typeof e === "function")) {
      failure.name = cut(textOf(e, "name", ""), "a name");
      failure.message = cut(textOf(e, "message", ""), "a message");
      failure.stack = call(proto.slice, textOf(e, "stack", ""), 0, 8192); // more frames than are shown
      if (!failure.name && !failure.message) failure.message = show(e);
    } else if (e === null) failure.message = "uncaught null: the program threw it, or had no memory left for another error";
    else failure.message = "uncaught " + show(e);
  };
  const watch = async (p) => { try { end(await (await p).value); } catch (e) { fail(e); } };
  return freeze({
    __proto__: null,
    watch: (p) => { watch(p); },
    answer: (id, json, name, message) => {
      const w = call(mapGet, waiting, id);
      if (!w) return;
      call(mapDelete, waiting, id);
      if (message === undefined || message === null) { w.resolve(parse(json)); return; }
      const e = new (kinds[name] || E)(message);
      if (name && !kinds[name]) defineProperty(e, "name", { __proto__: null, value: name, configurable: true, writable: true });
      w.reject(e);
    },
    // next returns the time of the next timer, or -1.
    next: () => { let t = -1; call(proto.mapEach, timers, (x) => { if (t < 0 || x.due < t) t = x.due; }); return t; },
    fire: () => {
      const now = clock();
      let best;
      call(proto.mapEach, timers, (x) => { if (x.due <= now && (!best || x.due < best.due || (x.due === best.due && x.id < best.id))) best = x; });
      if (!best) return false;
      if (best.every) best.due = now + best.every; else call(mapDelete, timers, best.id);
      try { apply(best.f, undefined, best.args); } catch (e) { fail(e); }
      return true;
    },
    state: () => state,
    waits: () => call(proto.mapSize, waiting),
    report: () => {
      const list = (l) => { let s = ""; for (let i = 0; i < l.length; i++) s += (i ? "," : "") + stringify(l[i]); return `[${s}]`; };
      let s = `{"stdout":${list(lines.stdout)},"stderr":${list(lines.stderr)},"warnings":${list(warnings)}`;
      if (value !== undefined) s += `,"value":${value}`;
      if (failure) s += `,"error":{"name":${stringify(failure.name)},"message":${stringify(failure.message)},"stack":${stringify(failure.stack)}}`;
      return s + "}";
    },
  });
})

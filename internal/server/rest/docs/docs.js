// A viewer of /openapi.json with a form to try each operation. It needs
// nothing from elsewhere, and builds the page from text only, never from HTML.
"use strict";

const $ = (id) => document.getElementById(id);

// el makes an element from attributes and children, which are texts or nodes.
function el(tag, attrs, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attrs || {})) {
    if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) e.setAttribute(name, value === true ? "" : value);
  }
  e.append(...children.filter((c) => c !== null && c !== undefined));
  return e;
}

let spec;

const resolve = (s) => (s && s.$ref ? { ...spec.components.schemas[s.$ref.split("/").pop()], name: s.$ref.split("/").pop(), description: s.description } : s || {});

function typeOf(schema) {
  const s = resolve(schema);
  if (s.oneOf) return s.oneOf.map(typeOf).join(" or ");
  const types = (Array.isArray(s.type) ? s.type : [s.type]).filter((t) => t && t !== "null");
  if (types[0] === "array") return "list of " + typeOf(s.items);
  if (s.name) return s.name;
  if (types[0] === "object" && s.additionalProperties) return "map of " + typeOf(s.additionalProperties);
  return (s.contentEncoding ? s.contentEncoding + " " : s.format ? s.format + " " : "") + (types[0] || "anything");
}

// fields shows the fields of a schema; nested ones open on demand.
function fields(schema, depth) {
  let s = resolve(schema);
  if (s.items) s = resolve(s.items);
  else if (s.additionalProperties && s.additionalProperties.$ref) s = resolve(s.additionalProperties);
  if (!s.properties) return null;
  const need = new Set(s.required || []);
  const rows = Object.entries(s.properties).map(([name, p]) => {
    const r = resolve(p);
    const about = el("td", {}, p.description || r.description || "");
    if (r.enum) about.append(" One of " + r.enum.join(", ") + ".");
    if (r.examples) about.append(el("span", { class: "type" }, " Example: " + r.examples.map((x) => JSON.stringify(x)).join(", ")));
    if (depth < 3) {
      const inner = fields(p, depth + 1);
      if (inner) about.append(el("details", {}, el("summary", {}, typeOf(p)), inner));
    }
    return el("tr", {}, el("td", {}, el("code", {}, name), need.has(name) ? el("span", { class: "need", title: "always there" }, " *") : null),
      el("td", { class: "type" }, typeOf(p)), about);
  });
  return el("table", {}, el("tbody", {}, ...rows));
}

const quote = (s) => "'" + s.replaceAll("'", "'\\''") + "'";

function operation(method, path, op) {
  const id = op.operationId;
  const inputs = {};
  const params = (op.parameters || []).map((p) => {
    const s = resolve(p.schema);
    const input = s.enum
      ? el("select", { "aria-label": p.name }, el("option", { value: "" }, ""), ...s.enum.map((v) => el("option", {}, v)))
      : el("input", { "aria-label": p.name, placeholder: s.default === undefined ? "" : String(s.default) });
    inputs[p.name] = { in: p.in, input };
    return el("tr", {}, el("td", {}, el("code", {}, p.name), p.required ? el("span", { class: "need" }, " *") : null),
      el("td", { class: "type" }, p.in + ", " + typeOf(p.schema)), el("td", {}, p.description || ""), el("td", {}, input));
  });

  let body = null;
  let examples = null;
  const bodySchema = op.requestBody && op.requestBody.content["application/json"];
  if (bodySchema) {
    const all = Object.values(bodySchema.examples || {});
    body = el("textarea", { "aria-label": "body", spellcheck: "false" });
    body.value = all.length ? JSON.stringify(all[0].value, null, 2) : "{}";
    examples = el("select", { "aria-label": "example", onchange: (e) => { body.value = JSON.stringify(all[e.target.selectedIndex].value, null, 2); } },
      ...all.map((x) => el("option", {}, x.summary)));
  }
  const forms = new Set();
  for (const [status, r] of Object.entries(op.responses)) {
    if (status.startsWith("2")) Object.keys(r.content || {}).forEach((f) => forms.add(f));
  }
  const accept = el("select", { "aria-label": "Accept" }, ...[...forms].map((f) => el("option", {}, f)));

  const request = () => {
    let url = path;
    const query = new URLSearchParams();
    const headers = {};
    for (const [name, p] of Object.entries(inputs)) {
      const value = p.input.value;
      if (p.in === "path") url = url.replace("{" + name + "}", name === "path" ? value.split("/").map(encodeURIComponent).join("/") : encodeURIComponent(value));
      else if (value && p.in === "query") query.set(name, value);
      else if (value) headers[name] = value;
    }
    if (forms.size) headers.Accept = accept.value;
    if (body) headers["Content-Type"] = "application/json";
    const q = query.toString();
    return { url: url + (q ? "?" + q : ""), headers, body: body ? body.value : undefined };
  };

  const out = el("pre", { hidden: true, "aria-live": "polite" });
  const say = (text) => { out.hidden = false; out.textContent = text; };
  let stop = null;
  const send = async (button) => {
    if (stop) { stop.abort(); return; }
    stop = new AbortController();
    button.textContent = "Stop";
    const r = request();
    try {
      if ($("key").value) r.headers.Authorization = "Bearer " + $("key").value.trim();
      const begun = performance.now();
      const resp = await fetch(r.url, { method: method.toUpperCase(), headers: r.headers, body: r.body, signal: stop.signal });
      let head = resp.status + " " + resp.statusText + "\n";
      for (const name of ["location", "retry-after", "x-request-id"]) {
        if (resp.headers.get(name)) head += name + ": " + resp.headers.get(name) + "\n";
      }
      say(head + "\n");
      const reader = resp.body ? resp.body.pipeThrough(new TextDecoderStream()).getReader() : null;
      let text = "";
      for (;;) {
        const { done, value } = reader ? await reader.read() : { done: true };
        if (done) break;
        text += value;
        if (text.length < 1 << 20) out.textContent = head + "\n" + text;
      }
      try { if (!(resp.headers.get("content-type") || "").includes("ndjson")) text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* it is no JSON */ }
      say(head + "after " + Math.round(performance.now() - begun) + " ms\n\n" + (text.length < 1 << 20 ? text : text.slice(0, 1 << 20) + "\n…"));
    } catch (e) {
      say(String(e));
    } finally {
      stop = null;
      button.textContent = "Send";
    }
  };
  const curl = () => {
    const r = request();
    let line = "curl -N";
    if (method !== "get" && !(method === "post" && r.body !== undefined)) line += " -X " + method.toUpperCase();
    line += " -H \"Authorization: Bearer $ENGI_API_KEY\"";
    for (const [name, value] of Object.entries(r.headers)) line += " \\\n  -H " + quote(name + ": " + value);
    if (r.body !== undefined) line += " \\\n  -d " + quote(r.body);
    say(line + " \\\n  " + quote(location.origin + r.url));
  };

  const button = el("button", { type: "button" }, "Send");
  button.addEventListener("click", () => send(button));
  const answers = Object.entries(op.responses).map(([status, r]) => {
    const kinds = Object.entries(r.content || {});
    return el("details", {}, el("summary", {}, status + " " + (r.description || "")),
      ...kinds.map(([kind, c]) => el("div", {}, el("p", {}, el("code", {}, kind), " ", el("span", { class: "type" }, typeOf(c.schema))), fields(c.schema, 0) || "")));
  });
  return el("section", { id },
    el("h3", {}, op.summary),
    el("p", {}, el("span", { class: "method" }, method.toUpperCase()), el("code", {}, path)),
    el("p", {}, op.description || ""),
    params.length ? el("table", {}, el("tbody", {}, ...params)) : null,
    body ? el("div", {}, el("details", {}, el("summary", {}, "Body: " + typeOf(bodySchema.schema)), fields(bodySchema.schema, 0)), body) : null,
    el("div", { class: "row" }, examples, forms.size > 1 ? el("label", {}, "Accept ", accept) : null, button,
      el("button", { type: "button", class: "quiet", onclick: curl }, "curl")),
    out, ...answers);
}

async function main() {
  spec = await (await fetch("/openapi.json")).json();
  const nav = $("nav");
  const view = $("main");
  view.replaceChildren(el("h2", {}, spec.info.title + " " + spec.info.version), el("p", {}, spec.info.description));
  for (const tag of spec.tags) {
    nav.append(el("h2", {}, tag.name));
    view.append(el("h2", {}, tag.name), el("p", {}, tag.description || ""));
    for (const [path, item] of Object.entries(spec.paths)) {
      for (const method of ["get", "post", "delete"]) {
        const op = item[method];
        if (!op || !op.tags.includes(tag.name)) continue;
        nav.append(el("a", { href: "#" + op.operationId }, op.summary));
        view.append(operation(method, path, op));
      }
    }
  }
  if (location.hash) location.hash = location.hash.slice(1);
}

// The key stays in this tab, and only as long as the tab.
$("key").value = sessionStorage.getItem("engi-key") || "";
$("key").addEventListener("change", (e) => sessionStorage.setItem("engi-key", e.target.value));
main().catch((e) => $("main").replaceChildren(el("p", {}, "The description could not be read: " + e)));

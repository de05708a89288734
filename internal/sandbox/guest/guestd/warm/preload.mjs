// Preloaded into a deno that waits for its program.
{
  const here = import.meta.dirname;
  const go = Deno.openSync(here + "/go");
  Deno.writeTextFileSync(here + "/ready", "r", { create: false });
  let data = new Uint8Array(0);
  const piece = new Uint8Array(65536);
  for (let n; (n = go.readSync(piece)) !== null && n > 0; ) {
    const more = new Uint8Array(data.length + n);
    more.set(data);
    more.set(piece.subarray(0, n), data.length);
    data = more;
  }
  go.close();
  const end = data.length - 2;
  if (end < 0 || data[end] !== 0 || data[end + 1] !== 0) Deno.exit(1);
  const text = new TextDecoder().decode(data.subarray(0, end));
  const cut = text.indexOf("\0\0");
  const args = text.slice(0, cut).split("\0").slice(1);
  const all = [...Deno.args, ...args];
  if (args.length > 0) Object.defineProperty(Deno, "args", { get: () => all, set: undefined, enumerable: true, configurable: true });
  for (const v of text.slice(cut + 2).split("\0").slice(1)) {
    const i = v.indexOf("=");
    Deno.env.set(v.slice(0, i), v.slice(i + 1));
  }
  Deno.env.delete("ENGI_PRELOAD");
}

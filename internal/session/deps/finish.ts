// Runs at the end of an installation, with every permission, in the sandbox of
// the build. It writes down which versions were chosen, so that none is chosen
// anew, and lets the packages look as if they came from the public registry:
// sessions look there whatever the mirror was, and ask nobody.
const [dir, ...packages] = Deno.args;
const config = JSON.parse(await Deno.readTextFile(`${dir}/deno.json`));

const lock = JSON.parse(await Deno.readTextFile(`${dir}/deno.lock`).catch(() => "{}"));
const chosen: Record<string, string> = {};
for (const [specifier, version] of Object.entries<string>(lock.specifiers ?? {})) {
  const name = specifier.slice(0, specifier.lastIndexOf("@"));
  chosen[name] = version.replace(/_.*$/, ""); // peers follow
}
for (const [name, target] of Object.entries<string>(config.imports)) {
  const [, kind, pkg] = /^(npm|jsr):\/?(@[^/]+\/[^@/]+|[^@/]+)/.exec(target)!;
  const version = chosen[`${kind}:${pkg}`];
  if (!version) throw new Error(`no version of ${pkg} was chosen`);
  config.imports[name] = name.endsWith("/") ? `${kind}:/${pkg}@${version}/` : `${kind}:${pkg}@${version}`;
}
await Deno.writeTextFile(`${dir}/deno.json`, JSON.stringify(config, null, 2) + "\n");
await Deno.remove(`${dir}/deno.lock`).catch(() => {});

const npm = `${dir}/cache/npm`;
async function find(at: string, name: string): Promise<string | null> {
  const there = await Deno.stat(`${at}/${name}/registry.json`).then(() => true, () => false);
  if (there) return at;
  for await (const e of Deno.readDir(at)) {
    const found = e.isDirectory && (await find(`${at}/${e.name}`, name));
    if (found) return found;
  }
  return null;
}
const first = packages.find((p) => !p.startsWith("jsr:"));
if (first) {
  const from = await find(npm, first);
  if (!from) throw new Error(`${first} is not where it was installed`);
  await Deno.rename(from, `${dir}/npm`);
  await Deno.remove(npm, { recursive: true });
  await Deno.mkdir(npm);
  await Deno.rename(`${dir}/npm`, `${npm}/registry.npmjs.org`);
}
for (const [name, target] of Object.entries<string>(config.imports)) {
  if (!name.endsWith("/")) console.log(`installed ${target}`);
}

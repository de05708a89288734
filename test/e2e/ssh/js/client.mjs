// Uses a sandbox as an extension of an editor does, with ssh2, and prints what it
// got. Arguments: host, port, user, file of the key, known host key, another
// host key.
import { createHash, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import ssh2 from "ssh2";

const [host, port, username, keyFile, hostKey, otherKey] = process.argv.slice(2);
const promised = (f) => new Promise((done, fail) => f((err, value) => (err ? fail(err) : done(value))));
const settings = { host, port, username, privateKey: readFileSync(keyFile), readyTimeout: 120_000, keepaliveInterval: 200, keepaliveCountMax: 3 };

function connect(known) {
	const c = new ssh2.Client();
	const hostVerifier = (key) => key.toString("base64") === known.split(" ")[1];
	return new Promise((done, fail) => c.on("ready", () => done(c)).on("error", fail).connect({ ...settings, hostVerifier }));
}

// ended collects what a channel prints until it is closed.
function ended(channel) {
	const x = { out: "", err: "", code: null, signal: null };
	channel.on("data", (b) => (x.out += b));
	channel.stderr.on("data", (b) => (x.err += b));
	channel.on("exit", (code, signal) => Object.assign(x, { code, signal }));
	return new Promise((done) => channel.on("close", () => done(x)));
}

const results = {};
const c = await connect(hostKey);
const lost = new Promise((_, fail) => c.on("close", () => fail(new Error("the connection has ended"))));
lost.catch(() => {});
const exec = async (command, options = {}) => ended(await promised((f) => c.exec(command, options, f)));

const x = await exec("echo $GREETING; echo no >&2; exit 7", { env: { GREETING: "hi" } });
results.exec = `${x.out}${x.err}${x.code}`;
const upper = await promised((f) => c.exec("tr a-z A-Z", f));
const loud = ended(upper);
upper.end("loud");
results.input = (await loud).out;
results.many = (await Promise.all([...Array(8).keys()].map((i) => exec(`sleep 0.2; echo ${i}`)))).map((y) => y.out.trim()).join("");
results.signal = (await exec("kill -TERM $$")).signal;

const shell = await promised((f) => c.shell({ term: "xterm", cols: 111, rows: 33 }, f));
let seen = "";
shell.on("data", (b) => (seen += b));
const left = ended(shell);
const until = async (text) => {
	while (!seen.includes(text)) await Promise.race([sleep(20), lost]);
};
shell.write("echo is $(stty size) $TERM\n");
await until("is 33 111 xterm");
shell.setWindow(44, 122, 0, 0);
for (let i = 0; !seen.includes("now 44 122"); i++) {
	shell.write(`echo now $(stty size) end${i}\n`);
	await until(` end${i}\r\n`);
	if (i > 100) throw new Error(`the size does not change: ${seen}`);
}
shell.write("exit 9\n");
results.shell = (await left).code;

const sftp = await promised((f) => c.sftp(f));
const data = randomBytes(3 << 20);
await promised((f) => sftp.mkdir("lib", f));
await promised((f) => sftp.writeFile("lib/a", data, { mode: 0o640 }, f));
await promised((f) => sftp.rename("lib/a", "lib/b", f));
await promised((f) => sftp.symlink("b", "lib/link", f));
results.same = data.equals(await promised((f) => sftp.readFile("lib/link", f)));
const sum = (await exec("sha256sum lib/b")).out.split(" ")[0];
results.inside = sum === createHash("sha256").update(data).digest("hex");
const stat = await promised((f) => sftp.stat("lib/b", f));
results.stat = `${(stat.mode & 0o777).toString(8)} ${stat.size}`;
results.list = (await promised((f) => sftp.readdir("lib", f))).map((e) => e.filename).sort().join(" ");
results.missing = await promised((f) => sftp.stat("lib/none", f)).catch((err) => err.code);
for (const name of ["lib/b", "lib/link"]) await promised((f) => sftp.unlink(name, f));
await promised((f) => sftp.rmdir("lib", f));

const server = await promised((f) => c.exec("exec python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 8131)); print(1, flush=True); c, _ = s.accept(); c.sendall(c.recv(100).upper()); c.close()'", f));
await new Promise((done) => server.once("data", done));
const tunnel = await promised((f) => c.forwardOut("127.0.0.1", 1, "127.0.0.1", 8131, f));
let answer = "";
tunnel.on("data", (b) => (answer += b));
const closed = new Promise((done) => tunnel.on("end", done));
tunnel.write("through");
await closed;
tunnel.end();
results.tunnel = answer;
results.closed = await promised((f) => c.forwardOut("127.0.0.1", 1, "127.0.0.1", 8132, f)).then(() => "open", () => "refused");

await Promise.race([sleep(2000), lost]); // ten signs of life, each of which is answered
results.alive = (await exec("echo yes")).out.trim();
c.end();
results.pinned = await connect(otherKey).then(() => "no", () => "yes");
console.log(JSON.stringify(results));

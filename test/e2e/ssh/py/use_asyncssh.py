"""Uses a sandbox with asyncssh, and prints what it got. Arguments: host, port,
user, file of the key, known host key, another host key."""
import asyncio, hashlib, json, os, sys

import asyncssh

host, port, user, key, host_key, other_key = sys.argv[1:]
SERVER = "exec python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 8131)); print(1, flush=True); c, _ = s.accept(); c.sendall(c.recv(100).upper()); c.close()'"


def connect(known):
    return asyncssh.connect(host, int(port), username=user, client_keys=[key], agent_path=None, config=None, login_timeout=120,
                            known_hosts=asyncssh.import_known_hosts(f"[{host}]:{port} {known}\n"), keepalive_interval=0.2, keepalive_count_max=3)


async def shell(c):
    p = await c.create_process(term_type="xterm", term_size=(111, 33))
    seen = ""

    async def until(text):
        nonlocal seen
        while text not in seen:
            part = await p.stdout.read(4096)
            if not part:
                raise EOFError(seen)
            seen += part

    p.stdin.write("echo is $(stty size) $TERM\n")
    await until("is 33 111 xterm")
    p.change_terminal_size(122, 44)
    for i in range(100):
        p.stdin.write(f"echo now $(stty size) end{i}\n")
        await until(f" end{i}\r\n")
        if "now 44 122" in seen:
            break
    else:
        raise RuntimeError("the size does not change: " + seen)
    p.stdin.write("exit 9\n")
    return (await p.wait()).exit_status


async def files(c, results):
    data = os.urandom(3 << 20)
    async with c.start_sftp_client() as sftp:
        await sftp.mkdir("lib")
        async with sftp.open("lib/a", "wb") as f:
            await f.write(data)
        await sftp.chmod("lib/a", 0o640)
        await sftp.posix_rename("lib/a", "lib/b")
        await sftp.symlink("b", "lib/link")
        async with sftp.open("lib/link", "rb") as f:
            results["same"] = await f.read() == data
        results["inside"] = (await c.run("sha256sum lib/b")).stdout.split()[0] == hashlib.sha256(data).hexdigest()
        stat = await sftp.stat("lib/b")
        results["stat"] = f"{stat.permissions & 0o777:o} {stat.size}"
        results["list"] = " ".join(sorted(n for n in await sftp.listdir("lib") if n not in (".", "..")))
        try:
            await sftp.stat("lib/none")
        except asyncssh.SFTPNoSuchFile as e:
            results["missing"] = e.code
        await sftp.rmtree("lib")


async def main():
    results = {}
    async with connect(host_key) as c:
        x = await c.run("echo $GREETING; echo no >&2; exit 7", env={"GREETING": "hi"})
        results["exec"] = f"{x.stdout}{x.stderr}{x.exit_status}"
        results["input"] = (await c.run("tr a-z A-Z", input="loud")).stdout
        many = await asyncio.gather(*(c.run(f"sleep 0.2; echo {i}") for i in range(8)))
        results["many"] = "".join(x.stdout.strip() for x in many)
        results["signal"] = (await c.run("kill -TERM $$")).exit_signal[0]
        results["shell"] = await shell(c)
        await files(c, results)
        server = await c.create_process(SERVER)
        await server.stdout.readline()
        r, w = await c.open_connection("127.0.0.1", 8131)
        w.write(b"through")
        results["tunnel"] = (await r.read()).decode()
        try:
            await c.open_connection("127.0.0.1", 8132)
            results["closed"] = "open"
        except asyncssh.ChannelOpenError:
            results["closed"] = "refused"
        await asyncio.sleep(2)  # ten signs of life, each of which is answered
        results["alive"] = (await c.run("echo yes")).stdout.strip()
    try:
        async with connect(other_key):
            results["pinned"] = "no"
    except asyncssh.HostKeyNotVerifiable:
        results["pinned"] = "yes"
    print(json.dumps(results))


asyncio.run(main())

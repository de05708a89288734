"""Uses a sandbox with paramiko, and prints what it got. Arguments: host, port,
user, file of the key, known host key, another host key."""
import base64, hashlib, json, os, sys, time

import paramiko

host, port, user, key, host_key, other_key = sys.argv[1:]
SERVER = "exec python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 8131)); print(1, flush=True); c, _ = s.accept(); c.sendall(c.recv(100).upper()); c.close()'"


def connect(known):
    kind, data = known.split()[:2]
    c = paramiko.SSHClient()
    c.get_host_keys().add(f"[{host}]:{port}", kind, paramiko.PKey.from_type_string(kind, base64.b64decode(data)))
    c.set_missing_host_key_policy(paramiko.RejectPolicy())
    c.connect(host, int(port), user, key_filename=key, allow_agent=False, look_for_keys=False, timeout=120)
    return c


results = {}
c = connect(host_key)
transport = c.get_transport()
transport.set_keepalive(1)


def run(command, stdin="", **more):
    i, o, e = c.exec_command(command, **more)
    i.write(stdin)
    i.channel.shutdown_write()
    return o.read().decode(), e.read().decode(), o.channel.recv_exit_status()


results["exec"] = "%s%s%d" % run("echo $GREETING; echo no >&2; exit 7", environment={"GREETING": "hi"})
results["input"] = run("tr a-z A-Z", "loud")[0]
results["many"] = "".join(o.read().decode().strip() for o in [c.exec_command(f"sleep 0.2; echo {i}")[1] for i in range(8)])
results["signal"] = run("kill -TERM $$")[2]  # it knows no signals

p = c.invoke_shell("xterm", 111, 33)
p.settimeout(60)
seen = ""


def until(text):
    global seen
    while text not in seen:
        part = p.recv(4096)
        if not part:
            raise EOFError(seen)
        seen += part.decode()


p.sendall("echo is $(stty size) $TERM\n")
until("is 33 111 xterm")
p.resize_pty(122, 44)
for i in range(100):
    p.sendall(f"echo now $(stty size) end{i}\n")
    until(f" end{i}\r\n")
    if "now 44 122" in seen:
        break
else:
    raise RuntimeError("the size does not change: " + seen)
p.sendall("exit 9\n")
results["shell"] = p.recv_exit_status()

sftp, data = c.open_sftp(), os.urandom(3 << 20)
sftp.mkdir("lib")
with sftp.open("lib/a", "wb") as f:
    f.set_pipelined(True)
    f.write(data)
sftp.chmod("lib/a", 0o640)
sftp.posix_rename("lib/a", "lib/b")
sftp.symlink("b", "lib/link")
with sftp.open("lib/link", "rb") as f:
    f.prefetch()
    results["same"] = f.read() == data
results["inside"] = run("sha256sum lib/b")[0].split()[0] == hashlib.sha256(data).hexdigest()
stat = sftp.stat("lib/b")
results["stat"] = f"{stat.st_mode & 0o777:o} {stat.st_size}"
results["list"] = " ".join(sorted(sftp.listdir("lib")))
try:
    sftp.stat("lib/none")
except FileNotFoundError as e:
    results["missing"] = e.errno
for name in ("lib/b", "lib/link"):
    sftp.remove(name)
sftp.rmdir("lib")

o = c.exec_command(SERVER)[1]
o.readline()
tunnel = transport.open_channel("direct-tcpip", ("127.0.0.1", 8131), ("127.0.0.1", 1))
tunnel.sendall(b"through")
answer = b""
while part := tunnel.recv(100):
    answer += part
results["tunnel"] = answer.decode()
try:
    transport.open_channel("direct-tcpip", ("127.0.0.1", 8132), ("127.0.0.1", 1))
    results["closed"] = "open"
except paramiko.ChannelException:
    results["closed"] = "refused"
time.sleep(2.5)  # at least one sign of life, which must not be taken amiss
results["alive"] = run("echo yes")[0].strip()
c.close()
try:
    connect(other_key)
    results["pinned"] = "no"
except paramiko.BadHostKeyException:
    results["pinned"] = "yes"
print(json.dumps(results))

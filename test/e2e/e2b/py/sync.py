import os
import random
import time
import urllib.request

from e2b import (
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FilesystemEventType,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    Template,
    TimeoutException,
)
from scenario import about, fails, run, scenario, until

about("Python, synchronous")


def box(ends, **opts):
    s = Sandbox.create("base", timeout=opts.pop("timeout", 120), **opts)
    ends.after(lambda: s.kill())
    return s


def mark():
    return f"m{random.random()}"


@scenario("create, look, kill")
def _(t):
    s = box(t, metadata={"a": "b c&d=ü"}, envs={"X": "y"})
    info = s.get_info()
    assert info.sandbox_id == s.sandbox_id and info.metadata == {"a": "b c&d=ü"}
    assert info.state.value == "running", info.state
    assert s.commands.run("echo $X").stdout == "y\n"
    assert s.is_running()
    assert s.kill() is True
    assert Sandbox.kill(s.sandbox_id) is False
    assert not s.is_running()


@scenario("list with a filter and in pages")
def _(t):
    m = mark()
    ids = [box(t, metadata={"run": m}).sandbox_id for _ in range(2)]
    from e2b import SandboxQuery

    pages = Sandbox.list(query=SandboxQuery(metadata={"run": m}), limit=1)
    seen = []
    while pages.has_next:
        seen += [x.sandbox_id for x in pages.next_items()]
    assert seen == ids[::-1], (seen, ids)


@scenario("connect and deadlines")
def _(t):
    s = box(t)
    s.files.write("f", "x")
    c = Sandbox.connect(s.sandbox_id)
    assert c.files.read("f") == "x"
    s.set_timeout(30)
    left = s.get_info().end_at.timestamp() - time.time()
    assert 20 < left < 32, left
    fails(NotFoundException, Sandbox.connect, "a" * 26)


@scenario("a wrong key, an unknown template")
def _(t):
    fails(AuthenticationException, Sandbox.create, "base", api_key="e2b_" + "0" * 40)
    fails(SandboxException, Sandbox.create, "no-such-template")


@scenario("commands: output, exit code, user, directory, variables")
def _(t):
    s = box(t)
    r = s.commands.run("echo out; echo err >&2")
    assert (r.exit_code, r.stdout, r.stderr) == (0, "out\n", "err\n")
    err = fails(CommandExitException, s.commands.run, "echo x; exit 3")
    assert (err.exit_code, err.stdout) == (3, "x\n")
    assert s.commands.run("id -un; pwd", user="root", cwd="/tmp").stdout == "root\n/tmp\n"
    assert s.commands.run("echo $A", envs={"A": "ü"}).stdout == "ü\n"


@scenario("commands: background, list, connect, kill")
def _(t):
    s = box(t)
    h = s.commands.run("until [ -e /tmp/seen ]; do sleep 0.05; done; seq 40", background=True)
    assert any(p.pid == h.pid for p in s.commands.list())
    c = s.commands.connect(h.pid)
    s.files.write("/tmp/seen", "")
    assert c.wait().stdout.endswith("40\n")
    k = s.commands.run("sleep 100", background=True)
    assert k.kill() is True
    fails(CommandExitException, k.wait)
    assert s.commands.kill(k.pid) is False


@scenario("commands: standard input and callbacks")
def _(t):
    s = box(t)
    h = s.commands.run("head -n 1", background=True, stdin=True)
    s.commands.send_stdin(h.pid, "hello\n")
    got = []
    assert h.wait(on_stdout=got.append).stdout == "hello\n"
    assert "".join(got) == "hello\n"


@scenario("commands: too long")
def _(t):
    s = box(t)
    fails(TimeoutException, s.commands.run, "sleep 100", timeout=1)


@scenario("commands: what is refused")
def _(t):
    s = box(t)
    fails(AuthenticationException, s.commands.run, "true", user="root123")
    fails(InvalidArgumentException, s.commands.run, "true", cwd="/no/such")
    fails(NotFoundException, s.commands.connect, 999999)


@scenario("files: text, bytes, streams, many")
def _(t):
    s = box(t)
    data = os.urandom(300_000)
    s.files.write("/tmp/d/t", "grüße 😀")
    assert s.files.read("/tmp/d/t") == "grüße 😀"
    s.files.write("/tmp/d/b", data)
    assert bytes(s.files.read("/tmp/d/b", format="bytes")) == data
    assert b"".join(s.files.read("/tmp/d/b", format="stream")) == data
    from e2b.sandbox.filesystem.filesystem import WriteEntry

    made = s.files.write_files([WriteEntry(path="/tmp/d/1", data="one"), WriteEntry(path="/tmp/d/2", data=b"two")])
    assert [m.path for m in made] == ["/tmp/d/1", "/tmp/d/2"]
    s.files.write("/tmp/d/e", "")
    assert s.files.read("/tmp/d/e") == ""


@scenario("files: directories and information")
def _(t):
    s = box(t)
    assert s.files.make_dir("/tmp/d/a") is True
    assert s.files.make_dir("/tmp/d/a") is False
    s.files.write("/tmp/d/f", "12345")
    assert [e.name for e in s.files.list("/tmp/d")] == ["a", "f"]
    i = s.files.get_info("/tmp/d/f")
    assert (i.size, i.owner, i.mode, i.permissions) == (5, "user", 0o644, "-rw-r--r--"), i
    assert s.files.rename("/tmp/d/f", "/tmp/d/g").path == "/tmp/d/g"
    assert s.files.exists("/tmp/d/g") and not s.files.exists("/tmp/d/f")
    s.files.remove("/tmp/d")
    assert not s.files.exists("/tmp/d")
    fails(FileNotFoundException, s.files.read, "/tmp/d/g")


@scenario("files: watching by asking")
def _(t):
    s = box(t)
    s.files.make_dir("/tmp/w/sub")
    flat, deep = s.files.watch_dir("/tmp/w"), s.files.watch_dir("/tmp/w", recursive=True)
    s.files.write("/tmp/w/f", "1")
    s.files.write("/tmp/w/sub/g", "1")
    seen, below = [], []

    def done():
        seen.extend(flat.get_new_events())
        below.extend(deep.get_new_events())
        return any(e.name == "f" and e.type == FilesystemEventType.WRITE for e in seen) and any(e.name == "sub/g" for e in below)

    until(done, "the events")
    assert not any("/" in e.name for e in seen), seen
    flat.stop()
    deep.stop()
    fails(SandboxException, flat.get_new_events)
    fails(NotFoundException, s.files.watch_dir, "/tmp/none")


@scenario("terminals")
def _(t):
    from e2b import PtySize

    s = box(t)
    h = s.pty.create(PtySize(rows=24, cols=80))
    s.pty.resize(h.pid, PtySize(rows=30, cols=100))
    s.pty.send_stdin(h.pid, b"echo size=$(tput cols)x$(tput lines); exit\n")
    out = []
    h.wait(on_pty=out.append)
    assert b"size=100x30" in b"".join(out), out


@scenario("metrics")
def _(t):
    s = box(t)
    m = until(lambda: s.get_metrics(), "a metric", 30)[-1]
    assert m.cpu_count >= 1 and 0 < m.mem_used <= m.mem_total and m.disk_total > 0, m


@scenario("signed URLs")
def _(t):
    s = box(t)
    s.files.write("/tmp/f", "signed")
    url = s.download_url("/tmp/f", user="user", use_signature_expiration=60)
    with urllib.request.urlopen(url) as r:
        assert r.read() == b"signed"


@scenario("pause and resume")
def _(t):
    s = box(t)
    s.commands.run("echo kept > /dev/shm/f")
    s.pause()
    assert s.get_info().state.value == "paused"
    c = Sandbox.connect(s.sandbox_id)
    assert c.commands.run("cat /dev/shm/f").stdout == "kept\n"


@scenario("snapshots and forks")
def _(t):
    s = box(t)
    s.files.write("f", "snap")
    p = s.create_snapshot()
    t.after(lambda: Sandbox.delete_snapshot(p.snapshot_id))
    c = Sandbox.create(p.snapshot_id, timeout=60)
    t.after(lambda: c.kill())
    assert c.files.read("f") == "snap"


@scenario("git")
def _(t):
    s = box(t)
    s.git.init("/tmp/g", initial_branch="main")
    s.git.configure_user("Ann", "ann@example.com", scope="local", path="/tmp/g")
    s.files.write("/tmp/g/a", "1")
    s.git.add("/tmp/g")
    s.git.commit("/tmp/g", "first")
    assert s.git.branches("/tmp/g").current_branch == "main"
    assert s.git.status("/tmp/g").is_clean


@scenario("templates")
def _(t):
    name = f"py-{random.randrange(1 << 40):x}"
    lines = []
    template = Template().from_template("base").set_envs({"STAGE": "py"}).run_cmd("echo $STAGE | sudo tee /opt/made")
    Template.build(template, name, on_build_logs=lines.append)
    assert lines
    assert Template.exists(name)
    s = Sandbox.create(name, timeout=60)
    t.after(lambda: s.kill())
    assert s.files.read("/opt/made") == "py\n"


@scenario("volumes")
def _(t):
    from e2b import Volume

    v = Volume.create(f"py-{random.randrange(1 << 40):x}")
    t.after(lambda: Volume.destroy(v.volume_id))
    v.write_file("/a/b", "from outside")
    assert v.read_file("/a/b") == "from outside"
    s = box(t, volume_mounts={"/data": v})
    assert s.files.read("/data/a/b") == "from outside"
    s.kill()


@scenario("secrets")
def _(t):
    from e2b import Secret

    c = Secret.create(f"py-{random.randrange(1 << 40):x}", "value")
    assert Secret.get_info(c.name).secret_id == c.secret_id
    assert Secret.update(c.name, "other").version == 2
    assert Secret.destroy(c.name) is True
    assert Secret.destroy(c.name) is False


run(2)

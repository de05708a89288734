# The package before it had a transport of its own: what openai-agents pins.
import asyncio
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "py"))

from e2b import AsyncSandbox, AuthenticationException, CommandExitException, FileType, NotFoundException, Sandbox, TimeoutException
from e2b.sandbox.commands.command_handle import PtySize
from scenario import about, fails_async, run_async, scenario, until_async

# It checks the form of keys.
os.environ["E2B_API_KEY"] = "e2b_" + os.environ["E2B_API_KEY"].encode().hex()

about("Python 2.31")


async def box(ends, **opts):
    s = await AsyncSandbox.create("base", timeout=120, **opts)
    ends.after(lambda: s.kill())
    return s


@scenario("create, look, connect, kill")
async def _(t):
    s = await box(t, metadata={"a": "b c&d=ü"}, envs={"X": "y"})
    c = await AsyncSandbox.connect(s.sandbox_id)
    assert (await c.commands.run("echo $X")).stdout == "y\n"
    assert (await c.get_info()).metadata == {"a": "b c&d=ü"}
    await c.set_timeout(60)
    assert await s.is_running() and await s.kill() and not await s.is_running()
    await fails_async(AuthenticationException, AsyncSandbox.create("base", api_key="e2b_" + "0" * 40))
    await fails_async(NotFoundException, AsyncSandbox.connect("a" * 26))


@scenario("commands")
async def _(t):
    s = await box(t)
    seen = []
    r = await s.commands.run("echo out; echo err >&2; pwd", cwd="/tmp", envs={"A": "b"}, on_stdout=seen.append)
    assert (r.stdout, r.stderr, "".join(seen)) == ("out\n/tmp\n", "err\n", "out\n/tmp\n")
    err = await fails_async(CommandExitException, s.commands.run("echo x; exit 3"))
    assert (err.exit_code, err.stdout) == (3, "x\n")
    await fails_async(TimeoutException, s.commands.run("sleep 100", timeout=1))
    h = await s.commands.run("head -n 1", background=True, stdin=True)
    assert any(p.pid == h.pid for p in await s.commands.list())
    await s.commands.send_stdin(h.pid, "hello\n")
    assert (await h.wait()).stdout == "hello\n"


@scenario("files")
async def _(t):
    s = await box(t)
    data = os.urandom(300_000)
    await s.files.write("/tmp/d/b", data)
    assert bytes(await s.files.read("/tmp/d/b", format="bytes")) == data
    await s.commands.run("ln -s b /tmp/d/link")
    assert [(e.name, e.type) for e in await s.files.list("/tmp/d")] == [("b", FileType.FILE), ("link", FileType.FILE)]
    link = await s.files.get_info("/tmp/d/link")
    assert (link.symlink_target, link.mode) == ("/tmp/d/b", 0o644), link
    assert await s.files.make_dir("/tmp/e") and not await s.files.make_dir("/tmp/e")
    await s.files.rename("/tmp/d/b", "/tmp/e/c")
    await s.files.remove("/tmp/d")
    assert await s.files.exists("/tmp/e/c") and not await s.files.exists("/tmp/d")
    seen = []
    w = await s.files.watch_dir("/tmp/e", on_event=seen.append)
    await s.files.write("/tmp/e/new", "1")
    await until_async(lambda: any(e.name == "new" for e in seen), "the event")
    await w.stop()


@scenario("a terminal")
async def _(t):
    s = await box(t)
    out = []
    h = await s.pty.create(PtySize(rows=24, cols=80), on_data=out.append)
    await s.pty.send_stdin(h.pid, b"echo $((6*7)); exit\n")
    await h.wait()
    assert b"42" in b"".join(out), out


@scenario("pause and resume, with processes")
async def _(t):
    s = await box(t)
    h = await s.commands.run("sleep 1000", background=True)
    await s.pause()
    c = await AsyncSandbox.connect(s.sandbox_id)
    assert any(p.pid == h.pid for p in await c.commands.list())


@scenario("synchronous")
async def _(t):
    def work():
        s = Sandbox.create("base", timeout=120)
        try:
            s.files.write("f", "here")
            return s.commands.run("cat f").stdout
        finally:
            s.kill()

    assert await asyncio.to_thread(work) == "here"


run_async(2)

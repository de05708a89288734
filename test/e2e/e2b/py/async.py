import asyncio
import os
import random

from e2b import (
    AsyncSandbox,
    AsyncTemplate,
    AuthenticationException,
    CommandExitException,
    FilesystemEventType,
    NotFoundException,
    SandboxException,
    Template,
    TimeoutException,
)
from scenario import about, fails_async, run_async, scenario, until_async

about("Python, asynchronous")


async def box(ends, **opts):
    s = await AsyncSandbox.create("base", timeout=opts.pop("timeout", 120), **opts)
    ends.after(lambda: s.kill())
    return s


@scenario("create, look, kill")
async def _(t):
    s = await box(t, metadata={"a": "b"})
    assert (await s.get_info()).metadata == {"a": "b"}
    assert await s.is_running()
    assert await s.kill() is True
    assert await AsyncSandbox.kill(s.sandbox_id) is False


@scenario("list")
async def _(t):
    from e2b import SandboxQuery

    m = f"m{random.random()}"
    s = await box(t, metadata={"m": m})
    pages = AsyncSandbox.list(query=SandboxQuery(metadata={"m": m}))
    assert [x.sandbox_id for x in await pages.next_items()] == [s.sandbox_id]


@scenario("connect and deadlines")
async def _(t):
    s = await box(t)
    await s.files.write("f", "x")
    c = await AsyncSandbox.connect(s.sandbox_id)
    assert await c.files.read("f") == "x"
    await s.set_timeout(2)
    await until_async(lambda: _not(s.is_running()), "the end")


async def _not(awaitable):
    return not await awaitable


@scenario("commands: output, exit code, streaming")
async def _(t):
    s = await box(t)
    got = []
    r = await s.commands.run("for i in 1 2 3; do echo $i; sleep 0.1; done", on_stdout=got.append)
    assert r.stdout == "".join(got) == "1\n2\n3\n"
    err = await fails_async(CommandExitException, s.commands.run("exit 4"))
    assert err.exit_code == 4


@scenario("commands: background, input, connect, kill")
async def _(t):
    s = await box(t)
    h = await s.commands.run("cat", background=True, stdin=True)
    await s.commands.send_stdin(h.pid, "in\n")
    c = await s.commands.connect(h.pid)
    await c.disconnect()
    assert await s.commands.kill(h.pid) is True
    await fails_async(CommandExitException, h.wait())
    await fails_async(NotFoundException, s.commands.connect(999999))


@scenario("commands: too long, bad user")
async def _(t):
    s = await box(t)
    await fails_async(TimeoutException, s.commands.run("sleep 100", timeout=1))
    await fails_async(AuthenticationException, s.commands.run("true", user="root123"))


@scenario("commands: a sandbox that is killed meanwhile")
async def _(t):
    s = await box(t)
    running = asyncio.create_task(s.commands.run("sleep 100"))
    await asyncio.sleep(0.5)
    await s.kill()
    await fails_async(TimeoutException, running)


@scenario("files: text, bytes, streams")
async def _(t):
    s = await box(t)
    data = os.urandom(200_000)
    await s.files.write("/tmp/d/b", data)
    assert bytes(await s.files.read("/tmp/d/b", format="bytes")) == data
    parts = [p async for p in await s.files.read("/tmp/d/b", format="stream")]
    assert b"".join(parts) == data
    assert [e.name for e in await s.files.list("/tmp/d")] == ["b"]
    await fails_async(NotFoundException, s.files.read("/tmp/none"))


@scenario("files: watching by stream")
async def _(t):
    s = await box(t)
    await s.files.make_dir("/tmp/w")
    seen = []
    w = await s.files.watch_dir("/tmp/w", on_event=seen.append)
    await s.files.write("/tmp/w/f", "1")
    await until_async(lambda: any(e.name == "f" and e.type == FilesystemEventType.WRITE for e in seen), "the event")
    await w.stop()


@scenario("terminals")
async def _(t):
    from e2b import PtySize

    s = await box(t)
    out = []
    h = await s.pty.create(PtySize(rows=24, cols=80), on_data=out.append)
    await s.pty.send_stdin(h.pid, b"echo $((6*7)); exit\n")
    await h.wait()
    assert b"42" in b"".join(out)


@scenario("pause, resume, auto-pause")
async def _(t):
    s = await box(t, timeout=3, lifecycle={"on_timeout": "pause"})
    await s.files.write("f", "kept")

    async def paused():
        return (await s.get_info()).state.value == "paused"

    await until_async(paused, "the pause")
    c = await AsyncSandbox.connect(s.sandbox_id, timeout=60)
    assert await c.files.read("f") == "kept"
    await c.pause()
    assert await paused()


@scenario("snapshots")
async def _(t):
    s = await box(t)
    await s.files.write("f", "snap")
    p = await s.create_snapshot()
    t.after(lambda: AsyncSandbox.delete_snapshot(p.snapshot_id))
    c = await AsyncSandbox.create(p.snapshot_id, timeout=60)
    t.after(lambda: c.kill())
    assert await c.files.read("f") == "snap"


@scenario("templates that fail")
async def _(t):
    template = Template().from_template("base").run_cmd("exit 5")
    err = await fails_async(Exception, AsyncTemplate.build(template, f"pya-{random.randrange(1 << 40):x}"))
    assert "exit status 5" in str(err), err


@scenario("many at the same time")
async def _(t):
    s = await box(t)
    all = await asyncio.gather(*(s.commands.run(f"echo {i}") for i in range(20)))
    assert [r.stdout for r in all] == [f"{i}\n" for i in range(20)]


run_async(2)

# By domain and https, without the variables for URLs. The client checks
# certificates by rustls, which is strict.
import os
import urllib.request

from e2b import AsyncSandbox, CommandExitException, Sandbox
from scenario import about, fails, run, scenario, until

about("Python, by domain")


def box(ends, **opts):
    s = Sandbox.create("base", timeout=120, **opts)
    ends.after(lambda: s.kill())
    return s


@scenario("create, connect, list, kill")
def _(t):
    s = box(t, metadata={"by": "domain"})
    assert Sandbox.connect(s.sandbox_id).commands.run("echo $USER").stdout == "user\n"
    assert s.get_info().metadata == {"by": "domain"}
    assert any(x.sandbox_id == s.sandbox_id for x in Sandbox.list().next_items())
    assert s.is_running() and s.kill() and not s.is_running()


@scenario("commands and files")
def _(t):
    s = box(t)
    data = os.urandom(200_000)
    s.files.write("/tmp/d", data)
    assert bytes(s.files.read("/tmp/d", format="bytes")) == data
    assert fails(CommandExitException, s.commands.run, "exit 3").exit_code == 3
    h = s.commands.run("head -n 1", background=True, stdin=True)
    s.commands.send_stdin(h.pid, "hello\n")
    assert h.wait().stdout == "hello\n"


@scenario("a signed URL and a port")
def _(t):
    s = box(t)
    s.files.write("/tmp/f", "signed")
    with urllib.request.urlopen(s.download_url("/tmp/f", user="user")) as r:
        assert r.read() == b"signed"
    s.commands.run("python3 -m http.server 8000 --bind 127.0.0.1 -d /tmp", background=True, timeout=0)

    def page():
        try:
            with urllib.request.urlopen(f"https://{s.get_host(8000)}/f") as r:
                return r.read()
        except urllib.error.HTTPError:
            return None

    assert until(page, "the server") == b"signed"


@scenario("asynchronous")
def _(t):
    import asyncio

    async def work():
        s = await AsyncSandbox.create("base", timeout=120)
        try:
            return (await s.commands.run("echo hello")).stdout
        finally:
            await s.kill()

    assert asyncio.run(work()) == "hello\n"


run(2)

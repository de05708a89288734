"""What leaves sandboxes; js/network.mjs says which hosts there are."""

from e2b import Sandbox, SandboxException
from scenario import about, fails, run, scenario

about("Python, network")

EVERYTHING = "0.0.0.0/0"


def box(ends, **opts):
    s = Sandbox.create("base", timeout=120, **opts)
    ends.after(lambda: s.kill())
    return s


def ask(s, url, options=""):
    """what a host answers to a sandbox; nothing if it cannot be reached"""
    return s.commands.run(f"curl -sS -m 10 {options} {url} 2>/tmp/why || true").stdout.strip()


@scenario("a new sandbox has the internet, one without access nothing")
def _(t):
    assert ask(box(t), "http://one.test/") == "hello from one.test"
    assert ask(box(t, allow_internet_access=False), "http://one.test/") == ""


@scenario("allow_out and deny_out")
def _(t):
    s = box(t, network={"allow_out": ["one.test"], "deny_out": [EVERYTHING]})
    assert ask(s, "http://one.test/") == "hello from one.test"
    assert ask(s, "http://two.test/") == ""
    s = box(t, network={"deny_out": ["93.184.216.2"]})
    assert ask(s, "http://two.test/") == ""
    fails(SandboxException, Sandbox.create, "base", network={"allow_out": ["one.test"]})


@scenario("update_network while it runs")
def _(t):
    s = box(t, network={"deny_out": [EVERYTHING]})
    assert ask(s, "http://one.test/") == ""
    s.update_network({"allow_out": ["one.test"], "deny_out": [EVERYTHING]})
    assert ask(s, "http://one.test/") == "hello from one.test"
    s.update_network({"deny_out": [EVERYTHING]})
    assert ask(s, "http://one.test/") == ""


@scenario("rules put headers into requests")
def _(t):
    s = box(t, network={"rules": {"one.test": [{"transform": {"headers": {"X-Team": "blue"}}}]}})
    assert ask(s, "https://one.test/team") == "blue"


run()

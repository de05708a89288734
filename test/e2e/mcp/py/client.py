# Uses tools and a resource in one mode of the newest package. Arguments: the mode
# ("auto", "legacy" or a revision), then "http URL KEY" or "stdio ENGI". With "stay" before them it goes
# on as stay.mjs does.
import json
import os
import sys

import anyio
import httpx2
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

args = sys.argv[1:]
stay = args[0] == "stay"
mode, kind, where, *key = args[1:] if stay else args


def tell(**x):
    print(json.dumps(x), flush=True)


def server():
    if kind == "stdio":
        return stdio_client(StdioServerParameters(command=where, args=["mcp"], env=dict(os.environ)))
    web = httpx2.AsyncClient(headers={"Authorization": "Bearer " + key[0]}, timeout=httpx2.Timeout(30, read=300))
    return streamable_http_client(where, http_client=web)


def text(r):
    return "".join(getattr(c, "text", "") for c in r.content)


async def use(c):
    told = []

    async def progress(done, total, message):
        told.append(message)

    tools = {t.name: t for t in (await c.list_tools()).tools}
    r = await c.call_tool(
        "execute_code",
        {"language": "python", "code": "import time\nfor i in range(3):\n    print('step', i, flush=True)\n    time.sleep(.3)\n"},
        progress_callback=progress,
    )
    assert r.structured_content["exit_code"] == 0 and "step 2" in r.structured_content["stdout"], r
    box = (await c.call_tool("create_sandbox", {"timeout_seconds": 120})).structured_content["sandbox"]
    await c.call_tool("write_file", {"sandbox": box, "path": "/workspace/zwei Wörter.txt", "content": "hallo"})
    for path in ("zwei Wörter.txt", "zwei%20W%C3%B6rter.txt"):
        read = await c.read_resource(f"engi://sandboxes/{box}/files/workspace/{path}")
        assert read.contents[0].text == "hallo", read
    found = text(await c.call_tool("glob", {"sandbox": box, "pattern": "*.txt"}))
    assert "/workspace/zwei Wörter.txt" in found, found
    failed = await c.call_tool("read_file", {"sandbox": box, "path": "none"})
    assert failed.is_error, failed
    await c.call_tool("stop_sandbox", {"sandbox": box})
    tell(version=c.protocol_version, tools=len(tools), progress="".join(told), title=tools["create_sandbox"].output_schema is not None)


async def go_on(c):
    tell(connected="", version=c.protocol_version)

    async def progress(done, total, message):
        tell(progress=message)

    async def do(line):
        try:
            if line == "long":
                r = await c.call_tool("execute_code", {"language": "bash", "code": "echo begun; sleep 5; echo over"}, progress_callback=progress)
            else:
                r = await c.call_tool("list_sandboxes", {})
            tell(did=line, text=text(r), failed=r.is_error)
        except Exception as e:
            tell(did=line, text=repr(e), failed=True)

    async with anyio.create_task_group() as tg:
        while line := (await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)).strip():
            tg.start_soon(do, line)


async def main():
    async with Client(server(), mode=mode) as c:
        await (go_on if stay else use)(c)


anyio.run(main)

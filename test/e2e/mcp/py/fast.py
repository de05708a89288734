# Uses tools and a resource with fastmcp's client. Arguments: "http URL KEY" or
# "stdio ENGI".
import asyncio
import os
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

kind, where, *key = sys.argv[1:]
if kind == "stdio":
    transport = StdioTransport(command=where, args=["mcp"], env=dict(os.environ))
else:
    transport = StreamableHttpTransport(where, headers={"Authorization": "Bearer " + key[0]})


async def main():
    async with Client(transport) as c:
        names = [t.name for t in await c.list_tools()]
        assert "execute_code" in names, names
        r = await c.call_tool("execute_code", {"language": "python", "code": "print(6*7)"})
        assert r.structured_content["stdout"] == "42\n" and r.data.exit_code == 0, r
        box = (await c.call_tool("create_sandbox", {"timeout_seconds": 120})).data.sandbox
        await c.call_tool("write_file", {"sandbox": box, "path": "/workspace/a b.txt", "content": "hallo"})
        read = await c.read_resource(f"engi://sandboxes/{box}/files/workspace/a%20b.txt")
        assert read[0].text == "hallo", read
        failed = await c.call_tool("read_file", {"sandbox": box, "path": "none"}, raise_on_error=False)
        assert failed.is_error, failed
        await c.call_tool("stop_sandbox", {"sandbox": box})
    print("fine")


asyncio.run(main())

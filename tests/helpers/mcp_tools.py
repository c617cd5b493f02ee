"""A server of tools over stdio, by the official `mcp` package: `python mcp_tools.py`."""

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("tools")


@server.tool()
def look(key: str) -> str:
    """A value."""
    if key == "none":
        raise ToolError("there is no such key")
    return f"v of {key}"


if __name__ == "__main__":
    server.run()

"""MCP servers: where they are configured, how one is connected, and what it offers. See `servers.py`."""

"""The same work through other programs' agents: `make bench`."""

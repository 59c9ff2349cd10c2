"""Workers on other machines: `engine.py` the queue that carries task ids, `backend.py` what a session has of it, `node.py` the
process that takes workers."""

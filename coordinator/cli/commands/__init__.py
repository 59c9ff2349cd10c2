"""The commands, one small group a module; imported only when one of them runs (see `coordinator/cli/table.py`)."""

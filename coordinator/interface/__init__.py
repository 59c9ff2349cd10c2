"""Sessions for programs in Python: what `import coordinator` offers. What of it is stable says `docs/python.md`."""

"""Places that a write or a read must not reach unasked, whoever asks: one list for the gate and for the confinement.

Rules:

1. A place is judged by its path below the directory that holds it (a root, a home, a repository), after links are
   resolved and as written: either is enough.
2. `grants_rights`: what is written there runs later, or changes what may run: settings, hooks, agents, git's own files,
   editors' tasks, shell start files. An edit of them asks in every mode but `bypassPermissions`; a confined command
   cannot write them.
3. `holds_secrets`: keys, tokens, password files. A confined command cannot read them.
"""

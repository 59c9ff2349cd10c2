"""`coordinator chat`: a person and the coordinator, in one terminal.

1. A line is a message, a `/command` of the chat, or a `/name` of the person's own; an unknown name is told, never sent.
2. `conversation.py` knows what a line means and `commands.py` what a command does; neither knows where lines come from.
3. Two ways to type: `screen.py` on a terminal that can do it, with an editor at its bottom (`editor.py`), above which
   everything else is written; `plain.py` anywhere else, line by line.
4. prompt_toolkit is known to `editor.py`, `completing.py` and `history.py` alone, and imported for rule 3's first way only.
5. A question about permission is answered by an answer: what is none of `y`, `n`, `a` goes where every line goes.
"""

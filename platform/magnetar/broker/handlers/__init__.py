"""What each command of the protocol does, a module for each subject.

`routes.py` is the table: for every command its handler, what permission it takes, and how a refusal is
told. Handlers of what passes once per entry are plain functions, called at once; the rest are coroutines.
"""

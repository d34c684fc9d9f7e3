"""What runs in a function's own process, between the instance host and user code.

    host ──socketpair──▶ channel ─▶ function_loop ─▶ members (decode) ─▶ user code ─▶ members (encode) ─▶ channel ──▶ host

Imports the standard library, this SDK and, by name, the user's package: never the platform. Whole entries come in,
decompressed; whole batches of results go out, encoded. `wire.py` is the language both ends speak; `main.py` is
where the process begins; `function_loop.py` is what it does all day.
"""

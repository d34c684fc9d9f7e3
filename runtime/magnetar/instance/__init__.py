"""The host of running functions, sources and sinks: everything around user code, which itself runs beyond it.

    broker ──client──▶ host ──socketpair──▶ user process ──▶ host ──client──▶ broker

The host owns the client, the guarantees, acknowledgements, retries and dead letters, and answers gRPC
`InstanceControl`. It works per entry, never per message, and never imports or unpickles user code: a function that
blocks, leaks or dies costs its own process and nothing else.

Where to start reading: `delivery.py`, the guarantees as a pure state machine; then `function_instance.py`, the shell
that carries out what it decides; `__main__.py` is the process. May import everything below floor 6.
"""

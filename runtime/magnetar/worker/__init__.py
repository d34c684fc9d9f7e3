"""The function worker: what is deployed, what should run, and the processes that do.

Start with `worker.py`, which puts the parts together. `components.py` carries out what REST (`rest/`) asks for;
`registry.py` keeps the deployed components in the metadata store, `packages.py` their code; `scheduling.py` decides,
without doing anything, which processes to start and stop; `supervisor.py` does it through a launcher (`process.py`);
`status.py` and `control.py` say how they fare.

User code runs beyond the worker, which never imports, unpickles or evaluates it. May import every room below; gRPC,
the client and the functions SDK are loaded when they are first needed, never at start.
"""

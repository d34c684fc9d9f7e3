"""The platform over HTTP: `/admin/v2`, `/lookup/v2`, `/metrics`, in the same process as the broker and on its loop.

A request walks through three modules: `server.py` takes bytes off the socket, `api.py` finds its route, asks
the authorizer, and turns whatever happens into an answer; a function in `routes/` does what was asked. Routes
are rows of a table (`routing.py`): nothing is built for them at start.

Paths are matched as they were sent, segment by segment, and decoded once: names may hold `%2F`. FastAPI,
which cannot do that, serves documentation and the routers that the runtime mounts (`site.py`); it is loaded
when first asked for.

May import everything below: `broker`, `managed_ledger`, `policies`, `security`, `metrics`, `protocol`,
`naming`, `metadata`, `environment`. Start with `app.py`.
"""

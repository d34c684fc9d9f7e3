"""How a namespace is divided among brokers. Pure. Start with `bundles.py`."""

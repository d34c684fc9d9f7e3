"""Metrics as plain integers, read when someone scrapes.

A hot path adds to an attribute and nothing else; `samples` are made of attributes at scrape time, under
Pulsar's metric names, and `exposition.py` writes them as Prometheus text, chunk by chunk. May import
`magnetar.environment`. Start with `sample.py`.
"""

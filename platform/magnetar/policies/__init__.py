"""Policies of cluster, tenant, namespace and topic: typed, stored, resolved in one place.

The models (`cluster.py`, `tenant.py`, `namespace.py`, `topic.py` and the small values they are made of) speak
Pulsar's JSON. `effective.py` answers what holds for a topic, `resources.py` keeps everything in the metadata
store and remembers what it has read until a watch says otherwise, and `checks.py` refuses what contradicts
itself.

May import `magnetar.environment`, `magnetar.naming` and `magnetar.metadata`. Start with `effective.py`.
"""

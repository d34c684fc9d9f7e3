"""How fast messages may come in and go out, and how often consumers may subscribe.

`token_bucket.py`, `dispatch_limit.py` and `subscribe_limit.py` decide, and are pure; `publish_limit.py` holds back
connections, `dispatch_gate.py` the reading of a subscription; `resource_groups.py` shares limits among namespaces.
Where no rate is set, none of this is made: a topic asks whether there is one, and that is all it costs.
"""

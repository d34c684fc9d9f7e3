"""What a broker does for its topics now and then: expiry, backlog quotas, idle topics and subscriptions.

`chores.py` says when, `housekeeping.py` goes from topic to topic, and each of the others is one policy:
its decisions pure, its acts on the topic few.
"""

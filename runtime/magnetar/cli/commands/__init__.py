"""One module for each group of commands that ask a running platform. Verbs and options are pulsar-admin's.

`session.py` has what all share: which platform is asked, and how an answer is shown. `policies.py` makes the
get, set and remove commands of policies from two tables.
"""

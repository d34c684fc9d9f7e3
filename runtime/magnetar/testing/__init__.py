"""For tests of applications and of Magnetar itself: real processes, started and stopped by their own handles.

`processes` starts any role of the `magnetar` command; `zookeeper` real ZooKeeper servers; `cluster` a whole cluster of
them behind proxies whose links can be cut (`proxies`); `load` producers and consumers of the official client with a log of
all that happened; `chaos` breaks a cluster under load and checks everything that was acknowledged. Imports nothing of the
platform when imported. Start with `processes.py`, then `cluster.py`.
"""

"""For tests of applications and of Magnetar itself: real processes, started and stopped by their own handles.

`processes` starts any role of the `magnetar` command; `zookeeper` a real ZooKeeper server. Imports nothing of the
platform when imported. Start with `processes.py`.
"""

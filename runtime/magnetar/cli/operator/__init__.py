"""Commands for whoever runs a cluster. They ask the metadata store and the bookies themselves, so that they work
when no broker does. `store.py` opens what they share; each other module is one group of commands.
"""

"""What a room may ask of the outside world: time, disks, logs and named crash points.

Everything here is an interface with its real implementation beside it, so that the cores above can be
driven by a simulation instead. Imports nothing but the standard library. Start with `disk.py`.
"""

"""What a room may ask of the outside world: time, disks, logs and named crash points.

Everything here is an interface with its real implementation beside it, so that the cores above can be
driven by a simulation instead. Imports nothing but the standard library. Start with `disk.py`; then
`recording.py`, the disk that proves whether a receipt would outlive a power cut. `loop_health.py` and
`gc_tuning.py` are about the process that serves.
"""

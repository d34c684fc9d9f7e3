"""All settings of a platform: one model, read from a file, the environment and the command line.

`model.py` is the truth: each room's own settings class, put together. `loading.py` reads YAML, Pulsar's `.conf`
files and MAGNETAR_... variables into it and names file and key where something is wrong; `reference.py` writes the
documented `config/standalone.yaml` from the same classes, so that it cannot drift.
"""

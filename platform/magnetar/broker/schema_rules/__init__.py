"""Whether schemas get on with each other. Pure.

`compatibility.py` compares two schemas of a topic by the topic's strategy; `avro.py` knows when one Avro
definition reads what another wrote. Imports the standard library, the strategies of `policies` and the
protocol's numbers.
"""

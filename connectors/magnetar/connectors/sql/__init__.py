"""The SQL sink: JSON objects become rows of a table, once per key.

`sink.py` writes batches and isolates the rows a database refuses; `columns.py` turns records into rows and, for a new
table, values into column types; `upsert.py` has the statement each database understands; `settings.py` holds the
configuration. SQLAlchemy is imported when a sink is opened.
"""

"""The file source: CSV and JSON-lines files, each row a JSON message.

`source.py` goes from file to file and keeps the pace; `reader.py` reads one file from a position on; `rows.py` finds
rows and the bytes they end at; `order.py` sorts a file's rows by columns; `listing.py` says which files there are and
what each is called; `settings.py` holds the configuration. Standard library only.

The position is the sequence: for a file read as it lies, the byte offset its last published record ends at; for a
sorted file, that record's ordinal. The broker remembers it (`SourceContext.last_sequence`), nothing else does.
"""

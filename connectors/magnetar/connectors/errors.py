"""ConnectorError: all that can go wrong with a connector.

InvalidSetting(field, reason)   a setting is missing, misspelt or of the wrong type: correct the configuration
MissingLibrary(library)         a third-party package is not installed: install the extra it names
SourceUnreadable(path, reason)  a file is missing, unreadable or was replaced: repair it, then restart
MalformedRecord(path, offset)   a row cannot be parsed: repair it, or set `on_error: skip`
TargetUnusable(target, reason)  a sink's target does not fit: correct it, then restart
RowRefused(reason)              one record can never be stored: it is rejected, its batch goes on
UnknownConnector(name)          no built-in connector has that name
"""

from __future__ import annotations


class ConnectorError(Exception):
    """Root of this package's errors."""


class InvalidSetting(ConnectorError):
    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"setting {field!r}: {reason}")
        self.field = field
        self.reason = reason


class MissingLibrary(ConnectorError):
    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"{library} is not installed: pip install 'magnetar[{extra}]'")
        self.library = library


class SourceUnreadable(ConnectorError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class MalformedRecord(ConnectorError):
    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path}: the record at byte {offset} {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class TargetUnusable(ConnectorError):
    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"{target}: {reason}")
        self.target = target
        self.reason = reason


class RowRefused(ConnectorError):
    """One record can never be stored as it is."""


class UnknownConnector(ConnectorError):
    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"no built-in connector is called {name!r}; there are: {', '.join(known)}")
        self.name = name

"""What may be asked of functions, sources and sinks: Pulsar's configs as typed values.

Each has `from_dict` (Pulsar's JSON names; unknown keys are let through, wrong types are not), `to_dict`,
`validate` (the rules between fields) and `merge_update` (what an update may change). A ConfigError names the field.
Start with `function.py`; `fields.py` is how a field is declared.
"""

from magnetar.functions.config.connector import SinkConfig, SourceConfig
from magnetar.functions.config.fields import Guarantee, Position
from magnetar.functions.config.function import FunctionConfig
from magnetar.functions.config.parts import (
    BatchingConfig,
    BatchSourceConfig,
    ConsumerConfig,
    CryptoConfig,
    ProducerConfig,
    Resources,
    WindowConfig,
)
from magnetar.functions.config.update import merge_update

__all__ = [
    "BatchSourceConfig",
    "BatchingConfig",
    "ConsumerConfig",
    "CryptoConfig",
    "FunctionConfig",
    "Guarantee",
    "Position",
    "ProducerConfig",
    "Resources",
    "SinkConfig",
    "SourceConfig",
    "WindowConfig",
    "merge_update",
]

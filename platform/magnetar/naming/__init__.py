"""Names of tenants, namespaces, topics and clusters, as values that refuse to exist when malformed.

Imports only the standard library. Start with `topic.py`.
"""

from magnetar.naming.errors import InvalidName, InvalidNamespaceName, InvalidTopicName, NamingError
from magnetar.naming.namespace import NamespaceName, check_name
from magnetar.naming.topic import TopicName

__all__ = [
    "InvalidName",
    "InvalidNamespaceName",
    "InvalidTopicName",
    "NamespaceName",
    "NamingError",
    "TopicName",
    "check_name",
]

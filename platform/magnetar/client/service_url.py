"""Where brokers listen: `pulsar://host:port`, and lists of hosts to begin with."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.client.errors import InvalidServiceUrl

DEFAULT_PORT = 6650
DEFAULT_TLS_PORT = 6651


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """One broker's address."""

    host: str
    port: int
    tls: bool = False

    @classmethod
    def parse(cls, url: str) -> BrokerAddress:
        """Read `pulsar://host[:port]` or `pulsar+ssl://host[:port]`.

        Raises:
            InvalidServiceUrl: it is neither, or names several hosts.
        """
        addresses = parse_service_url(url)
        if len(addresses) != 1:
            raise InvalidServiceUrl(url, "a broker has one address")
        return addresses[0]

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"pulsar{'+ssl' if self.tls else ''}://{host}:{self.port}"


def parse_service_url(url: str) -> list[BrokerAddress]:
    """Read `pulsar://host:port[,host:port…]`: brokers of one cluster, any of which can be asked.

    Raises:
        InvalidServiceUrl: it is of another scheme or malformed.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("pulsar", "pulsar+ssl"):
        raise InvalidServiceUrl(url, "write pulsar://host:port or pulsar+ssl://host:port")
    tls = scheme == "pulsar+ssl"
    return [_parse_host(url, part.strip(), tls) for part in rest.rstrip("/").split(",")]


def _parse_host(url: str, text: str, tls: bool) -> BrokerAddress:
    port_text = ""
    if text.startswith("["):  # IPv6: [::1]:6650
        host, bracket, after = text[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise InvalidServiceUrl(url, f"{text!r} is no address")
        port_text = after[1:]
    elif text.count(":") <= 1:
        host, _, port_text = text.partition(":")
    else:
        raise InvalidServiceUrl(url, f"write an IPv6 address in brackets: [{text}]")
    if not host or "/" in text:
        raise InvalidServiceUrl(url, f"{text!r} is no host")
    if not port_text:
        return BrokerAddress(host, DEFAULT_TLS_PORT if tls else DEFAULT_PORT, tls)
    if not (port_text.isascii() and port_text.isdigit() and 0 < int(port_text) < 65536):
        raise InvalidServiceUrl(url, f"{port_text!r} is no port")
    return BrokerAddress(host, int(port_text), tls)

"""How a broker behaves, where neither namespace nor topic says otherwise."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class BrokerSettings(BaseModel):
    """Limits, intervals and time-outs of one broker. Defaults are Pulsar's unless a line says why not."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    cluster: str = "standalone"
    """The cluster this broker belongs to; also the first part of generated producer names."""
    broker_id: str = ""
    """What this broker calls itself in ownership records. Empty: its web address, as in Pulsar."""
    advertised_host: str = ""
    """The host name clients are sent to. Empty: the one the broker listens on."""

    max_message_bytes: int = Field(default=5 * 1024 * 1024, ge=1024)
    """Largest metadata and payload of one entry. Frames may be 10 KiB larger."""
    keep_alive_interval_s: float = Field(default=30.0, gt=0)
    """A connection that says nothing for this long is pinged, and closed if it stays silent as long again."""
    liveness_check_timeout_s: float = Field(default=5.0, gt=0)
    """How long the holder of a name may take to answer a ping before the name passes to a newcomer."""
    max_pending_publishes_per_connection: int = Field(default=1000, ge=1)
    """A connection with more publishes than this not yet stored is not read from until half are done."""
    max_pending_publish_bytes: int = Field(default=128 * 1024 * 1024, ge=1024 * 1024)
    """The same for the bytes of all connections together: the broker's memory for messages on their way."""
    write_buffer_bytes: int = Field(default=1024 * 1024, ge=4096)
    """A connection with more bytes than this unsent gets no more messages, and is not read from."""
    max_same_address_producers_per_topic: int = Field(default=0, ge=0)
    """Producers of one topic from one host. 0: no limit."""
    max_same_address_consumers_per_topic: int = Field(default=0, ge=0)
    """Consumers of one topic from one host. 0: no limit."""
    max_connections: int = Field(default=0, ge=0)
    """Connections at one time. 0: no limit."""

    ledger_max_entries: int = Field(default=50_000, ge=1)
    """A topic goes on in a new ledger once one has so many entries."""
    ledger_max_bytes: int = Field(default=2048 * 1024 * 1024, ge=1)
    """Or so many bytes."""
    ledger_max_age_s: float = Field(default=240 * 60.0, gt=0)
    """Or is so old, whatever it holds."""
    ledger_min_age_s: float = Field(default=600.0, ge=0)
    """But not for its entries or bytes while it is younger than this: many small ledgers burden the metadata."""
    ledger_inactive_s: float = Field(default=0.0, ge=0)
    """A ledger to which nothing was published for so long is closed, so that it can be trimmed. 0: never."""
    auto_skip_lost_entries: bool = False
    """Whether subscriptions pass over entries that are lost for good, without an operator's consent: those of ledgers that
    do not exist, and those that all their bookies deny to have. What merely cannot be read now is waited for."""
    leftover_sweep_interval_s: float = Field(default=1800.0, ge=0)
    """How often what deletions that were cut short have left is looked for, by one broker for all. 0: never."""
    leftover_age_s: float = Field(default=3600.0, gt=0)
    """So old must a ledger be that no topic names, to be taken for a leftover."""

    dispatch_entries: int = Field(default=100, ge=1)
    """Most entries read for a subscription at once."""
    dispatch_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    """Most bytes read for a subscription at once."""
    catch_up_busy_share: float = Field(default=0.3, gt=0, le=1)
    """While anybody publishes, subscriptions that read a backlog from the bookies read little at a time, and rest whenever
    the broker's loop has been busy for more than this share of the time. 1: they never rest."""
    replay_look_ahead: int = Field(default=2000, ge=1)
    """Key-shared: how many held back entries a subscription may have before it stops reading on."""
    delayed_entries_max: int = Field(default=5_000_000, ge=1)
    """Entries a subscription holds back until their time, in about 16 bytes of memory each; with so many it reads nothing
    further until some are due."""
    max_unacked_messages_per_broker: int = Field(default=0, ge=0)
    """Messages that all shared consumers together may have unacknowledged. Beyond it the subscriptions with most of them
    get nothing more until half is acknowledged. 0: no limit."""
    max_unacked_share_when_blocked: float = Field(default=0.16, gt=0, le=1)
    """The part of that limit which a subscription may have while it is reached; those with more are blocked."""
    stuck_after_s: float = Field(default=30.0, ge=0)
    """A subscription that has what its consumers want, and sends them nothing for so long, is woken; after as long
    again its consumers are let go and served anew. Stats say why. 0: never. Pulsar has no such thing."""
    failover_delay_s: float = Field(default=1.0, ge=0)
    """Failover: how long a new active consumer waits for the acknowledgements of one that is still there."""
    batch_index_acknowledgement: bool = True
    """Whether single members of a batch can be acknowledged."""
    expose_entry_metadata: bool = False
    """Whether official clients that can read it get the broker's timestamp and index with each entry."""

    topic_metrics: bool = True
    """Whether /metrics tells of each topic and subscription; otherwise of each namespace."""
    consumer_metrics: bool = False
    """Whether /metrics tells of each consumer, where it tells of topics."""
    producer_metrics: bool = False
    """Whether /metrics tells of each producer, where it tells of topics."""
    managed_ledger_metrics: bool = True
    """Whether /metrics tells of topics' logs, by namespace, and of their cache."""
    metrics_topics_max: int = Field(default=10_000, ge=0)
    """How many topics /metrics tells of one by one; those beyond count in the sums only, and how many they are is
    told. 0: no limit."""

    deduplication_snapshot_entries: int = Field(default=1000, ge=1)
    """Deduplication: entries after which producers' sequence ids are saved."""
    deduplication_max_producers: int = Field(default=10_000, ge=1)
    """Deduplication: how many producers' sequence ids are kept; the longest idle are forgotten first."""
    deduplication_inactivity_s: float = Field(default=360 * 60.0, gt=0)
    """Deduplication: how long a producer that is gone is remembered."""

    publish_rate_messages: int = Field(default=0, ge=0)
    """Messages a second that may come in to this broker, over all topics. 0: no limit, here and in the rates below."""
    publish_rate_bytes: int = Field(default=0, ge=0)
    """The same in bytes."""
    dispatch_rate_messages: int = Field(default=0, ge=0)
    """Messages a second that may go out of this broker, over all topics."""
    dispatch_rate_bytes: int = Field(default=0, ge=0)
    """The same in bytes."""
    dispatch_rate_by_entry: bool = False
    """Whether a batch counts as one message where the rate of what goes out is limited."""
    dispatch_rate_for_caught_up: bool = True
    """Whether that also holds for subscriptions with no more than 1000 entries behind them."""

    entry_filters_directory: str = ""
    """Where the filters are that policies may name: files NAME.py with a function filter_entry(message) that says
    "ACCEPT", "REJECT" or "RESCHEDULE". Empty: there are none, and policies that name some are refused."""
    entry_filter_timeout_s: float = Field(default=10.0, gt=0)
    """How long filters may take for a batch; then their process is ended, and another one asked."""
    entry_filter_reschedule_s: float = Field(default=1.0, gt=0)
    """After how long a filter is shown again what it wanted to see later."""

    message_expiry_check_interval_s: float = Field(default=300.0, gt=0)
    """How often messages are looked for that have outlived their time to live."""
    backlog_quota_check_interval_s: float = Field(default=60.0, gt=0)
    """How often backlogs are measured against their quotas."""
    inactive_topic_check_interval_s: float = Field(default=60.0, gt=0)
    """How often topics are looked for that nobody uses."""
    delete_inactive_partitioned_metadata: bool = False
    """Whether a partitioned topic is forgotten when its last partition was deleted because nobody used it."""
    subscription_expiry_check_interval_s: float = Field(default=300.0, gt=0)
    """How often subscriptions are looked for that nobody has used for as long as their namespace allows."""
    compaction_check_interval_s: float = Field(default=60.0, gt=0)
    """How often topics are looked at whether they have grown enough to be compacted."""

    compaction_keys_max: int = Field(default=1_000_000, ge=1)
    """How many keys a compaction remembers at a time, 200 bytes or so for each. A topic with more is read several times."""
    compaction_retain_keyless: bool = False
    """Whether compaction keeps messages without a key. Pulsar's default since 3.2: it does not."""

    transaction_coordinator_enabled: bool = True
    """Whether transactions may be used. Pulsar's default is off; here they cost nothing until the first one begins."""
    transaction_coordinators: int = Field(default=16, ge=1, le=1024)
    """How many coordinators a cluster gets when transactions are used for the first time."""
    transactions_per_coordinator_max: int = Field(default=0, ge=0)
    """Transactions that one coordinator has open at a time; more are refused. 0: no limit."""
    transaction_log_snapshot_records: int = Field(default=1000, ge=1)
    """Records after which the log of a coordinator, or of a subscription's provisional acknowledgements, is replaced
    by a snapshot."""
    transaction_buffer_snapshot_entries: int = Field(default=1000, ge=1)
    """Entries and ends of transactions after which a topic stores what it knows of them."""
    transaction_buffer_snapshot_interval_s: float = Field(default=5.0, gt=0)
    """Seconds after which it does so if there was any."""
    transaction_coordinator_check_s: float = Field(default=10.0, gt=0)
    """How often a broker looks for coordinators that nobody serves, so that transactions whose end was interrupted
    are ended."""

    lookup_wait_s: float = Field(default=10.0, gt=0)
    """How long a look-up waits for its topic's bundle to get an owner, where that has died, or for the metadata store.
    Waiting is quicker than being refused: a client that is refused backs off."""
    load_report_interval_s: float = Field(default=2.0, gt=0)
    """How often a broker looks whether its load, or what it serves, is news to the other brokers."""
    parked_requests_max: int = Field(default=10_000, ge=1)
    """How many requests may wait so at one time; more are refused."""
    topic_load_timeout_s: float = Field(default=60.0, gt=0)
    """How long a request waits for its topic to load."""
    metadata_bytes_max: int = Field(default=1024, ge=0)
    """Largest properties of a consumer, keys and values together."""
    pattern_length_max: int = Field(default=50, ge=1)
    """Longest topic pattern the broker evaluates; clients filter by longer ones themselves."""
    schema_bytes_max: int = Field(default=1024 * 1024, ge=1024)
    """Largest schema definition."""
    housekeeping_interval_s: float = Field(default=5.0, gt=0)
    """How often rates are computed, policies looked at again and snapshots considered.
    Pulsar's rates are a minute old; these are fresher because one tick over all topics is cheap."""

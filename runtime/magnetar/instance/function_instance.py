"""An instance of a function or a sink: topics in, user code, and for a function a topic out."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any, Literal, cast

from magnetar.client.client import Compression
from magnetar.client.consumer import Consumer
from magnetar.environment.clock import Clock
from magnetar.functions.config import ConsumerConfig, FunctionConfig, Guarantee, Position, SinkConfig
from magnetar.functions.process.job import Job
from magnetar.functions.process.wire import ToHost
from magnetar.instance.dead_letters import DeadLetters
from magnetar.instance.delivery import Delivery, Marks, Policy
from magnetar.instance.delivery import Position as EntryPosition
from magnetar.instance.feed import Feed
from magnetar.instance.input_pipeline import InputPipeline, InputPlan
from magnetar.instance.input_session import InputSession
from magnetar.instance.inputs import concrete_topics
from magnetar.instance.instance import Instance
from magnetar.instance.output_topic import PlainOutput, SequencedOutput, partition_count
from magnetar.instance.side_publisher import SidePublisher
from magnetar.instance.spec import Spec
from magnetar.naming import TopicName

IN_HAND_BYTES_MAX = 32 * 1024 * 1024
NEW_TOPICS_EVERY_S = 30.0
QUEUE = 1000
DRAIN_S = 3.0


class FunctionInstance(Instance):
    """Functions and sinks. A sink is a function without an output whose code takes whole batches."""

    def __init__(self, spec: Spec, instance_id: int, import_paths: tuple[str, ...], clock: Clock) -> None:
        super().__init__(spec, instance_id, import_paths, clock)
        self._skipped: set[str] = set()
        """Topics whose backlog was skipped, once, at the start: opening them anew must not lose messages."""

    def process_ready(self) -> None:
        self.started.set()
        for session in self._sessions():
            session.process_ready()

    def process_lost(self, reason: str) -> None:
        suspect = self.feed.suspect()
        self.feed.reset()
        for session in self._sessions():
            position = suspect[1] if suspect is not None and suspect[0] is session else None
            session.process_lost(position, reason)

    def process_frame(self, kind: int, body: memoryview) -> None:
        if kind == ToHost.RESULT:
            self.feed.result(body)
        elif kind == ToHost.BEAT:
            self.feed.beat(body)
        elif kind == ToHost.PUBLISH:
            self._side_publisher.publish(body)
        elif kind == ToHost.ACK:
            self._acknowledged_by_user(json.loads(bytes(body)))
        else:
            super().process_frame(kind, body)

    @property
    def _function(self) -> FunctionConfig | SinkConfig:
        return cast("FunctionConfig | SinkConfig", self.spec.config)

    def _prepare(self) -> None:
        self._pipelines: dict[str, InputPipeline] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._numbers = 0
        self._in_hand = 0
        self._room = asyncio.Event()
        self._room.set()
        self._output: PlainOutput | None = None
        self._shared_dead_letters: DeadLetters | None = None
        self._partitions = 0
        self._side_publisher = SidePublisher(self)
        self._emptied = asyncio.Event()
        """Set unless somebody waits for nothing to be in hand."""
        self._emptied.set()

    async def _open(self) -> Job:
        config = self._function
        self._inputs = config.resolved_inputs()
        self._exact = isinstance(config, FunctionConfig) and (
            config.processing_guarantees is Guarantee.EFFECTIVELY_ONCE
        )
        ordered = config.subscription_type != "shared"
        output = config.output if isinstance(config, FunctionConfig) else None
        self._policy = Policy(
            guarantee=_kept_by_host(config),
            ordered=ordered,
            retries=config.retries,
            dead_letters=config.retries is not None,
            isolate=isinstance(config, SinkConfig),
        )
        if output:
            self._partitions = await partition_count(self.client, output)
            if self._exact:
                await self.require_deduplication(output)
            else:
                self._output = PlainOutput(
                    self.client,
                    output,
                    self._partitions,
                    compression=self._compression,
                    failed=self.session_failed,
                )
                await self._output.open()
        if config.dead_letter_topic and self._exact:
            await self.require_deduplication(config.dead_letter_topic)
        elif config.dead_letter_topic and self._policy.dead_letters:
            self._shared_dead_letters = DeadLetters(
                self.client, config.dead_letter_topic, config.fqfn, name=None, failed=self.session_failed
            )
            await self._shared_dead_letters.open()
        return self.job(
            ordered=ordered,
            failures_are_final=not self._policy.stops_at_failure,
            sequenced=self._exact,
            inputs=tuple(self._inputs),
            output=str(TopicName.parse(output)) if output else "",
            output_partitions=self._partitions,
            input_codecs={topic: _codec(spec, config) for topic, spec in self._inputs.items()},
            output_codec=_output_codec(config),
            forward_properties=isinstance(config, FunctionConfig) and config.forward_source_message_property,
            user_config=dict(config.user_config or {}) if isinstance(config, FunctionConfig) else {},
            configs=dict(config.configs or {}) if isinstance(config, SinkConfig) else {},
        )

    def _before_work(self) -> None:
        self.feed = Feed(self.keeper, self.clock)

    async def _until_ended(self) -> None:
        """Follow the inputs until all of them have ended. Raises ClientError, InstanceError."""
        await self.started.wait()
        while True:
            topics = await concrete_topics(self.client, self._inputs)
            for topic, configured in topics.items():
                if topic not in self._pipelines:
                    await self._follow(topic, configured)
            running = [task for task in self._tasks.values() if not task.done()]
            if not running and self._pipelines and self._all_ended():
                break
            done, _ = await asyncio.wait(
                running, timeout=NEW_TOPICS_EVERY_S, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        self.log.info("instance.input_ended", received=self.statistics.counts.received)

    def _all_ended(self) -> bool:
        return all(pipeline.ended for pipeline in self._pipelines.values())

    async def _follow(self, topic: str, configured: str) -> None:
        config = self._function
        spec = self._inputs[configured]
        plan = InputPlan(
            topic=topic,
            configured=configured,
            subscription=config.subscription,
            type=cast("Literal['shared', 'failover', 'key_shared']", config.subscription_type),
            initial="earliest" if config.subscription_position is Position.EARLIEST else "latest",
            consumer_name=f"{config.fqfn}-{self.instance_id}",
            queue=spec.receiver_queue_size or QUEUE,
            skip_to_latest=isinstance(config, FunctionConfig)
            and config.skip_to_latest
            and topic not in self._skipped,
            properties=(
                ("application", f"pulsar-{self.component}"),
                ("id", config.fqfn),
                ("instance_id", str(self.instance_id)),
                *(spec.consumer_properties or {}).items(),
            ),
        )
        pipeline = InputPipeline(plan, self.client, self._open_session, self._room)
        self._pipelines[topic] = pipeline
        await pipeline.subscribe()
        if plan.skip_to_latest:
            self._skipped.add(topic)
        self._tasks[topic] = asyncio.get_running_loop().create_task(pipeline.run(), name=f"input {topic}")

    async def _open_session(self, plan: InputPlan, consumer: Consumer) -> InputSession:
        """The topic is this instance's from now on. Raises ClientError."""
        marks = Marks()
        sequenced = None
        dead_letters = self._shared_dead_letters
        name = f"{self.spec.config.fqfn}-{self.spec.epoch}-{plan.topic}" if self._exact else None
        config = self._function
        if name is not None and isinstance(config, FunctionConfig) and config.output:
            sequenced = SequencedOutput(
                self.client,
                config.output,
                self._partitions,
                name,
                compression=self._compression,
                failed=self.session_failed,
            )
            marks = Marks(await sequenced.open())
        if self._policy.dead_letters and dead_letters is None:
            dead_letters = DeadLetters(
                self.client, self._dead_letter_topic(plan), config.fqfn, name=name, failed=self.session_failed
            )
            marks = Marks(marks.results, await dead_letters.open())
        self._numbers += 1
        session = InputSession(
            self,
            self._numbers,
            plan.topic,
            plan.configured,
            consumer,
            Delivery[bytes](self._policy, marks),
            plain=self._output,
            sequenced=sequenced,
            output_partitions=self._partitions,
            dead_letters=dead_letters,
            owns_dead_letters=dead_letters is not self._shared_dead_letters,
            ordered=self._policy.ordered,
            exact=self._exact,
        )
        self.log.info("input.opened", topic=plan.topic, committed=marks.committed)
        if self.keeper.process is not None:
            session.process_ready()
        return session

    def _dead_letter_topic(self, plan: InputPlan) -> str:
        config = self._function
        return config.dead_letter_topic or f"{TopicName.parse(plan.topic).base}-{config.name}-DLQ"

    @property
    def _compression(self) -> Compression:
        config = self._function
        producer = config.producer_config if isinstance(config, FunctionConfig) else None
        return cast("Compression", producer.compression_type.lower()) if producer else "none"

    def bytes_in_hand(self, change: int) -> None:
        self._in_hand += change
        if self._in_hand < IN_HAND_BYTES_MAX:
            self._room.set()
        else:
            self._room.clear()
        if not self._emptied.is_set() and self._idle():
            self._emptied.set()

    def _sessions(self) -> list[InputSession]:
        return [pipeline.session for pipeline in self._pipelines.values() if pipeline.session is not None]

    def _acknowledged_by_user(self, said: dict[str, Any]) -> None:
        ledger_id, entry_id, _, batch_index = said["id"]
        pipeline = self._pipelines.get(said["topic"])
        sessions = [pipeline.session] if pipeline is not None else self._sessions()
        for session in sessions:
            if session is not None:
                session.acknowledged_by_user(EntryPosition(ledger_id, entry_id), batch_index)

    async def _drain(self) -> None:
        await self._stop_receiving()
        if not self._idle():
            self._emptied.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    await self._emptied.wait()

    def _idle(self) -> bool:
        return all(session.idle for session in self._sessions())

    async def _stop_receiving(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _close(self) -> None:
        await self._stop_receiving()
        for pipeline in self._pipelines.values():
            await asyncio.gather(pipeline.close(), return_exceptions=True)
        await self._side_publisher.close()
        if self._shared_dead_letters is not None:
            await self._shared_dead_letters.close()
        if self._output is not None:
            await self._output.close()


def _kept_by_host(config: FunctionConfig | SinkConfig) -> Guarantee:
    """A sink's effect is once if its target makes it so; what the host does for that is order, and to repeat."""
    if isinstance(config, SinkConfig) and config.processing_guarantees is Guarantee.EFFECTIVELY_ONCE:
        return Guarantee.ATLEAST_ONCE
    return config.processing_guarantees


def _codec(spec: ConsumerConfig, config: FunctionConfig | SinkConfig) -> dict[str, str | None]:
    return {
        "schema": spec.schema_type,
        "serde": spec.serde_class_name,
        "type": config.input_type_class_name if isinstance(config, FunctionConfig) else None,
    }


def _output_codec(config: FunctionConfig | SinkConfig) -> dict[str, str | None]:
    if isinstance(config, SinkConfig):
        return {}
    return {
        "schema": config.output_schema_type,
        "serde": config.output_serde_class_name,
        "type": config.output_type_class_name,
    }

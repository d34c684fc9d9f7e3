// What an application in JavaScript does with Pulsar, step by step, on topics of its own for each step.
//
// Prints a line for each: `ok NAME` or `FAIL NAME: why`. Each step below is a test of its own.
'use strict';

const Pulsar = require('pulsar-client');

const [, , , binaryUrl] = process.argv;
const WAIT_MS = 10000;
let numbers = 0;

const topic = (stem) => `persistent://public/default/node-${process.pid}-${stem}-${(numbers += 1)}`;

function check(holds, otherwise) {
  if (!holds) {
    throw new Error(otherwise);
  }
}

async function step(name, body) {
  try {
    await body();
    console.log(`ok ${name}`);
  } catch (error) {
    console.log(`FAIL ${name}: ${String(error).replace(/\n/g, ' ')}`);
  }
}

const consumer = (client, name, type) =>
  client.subscribe({
    topic: name,
    subscription: 's',
    subscriptionType: type,
    subscriptionInitialPosition: 'Earliest',
    nAckRedeliverTimeoutMs: 200,
  });

async function publish(client, name, count) {
  const producer = await client.createProducer({ topic: name });
  for (let number = 0; number < count; number += 1) {
    producer.send({ data: Buffer.from(String(number)), partitionKey: `k${number % 3}` });
  }
  await producer.flush();
  await producer.close();
}

async function main() {
  const client = new Pulsar.Client({ serviceUrl: binaryUrl, operationTimeoutSeconds: 20 });
  for (const type of ['Exclusive', 'Failover', 'Shared', 'KeyShared']) {
    await step(`subscription ${type}`, async () => {
      const name = topic(type);
      const subscribed = await consumer(client, name, type);
      await publish(client, name, 20);
      for (let number = 0; number < 20; number += 1) {
        const message = await subscribed.receive(WAIT_MS);
        check(message.getData().toString() === String(number), `out of order at ${number}`);
        await subscribed.acknowledge(message);
      }
      await subscribed.close();
    });
  }
  await step("refused and given again", async () => {
    const name = topic('nack');
    const subscribed = await consumer(client, name, 'Shared');
    await publish(client, name, 1);
    subscribed.negativeAcknowledge(await subscribed.receive(WAIT_MS));
    const again = await subscribed.receive(WAIT_MS);
    check(again.getRedeliveryCount() === 1, 'it is not counted');
    await subscribed.acknowledge(again);
  });
  await step("readers", async () => {
    const name = topic('reader');
    await publish(client, name, 10);
    const reader = await client.createReader({ topic: name, startMessageId: Pulsar.MessageId.earliest() });
    let read = 0;
    while (reader.hasNext()) {
      await reader.readNext(WAIT_MS);
      read += 1;
    }
    check(read === 10, `${read} were read`);
    await reader.close();
  });
  await client.close();
}

main().then(() => process.exit(0));

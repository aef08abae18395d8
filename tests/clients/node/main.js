// What RocketMQ's official Node client does with a cluster: node main.js HOST:PORT,HOST:PORT.
// Each scenario prints its name once it has gone well. `../official.py` says what has to be there before, and which
// variables say how to connect. To verify a gateway's certificate the client reads GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.
const assert = require('node:assert');
const { setTimeout: pause } = require('node:timers/promises');
const { Producer, SimpleConsumer, PushConsumer, LitePushConsumerImpl, ConsumeResult, FilterExpression } = require('rocketmq-client-nodejs');
const { TransactionResolution, FilterType } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const ADDRESSES = process.argv[2].split(',');
// On a busy machine; nothing may come early, not even by a millisecond.
const LATE_MS_MAX = 20_000;
const PATIENCE_MS = 120_000;
// The client can't read a frame above 4 MiB, of which names, properties and handle take some.
const BODY_BYTES_MAX = 4_193_000;
const silent = { trace() {}, debug() {}, info() {}, warn() {}, error() {} };

function options(namespace = '') {
  ADDRESSES.push(ADDRESSES.shift());
  const { CLIENTS_ACCESS_KEY: accessKey, CLIENTS_SECRET: accessSecret, CLIENTS_TLS } = process.env;
  const sessionCredentials = accessKey ? { accessKey, accessSecret } : undefined;
  const sslEnabled = Boolean(CLIENTS_TLS);
  return { endpoints: ADDRESSES[0], namespace, sslEnabled, sessionCredentials, requestTimeout: 30_000, logger: silent };
}

async function running(client, use) {
  await client.startup();
  try {
    return await use(client);
  } finally {
    await client.shutdown();
  }
}

const producing = (topics, use, more = {}) => running(new Producer({ ...options(more.namespace), ...more, topics }), use);

function consuming(group, topic, use, { wanted = '*', namespace = '' } = {}) {
  const subscriptions = new Map([[topic, wanted]]);
  const simple = { ...options(namespace), consumerGroup: group, subscriptions, awaitDuration: 5_000 };
  return running(new SimpleConsumer(simple), use);
}

function pushing(group, topic, consume, use) {
  const subscriptions = new Map([[topic, '*']]);
  const messageListener = { consume: async (view) => ((await consume(view)) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE) };
  const push = { ...options(), consumerGroup: group, subscriptions, messageListener, longPollingTimeout: 5_000 };
  return running(new PushConsumer(push), use);
}

async function until(isTrue, what) {
  for (const giveUp = Date.now() + PATIENCE_MS; !isTrue(); await pause(20)) {
    assert(Date.now() < giveUp, what());
  }
}

const text = (view) => view.body.toString();
const texts = (views) => views.map(text);

async function receive(consumer, count, { ack = true, invisible = 60_000 } = {}) {
  const found = [];
  for (const giveUp = Date.now() + PATIENCE_MS; found.length < count && Date.now() < giveUp; ) {
    found.push(...(await consumer.receive(32, invisible)));
  }
  assert.strictEqual(found.length, count, texts(found).join());
  if (ack) {
    for (const one of found) await consumer.ack(one);
  }
  return found;
}

// --- scenarios ------------------------------------------------------------------------------------------------------

async function normal() {
  const sent = new Set();
  await producing(['normal', 'second'], async (producer) => {
    const properties = new Map([['colour', 'blue']]);
    for (let number = 0; number < 10; number++) {
      const message = { topic: 'normal', body: Buffer.from(`normal-${number}`), tag: 't', keys: ['k'], properties };
      sent.add((await producer.send(message)).messageId);
    }
    assert((await producer.send({ topic: 'second', body: Buffer.from('second') })).messageId);
  });
  const got = await consuming('normal', 'normal', (consumer) => receive(consumer, 10));
  assert.deepStrictEqual(new Set(got.map((one) => one.messageId)), sent);
  for (const one of got) {
    assert.deepStrictEqual([one.tag, one.keys, one.properties.get('colour'), one.deliveryAttempt], ['t', ['k'], 'blue', 1]);
  }
}

async function delayed() {
  const lateness = [];
  const consume = (view) => {
    const now = Date.now();
    assert.strictEqual(view.deliveryTimestamp.getTime(), Number(text(view)));
    lateness.push(now - Number(text(view)));
    return true;
  };
  await pushing('delayed', 'delayed', consume, () => producing(['delayed'], async (producer) => {
    for (let number = 0; number < 20; number++) {
      const due = Date.now() + 500 + number * 101;
      await producer.send({ topic: 'delayed', body: Buffer.from(`${due}`), deliveryTimestamp: new Date(due) });
    }
    await until(() => lateness.length >= 20, () => `${lateness.length} are less than 20`);
  }));
  assert(Math.min(...lateness) >= 0 && Math.max(...lateness) < LATE_MS_MAX, lateness.join());
  return `${Math.min(...lateness)} to ${Math.max(...lateness)} ms late`;
}

async function recalls() {
  await producing(['recalls'], async (producer) => {
    const later = await producer.send({ topic: 'recalls', body: Buffer.from('later'), delay: 3_600_000 });
    assert.strictEqual((await producer.recallMessage('recalls', later.recallHandle)).messageId, later.messageId);
    const soon = await producer.send({ topic: 'recalls', body: Buffer.from('soon'), delay: 500 });
    const got = await consuming('recalls', 'recalls', (consumer) => receive(consumer, 1));
    assert.deepStrictEqual(texts(got), ['soon']);
    await assert.rejects(producer.recallMessage('recalls', soon.recallHandle), /has been delivered/);
  });
}

async function transactions() {
  const asked = [];
  const checker = { async check(view) { asked.push(text(view)); return text(view) === 'rollback' ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT; } };
  await producing(['transactions'], async (producer) => {
    for (const end of ['commit', 'rollback']) {
      const transaction = producer.beginTransaction();
      await producer.send({ topic: 'transactions', body: Buffer.from(end) }, transaction);
      await transaction[end]();
    }
    await producer.send({ topic: 'transactions', body: Buffer.from('checked') }, producer.beginTransaction());
    const got = await consuming('transactions', 'transactions', async (consumer) => {
      const two = await receive(consumer, 2);
      assert.deepStrictEqual(await consumer.receive(32, 60_000), []);
      return two;
    });
    assert.deepStrictEqual(texts(got).sort(), ['checked', 'commit']);
  }, { checker });
  assert(asked.includes('checked'), asked.join());
}

async function leases() {
  await producing(['leases'], (producer) => producer.send({ topic: 'leases', body: Buffer.from('lapse') }));
  await consuming('leases', 'leases', async (consumer) => {
    await receive(consumer, 1, { ack: false, invisible: 1_000 });
    const [second] = await receive(consumer, 1, { ack: false });
    assert.strictEqual(second.deliveryAttempt, 2);
    const began = Date.now();
    await consumer.changeInvisibleDuration(second, 2_000);
    const [third] = await receive(consumer, 1);
    assert(Date.now() - began >= 2_000 && Date.now() - began < 2_000 + LATE_MS_MAX, `${Date.now() - began} ms`);
    assert.strictEqual(third.deliveryAttempt, 3);
  });
}

async function failing() {
  const seen = [];
  const consume = (view) => {
    seen.push(`${text(view)} ${view.deliveryAttempt}`);
    return text(view) !== 'bad';
  };
  await pushing('failing', 'failing', consume, () => producing(['failing'], async (producer) => {
    await producer.send({ topic: 'failing', body: Buffer.from('good') });
    await producer.send({ topic: 'failing', body: Buffer.from('bad') });
    await until(() => seen.length >= 3, () => seen.join());
  }));
  assert.deepStrictEqual(seen.sort(), ['bad 1', 'bad 2', 'good 1']);
}

// None of them fails: the client makes a dead letter of an ordered message after one attempt, since it does not know the
// group's policy.
async function ordered() {
  const seen = [];
  await producing(['ordered'], async (producer) => {
    for (let number = 0; number < 20; number++) {
      await producer.send({ topic: 'ordered', body: Buffer.from(`${number}`), messageGroup: 'one' });
    }
  });
  const consume = (view) => seen.push(text(view)) > 0;
  await pushing('ordered', 'ordered', consume, () => until(() => seen.length >= 20, () => seen.join()));
  assert.deepStrictEqual(seen, [...Array(20).keys()].map(String));
}

async function groups() {
  await producing(['groups'], async (producer) => {
    for (const body of ['a', 'b', 'c']) await producer.send({ topic: 'groups', body: Buffer.from(body) });
  });
  for (const group of ['one', 'other']) {
    const got = await consuming(group, 'groups', (consumer) => receive(consumer, 3));
    assert.deepStrictEqual(texts(got).sort(), ['a', 'b', 'c']);
  }
}

async function filters() {
  await producing(['filters'], async (producer) => {
    for (const number of ['1', '2', '3']) {
      const properties = new Map([['weight', number]]);
      await producer.send({ topic: 'filters', body: Buffer.from(number), tag: `f${number}`, properties });
    }
  });
  const sql = new FilterExpression('weight > 1 and weight is not null', FilterType.SQL);
  for (const [group, wanted, expected] of [['by-tags', new FilterExpression('f1 || f3'), '13'], ['by-sql', sql, '23']]) {
    const got = await consuming(group, 'filters', (consumer) => receive(consumer, 2), { wanted });
    assert.strictEqual(texts(got).sort().join(''), expected);
  }
}

async function namespaces() {
  const namespace = 'shop';
  await producing(['normal'], (producer) => producer.send({ topic: 'normal', body: Buffer.from('shop') }), { namespace });
  const got = await consuming('normal', 'normal', (consumer) => receive(consumer, 1), { namespace });
  assert.deepStrictEqual([got[0].topic, text(got[0])], ['normal', 'shop']);
}

async function large() {
  const body = Buffer.alloc(BODY_BYTES_MAX, 'x');
  await producing(['large', 'second'], async (producer) => {
    await producer.send({ topic: 'large', body });
    // For others to receive.
    await producer.send({ topic: 'second', body: Buffer.alloc(4 * 1024 * 1024, 'x') });
  });
  const [got] = await consuming('large', 'large', (consumer) => receive(consumer, 1));
  assert(got.body.equals(body));
}

async function lites() {
  const seen = { a: [], b: [] };
  const consume = async (view) => (seen[view.liteTopic].push(text(view)), ConsumeResult.SUCCESS);
  const push = { ...options(), consumerGroup: 'lites', bindTopic: 'rooms', messageListener: { consume }, longPollingTimeout: 5_000 };
  await running(new LitePushConsumerImpl(push), (consumer) => producing(['rooms'], async (producer) => {
    await consumer.subscribeLite('a');
    for (let number = 0; number < 3; number++) {
      for (const liteTopic of ['a', 'b']) {
        await producer.send({ topic: 'rooms', body: Buffer.from(`${liteTopic}${number}`), liteTopic });
      }
    }
    await until(() => seen.a.length >= 3, () => JSON.stringify(seen));
    assert.deepStrictEqual(seen, { a: ['a0', 'a1', 'a2'], b: [] });
    await consumer.subscribeLite('b');
    await until(() => seen.b.length >= 3, () => JSON.stringify(seen));
    assert.deepStrictEqual(seen, { a: ['a0', 'a1', 'a2'], b: ['b0', 'b1', 'b2'] });
    await consumer.unsubscribeLite('a');
  }));
}

// The client takes a priority of 0 for none.
async function priorities() {
  await producing(['alerts'], async (producer) => {
    for (const priority of [1, 3, 2]) await producer.send({ topic: 'alerts', body: Buffer.from(`${priority}`), priority });
  });
  const got = await consuming('priorities', 'alerts', (consumer) => receive(consumer, 3));
  assert.deepStrictEqual(got.map((one) => [text(one), one.priority]), [['3', 3], ['2', 2], ['1', 1]]);
}

const SCENARIOS = [normal, delayed, recalls, transactions, leases, failing, ordered, groups, filters, namespaces, large,
  lites, priorities];

async function main() {
  for (const scenario of SCENARIOS) {
    if (process.env.CLIENTS_ONLY && process.env.CLIENTS_ONLY !== scenario.name) continue;
    const began = Date.now();
    const said = (await scenario()) ?? '';
    console.log(`${scenario.name} ${((Date.now() - began) / 1000).toFixed(1)} s ${said}`);
  }
  console.log('all went well');
  process.exit(0);
}

main().catch((error) => { console.error(error); process.exit(1); });

#!/bin/sh
# BullMQ 6.7.0 and bee-queue 2.0.0 (npm) run a job at once whose delay is a text, without an error.
#
# BullMQ takes `delay: '3600000'`, as a setting or a JSON document may have it, for none. bee-queue does so with
# `delayUntil('2030-01-01T00:00:00.000Z')`; texts of digits are right there. Types of TypeScript reject both, a program
# in JavaScript has no check.
#
# Consequence: a reminder for next year arrives now.
# Remedy: `Number(...)` or `new Date(...)` before the call.
#
# Output: Redis server v=7.0.15
#         bullmq 6.7.0, bee-queue 2.0.0
#         bullmq, number: delayed; text: waiting
#         bee-queue, digits: delayed; ISO 8601: waiting
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
. "$(dirname "$0")/redis.sh"
cd "$folder"
npm install --silent --no-audit --no-fund bullmq@6.7.0 bee-queue@2.0.0 ioredis@6.0.0 >npm.log
cat >delays.js <<'PROGRAM'
const assert = require('node:assert');
const Bee = require('bee-queue');
const { Queue } = require('bullmq');
const Redis = require('ioredis');

const path = `${process.cwd()}/redis.sock`;

async function main() {
  console.log(['bullmq', 'bee-queue'].map((name) => `${name} ${require(`${name}/package.json`).version}`).join(', '));
  const redis = new Redis({ path, maxRetriesPerRequest: null });

  const bull = new Queue('bull', { connection: redis });
  const states = [];
  for (const delay of [3600000, '3600000']) states.push(await (await bull.add('note', {}, { delay })).getState());
  console.log(`bullmq, number: ${states[0]}; text: ${states[1]}`);
  assert.deepStrictEqual(states, ['delayed', 'waiting'], 'changed');

  const bee = new Bee('bee', { redis: { path }, isWorker: false });
  const due = new Date('2030-01-01T00:00:00Z');
  const found = [];
  for (const text of [String(due.getTime()), due.toISOString()]) {
    const job = await bee.createJob({}).delayUntil(text).save();
    found.push((await redis.zscore('bq:bee:delayed', job.id)) ? 'delayed' : 'waiting');
  }
  console.log(`bee-queue, digits: ${found[0]}; ISO 8601: ${found[1]}`);
  assert.deepStrictEqual(found, ['delayed', 'waiting'], 'changed');
  process.exit();
}

main();
PROGRAM
node delays.js

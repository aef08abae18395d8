#!/bin/sh
# grpcio 1.85.1 does not retry when a server asks for a retry at once; grpc-js 1.14.7 does when it asks for none.
#
# gRPC's design of retries (gRFC A6) has the trailer `grpc-retry-pushback-ms`: a delay before the next attempt. Any value
# that is no such number forbids it. At 0 grpcio makes no further attempt and reports DEADLINE_EXCEEDED at the deadline; at
# 1 it retries. It reports a value in text as INTERNAL, instead of the server's UNAVAILABLE. grpc-js takes 0, and retries
# at once at "1.5" and "later".
#
# Consequence: where a server answers "try again now", calls of Python (and the C core) fail late, with a wrong status.
# Remedy: 1 in place of 0, and -1 to forbid retries.
#
# Output: grpcio 1.85.1, Python 3.11.7, grpc-js 1.14.7, Node v20.20.2; deadline 2 s, 4 attempts
#         0: grpcio 1 attempt, DEADLINE_EXCEEDED; grpc-js 4 attempts, UNAVAILABLE
#         1: grpcio 4 attempts, UNAVAILABLE; grpc-js 4 attempts, UNAVAILABLE
#         1.5: grpcio 1 attempt, INTERNAL; grpc-js 4 attempts, UNAVAILABLE
#         later: grpcio 1 attempt, INTERNAL; grpc-js 4 attempts, UNAVAILABLE
#         -1: grpcio 1 attempt, UNAVAILABLE; grpc-js 1 attempt, UNAVAILABLE
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >npm.log
npm install --silent @grpc/grpc-js@1.14.7 >>npm.log
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check grpcio==1.85.1
cat >call.py <<'PROGRAM'
import sys

import grpc

port, config, pushback = sys.argv[1:]
with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.service_config", config)]) as channel:
    try:
        channel.unary_unary("/a.B/Try")(pushback.encode(), timeout=2)
    except grpc.RpcError as error:
        print(error.code().name)
PROGRAM
cat >retries.js <<'PROGRAM'
const { execFileSync, execFile } = require("node:child_process");
const { promisify } = require("node:util");
const grpc = require("@grpc/grpc-js");
const { version } = require("./node_modules/@grpc/grpc-js/package.json");

const ALL = "4 attempts, UNAVAILABLE";
const ONE = "1 attempt, UNAVAILABLE";
const LATE = "1 attempt, DEADLINE_EXCEEDED";
const WRONG = "1 attempt, INTERNAL";
const CASES = [
  ["0", LATE, ALL],
  ["1", ALL, ALL],
  ["1.5", WRONG, ALL],
  ["later", WRONG, ALL],
  ["-1", ONE, ONE],
];
const retryPolicy = {
  maxAttempts: 4,
  initialBackoff: "0.1s",
  maxBackoff: "0.1s",
  backoffMultiplier: 1,
  retryableStatusCodes: ["UNAVAILABLE"],
};
const config = JSON.stringify({ methodConfig: [{ name: [{}], retryPolicy }] });
const same = (bytes) => bytes;
const serialization = { requestSerialize: same, requestDeserialize: same, responseSerialize: same, responseDeserialize: same };
const methods = { try: { path: "/a.B/Try", requestStream: false, responseStream: false, ...serialization } };
const Client = grpc.makeGenericClientConstructor(methods, "B");
let attempts = 0;

async function found(call, port, pushback) {
  attempts = 0;
  const status = await call(port, pushback);
  return `${attempts} attempt${attempts > 1 ? "s" : ""}, ${status}`;
}

async function python(port, pushback) {
  const { stdout } = await promisify(execFile)("venv/bin/python", ["call.py", port, config, pushback]);
  return stdout.trim();
}

async function node(port, pushback) {
  const client = new Client(`127.0.0.1:${port}`, grpc.credentials.createInsecure(), { "grpc.service_config": config });
  const status = await new Promise((resolve) =>
    client.try(Buffer.from(pushback), { deadline: Date.now() + 2000 }, (error) => resolve(grpc.status[error.code])),
  );
  client.close();
  return status;
}

async function main() {
  const server = new grpc.Server();
  server.addService(methods, {
    try({ request }, answer) {
      attempts++;
      const metadata = new grpc.Metadata();
      metadata.set("grpc-retry-pushback-ms", request.toString());
      answer({ code: grpc.status.UNAVAILABLE, details: "busy", metadata });
    },
  });
  const port = await promisify(server.bindAsync.bind(server))("127.0.0.1:0", grpc.ServerCredentials.createInsecure());
  const program = "import grpc, platform; print(f'grpcio {grpc.__version__}, Python {platform.python_version()}', end='')";
  const other = execFileSync("venv/bin/python", ["-c", program]);
  console.log(`${other}, grpc-js ${version}, Node ${process.version}; deadline 2 s, 4 attempts`);
  for (const [pushback, ...expected] of CASES) {
    const answers = [await found(python, port, pushback), await found(node, port, pushback)];
    console.log(`${pushback}: grpcio ${answers[0]}; grpc-js ${answers[1]}`);
    if (answers.join() !== expected.join()) throw new Error("changed");
  }
  process.exit(0);
}

main();
PROGRAM
node retries.js

#!/bin/sh
# @grpc/proto-loader 0.8.1 (npm): a Date is sent as 1970, and seconds in text with a fraction as a far future.
#
# A text or a number for a google.protobuf.Timestamp is an error. A Date is an object, of which the loader takes the
# fields `seconds` and `nanos`, so it sends 0. For the int64 `seconds` it takes text, as it gives text with
# `longs: String`. It reads the text in pieces of eight characters: "1803902400" is right, while each character of a
# fraction, the point too, multiplies the time by ten. "90.5" is 90.
#
# Consequence: a message with a Date as its time is due at once, one with `String(Date.now() / 1000)` never.
# Remedy: {seconds: Math.floor(ms / 1000), nanos: (ms % 1000) * 1e6}.
#
# Output: 0.8.1, grpc-js 1.14.7, protobufjs 7.6.6, Node v20.20.2
#         "2027-03-01T12:00:00Z": object expected
#         new Date("2027-03-01T12:00:00.000Z"): 1970
#         {"seconds":"1803902400"}: 2027
#         {"seconds":"1803902400.5"}: 7686
#         {"seconds":"1803902400.500"}: 573603
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >npm.log
npm install --silent @grpc/proto-loader@0.8.1 @grpc/grpc-js@1.14.7 protobufjs@7.6.6 long@5.3.2 >>npm.log
cat >times.proto <<'PROTO'
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Timed {
  google.protobuf.Timestamp at = 1;
}
service Times {
  rpc Send(Timed) returns (Timed);
}
PROTO
cat >times.js <<'PROGRAM'
const { readFileSync } = require("node:fs");
const { promisify } = require("node:util");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const CASES = [
  ["2027-03-01T12:00:00Z", "object expected"],
  [new Date("2027-03-01T12:00:00Z"), 1970],
  [{ seconds: "1803902400" }, 2027],
  [{ seconds: "1803902400.5" }, 7686],
  [{ seconds: "1803902400.500" }, 573603],
];
const YEAR = 365.2425 * 86400;

async function main() {
  const version = (name) => JSON.parse(readFileSync(`node_modules/${name}/package.json`)).version;
  const [own, js, buffers] = ["@grpc/proto-loader", "@grpc/grpc-js", "protobufjs"].map(version);
  console.log(`${own}, grpc-js ${js}, protobufjs ${buffers}, Node ${process.version}`);
  const { Times } = grpc.loadPackageDefinition(loader.loadSync("times.proto", { longs: String, defaults: true }));
  const server = new grpc.Server();
  let received;
  server.addService(Times.service, {
    send({ request }, answer) {
      received = request.at;
      answer(null, request);
    },
  });
  const bind = promisify(server.bindAsync.bind(server));
  const port = await bind("127.0.0.1:0", grpc.ServerCredentials.createInsecure());
  const client = new Times(`127.0.0.1:${port}`, grpc.credentials.createInsecure());
  const send = promisify(client.send.bind(client));
  for (const [at, expected] of CASES) {
    const found = await send({ at }).then(
      () => Math.floor(1970 + Number(received.seconds) / YEAR),
      (error) => error.message.split(": ").at(-1),
    );
    const shown = at instanceof Date ? `new Date(${JSON.stringify(at)})` : JSON.stringify(at);
    console.log(`${shown}: ${found}`);
    if (found !== expected) throw new Error("changed");
  }
  process.exit(0);
}

main();
PROGRAM
node times.js

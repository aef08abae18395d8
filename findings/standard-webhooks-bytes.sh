#!/bin/sh
# Standard Webhooks' libraries for Python (1.1.0) and npm (1.1.1) can't verify a body that is not UTF-8. Go's can.
#
# All three get the same request: a valid signature of four bytes, the first bytes of a PNG picture. Python's library
# raises UnicodeDecodeError, which is no WebhookVerificationError. npm's turns the bytes into a text with replacement
# characters, and finds no matching signature. The specification signs bytes. With the body `paid` Python and npm fail
# after the signature matched, because by default they return the body as JSON.
#
# Consequence: a receiver answers a valid request with a failure, and the sender repeats it.
# Remedy: binary bodies in base64; `json_parse=False`, `{jsonParse: false}` for other text.
#
# Output: JSON: python ok, npm ok, go ok
#         text: python JSONDecodeError, npm SyntaxError, go ok
#         text without JSON: python ok, npm ok
#         bytes: python UnicodeDecodeError, npm WebhookVerificationError, go ok
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check standardwebhooks==1.1.0
npm install --silent --no-audit --no-fund standardwebhooks@1.1.1 >npm.log
export GOPATH="$folder/go" GOCACHE="$folder/cache" GOFLAGS="-modcacherw -mod=mod"
cat >go.mod <<'MANIFEST'
module verify

go 1.24

require github.com/standard-webhooks/standard-webhooks/libraries v0.0.1
MANIFEST
cat >main.go <<'PROGRAM'
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func main() {
	var request struct {
		Secret  string
		Body    []byte
		Headers map[string]string
	}
	if err := json.NewDecoder(os.Stdin).Decode(&request); err != nil {
		panic(err)
	}
	headers := http.Header{}
	for name, value := range request.Headers {
		headers.Set(name, value)
	}
	webhook, err := webhooks.NewWebhook(request.Secret)
	if err == nil {
		err = webhook.Verify(request.Body, headers)
	}
	if err == nil {
		fmt.Print("ok")
	} else {
		fmt.Print(err)
	}
}
PROGRAM
cat >verify.js <<'PROGRAM'
const { Webhook } = require('standardwebhooks');

const request = JSON.parse(require('node:fs').readFileSync(0));
try {
  const options = { jsonParse: process.argv[2] !== 'plain' };
  new Webhook(request.secret).verify(Buffer.from(request.body, 'base64'), request.headers, options);
  process.stdout.write('ok');
} catch (error) {
  process.stdout.write(error.name);
}
PROGRAM
PATH="$PATH:/usr/local/go/bin"
go build -o verify . 2>go.log
venv/bin/python - <<'PROGRAM'
import base64
import hashlib
import hmac
import json
import subprocess
import time

from standardwebhooks import Webhook

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()


def in_python(body: bytes, headers: dict[str, str], parse: bool) -> str:
    try:
        Webhook(SECRET).verify(body, headers, json_parse=parse)
    except Exception as error:
        return type(error).__name__
    return "ok"


def verified(body: bytes, parse: bool = True) -> dict[str, str]:
    moment = str(int(time.time()))
    signature = hmac.digest(KEY, b"m-1." + moment.encode() + b"." + body, hashlib.sha256)
    headers = {
        "webhook-id": "m-1",
        "webhook-timestamp": moment,
        "webhook-signature": "v1," + base64.b64encode(signature).decode(),
    }
    request = json.dumps({"secret": SECRET, "body": base64.b64encode(body).decode(), "headers": headers})
    ask = lambda *command: subprocess.run(command, input=request, text=True, capture_output=True, check=True).stdout
    found = {"python": in_python(body, headers, parse), "npm": ask("node", "verify.js", "json" if parse else "plain")}
    return found | ({"go": ask("./verify")} if parse else {})


bodies = {
    "JSON": verified(b'{"order": 42}'),
    "text": verified(b"paid"),
    "text without JSON": verified(b"paid", parse=False),
    "bytes": verified(b"\x89PNG"),
}
for kind, found in bodies.items():
    print(f"{kind}: {', '.join(f'{library} {result}' for library, result in found.items())}")
failed = [result for found in bodies.values() for result in found.values() if result != "ok"]
assert failed == ["JSONDecodeError", "SyntaxError", "UnicodeDecodeError", "WebhookVerificationError"], "changed"
PROGRAM

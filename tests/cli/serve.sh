#!/usr/bin/env bash
# The server: what clients, good and bad, get over sockets, and how it starts and ends.
#   tests/cli/serve.sh PATH/TO/multihead
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make_text >text.txt
"$multihead" train lm --data text.txt --out model "${small[@]}" >log.txt 2>&1 || fail "training: $(cat log.txt)"
if "$multihead" serve nowhere 2>&1 | grep -q 'serve needs multihead_sockets.so'; then
  echo 'SKIPPED: libevent is not here'
  exit 77
fi
expect 2 'MODEL is required' "$multihead" serve
expect 3 'nowhere' "$multihead" serve nowhere
expect 2 'two models are called "model"' "$multihead" serve model ./model/ --quiet
expect 2 'context must be at most 16' "$multihead" serve model --context 17 --quiet
expect 3 'there is no such host' "$multihead" serve model --host no.such.host.invalid --quiet
for most in 5 8; do  # descriptors
  expect 3 'cannot listen on 127.0.0.1 port 0: Too many open files' \
    bash -c 'exec 3>&- 4>&- 5>&-; ulimit -n "$0"; "$1" serve model --port 0 --quiet' "$most" "$multihead"
done
expect 2 'an allowed host must be a name without port.*"box:80"' "$multihead" serve model --allow-host box:80 --quiet
printf 'k\001y\n' >keys.txt
expect 3 'line 1: a key with control characters' "$multihead" serve model --api-key-file keys.txt --quiet
printf '# no key\n' >keys.txt
expect 3 'holds no key' "$multihead" serve model --api-key-file keys.txt --quiet

printf '\xef\xbb\xbf# of the tests\nsecret\n' >keys.txt
"$multihead" serve lm=model --port 0 --json --api-key-file keys.txt --max-body 1 >address.txt 2>log.txt &
server=$!
for _ in $(seq 100); do
  if [[ -s address.txt ]]; then break; fi
  sleep 0.1
done
port=$(grep -oE '[0-9]+/' address.txt | tr -d /)
[[ -n $port ]] || fail "no address: $(cat log.txt)"
expect 3 'is in use; port 0' "$multihead" serve model --port "$port" --quiet

python3 - "$port" "$server" <<'PYTHON' || fail 'clients'
import concurrent.futures
import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request

port, server = int(sys.argv[1]), sys.argv[2]
failures = 0


def check(what, got, expected):
    global failures
    if got != expected:
        failures += 1
        print(f"FAIL: {what}: got {got!r:.300}, expected {expected!r:.300}")


def ask(path, body=None, headers={}):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data,
                                     {"Authorization": "Bearer secret", **headers})
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    return answer.status, answer.read().decode()


def raw(data, wait=True):
    """What the server says to bytes, until it closes."""
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    try:
        client.sendall(data)
    except OSError:
        pass
    said = b""
    try:
        while wait and (part := client.recv(65536)):
            said += part
    except OSError:
        pass
    client.close()
    return said.split(b"\r\n")[0].decode()


def resident():
    return int(next(l for l in open(f"/proc/{server}/status") if l.startswith("VmRSS")).split()[1])


check("models", json.loads(ask("/v1/models")[1])["data"][0]["id"], "lm")
check("no key", ask("/v1/models", headers={"Authorization": "Bearer x"})[0], 401)
check("health without key", ask("/health", headers={"Authorization": ""})[0], 200)
check("another host (DNS rebinding)", ask("/health", headers={"Host": "example.org"})[0], 403)
check("another site's page", ask("/health", headers={"Origin": "http://example.org"})[0], 403)
check("nothing there", ask("/nothing")[0], 404)
check("no chat template", ask("/v1/chat/completions", {"model": "lm", "messages": []})[0], 400)


def complete(i, **more):
    body = {"model": "lm", "prompt": "the cat"[: 3 + i % 5], "max_tokens": 3 + i % 6, "seed": i, "logprobs": 2, **more}
    status, text = ask("/v1/completions", body)
    check(f"completion {i}", status, 200)
    return json.loads(text)["choices"] if not more else text


# The same answers alone and in company, some of which leaves.
alone = [complete(i) for i in range(24)]
stream = complete(5, stream=True)
told = "".join(json.loads(l[6:])["choices"][0]["text"] for l in stream.split("\n") if l.startswith("data: {"))
check("a stream", told, alone[5][0]["text"])
check("its end", stream.endswith("data: [DONE]\n\n"), True)
head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\nContent-Length: %d\r\n\r\n"
long = json.dumps({"model": "lm", "prompt": "the", "max_tokens": 12, "n": 16, "stream": True}).encode()
with concurrent.futures.ThreadPoolExecutor(24) as pool:
    leaving = [pool.submit(raw, head % len(long) + long, False) for _ in range(24)]
    check("in company", list(pool.map(complete, range(24))), alone)

get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
check("unknown method", raw(b"BREW / HTTP/1.1\r\nHost: h.h\r\nConnection: close\r\n\r\n")[9:12], "403")
check("another method", raw(b"DELETE /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                            b"Authorization: Bearer secret\r\n\r\n")[9:12], "405")
check("not HTTP", raw(b"hello\r\n\r\n")[9:12], "400")
check("no host", raw(b"GET / HTTP/1.1\r\n\r\n")[9:12], "400")
check("two lengths", raw(get + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n")[9:12], "400")
check("long headers", raw(get + b"A: " + b"x" * 100_000 + b"\r\n\r\n")[9:12], "431")
check("a body of a terabyte", raw(head % 10**12)[9:12], "413")
check("a long body", raw(head % 2_000_000 + b"x" * 2_000_000)[9:12], "413")
for what, body in [("not JSON", b"{"), ("deep JSON", b"[" * 100_000), ("bytes", b'{"model":"\xff"}'),
                   ("NaN", b'{"model":"lm","prompt":"a","temperature":NaN}')]:
    check(what, raw((head % len(body)).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + body)[9:12], "400")

# Clients that vanish, before or while they are answered, leave nothing behind. How many requests wait at once differs, and
# with it the memory; only what grows round after round is lost.
readings = []
for _ in range(4):
    for i in range(100):
        raw((head % len(long) + long)[: 40 + 7 * i] if i % 2 else head % len(long) + long, False)
    for _ in range(100):
        if len(os.listdir(f"/proc/{server}/fd")) < 20 and 'active{model="lm"} 0\n' in ask("/metrics")[1]:
            break
        time.sleep(0.05)
    check("requests of clients that left", 'active{model="lm"} 0\n' in ask("/metrics")[1], True)
    check("open descriptors", len(os.listdir(f"/proc/{server}/fd")) < 20, True)
    readings.append(resident())
if readings == sorted(readings) and readings[-1] > readings[0] + 4000:
    check("resident memory in KB", readings, "no more each round")
check("threads", len(os.listdir(f"/proc/{server}/task")) <= 4, True)

# One that leaves with more unread than is read ahead.
gone = socket.create_connection(("127.0.0.1", port))
gone.sendall(head % len(long) + long + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2500)
gone.close()
for _ in range(100):
    if 'active{model="lm"} 0\n' in ask("/metrics")[1] and len(os.listdir(f"/proc/{server}/fd")) < 20:
        break
    time.sleep(0.05)
check("a request of a client that left behind 100 KB", 'active{model="lm"} 0\n' in ask("/metrics")[1], True)

# Byte by byte and not at all: others are served meanwhile.
slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
for byte in get[:20]:
    for client in slow:
        client.send(bytes([byte]))
begin = time.time()
check("beside slow clients", complete(3), alone[3])
check("beside slow clients, soon", time.time() - begin < 5, True)
sys.exit(failures > 0)
PYTHON

grep -q '"path":"/v1/completions","status":200' log.txt || fail "the log: $(tail -n 3 log.txt)"
grep -q '"complete":false' log.txt || fail 'the log does not say who left'
begin=$SECONDS
kill -TERM "$server"
wait "$server"
code=$?
[[ $code -eq 0 ]] || fail "SIGTERM ends it with $code: $(tail -n 3 log.txt)"
((SECONDS - begin < 5)) || fail "SIGTERM took $((SECONDS - begin)) s"
finish

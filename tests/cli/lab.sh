#!/usr/bin/env bash
# The laboratory: a page on loopback that runs the model again, for its own page alone.
#   tests/cli/lab.sh PATH/TO/multihead
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make_text >text.txt
"$multihead" train lm --data text.txt --out model "${small[@]}" >log.txt 2>&1 || fail "training: $(cat log.txt)"
if "$multihead" lab nowhere 2>&1 | grep -q 'lab needs multihead_sockets.so'; then
  echo 'SKIPPED: libevent is not here'
  exit 77
fi
expect 3 'nowhere' "$multihead" lab nowhere
expect 2 'there is no|expected numbers' "$multihead" lab model --heads 7
expect 2 'the context is 16' "$multihead" lab model --text 'the cat sat on a mat'

"$multihead" lab model --text 'the cat' --json >address.txt 2>err.txt &
lab=$!
for _ in $(seq 100); do
  if [[ -s address.txt ]]; then break; fi
  sleep 0.1
done
address=$(grep -oE 'http://127.0.0.1:[0-9]+/' address.txt) || fail "no address: $(cat err.txt)"
expect 3 'is in use' timeout 20 "$multihead" lab model --port "$(grep -oE '[0-9]+/$' <<<"$address" | tr -d /)"

# request PATH [CURL FLAG...]: the status, the body in body.txt. In Python, which every test machine has.
request() {
  python3 - "$address$1" "${@:2}" <<'PYTHON'
import sys
import urllib.error
import urllib.request

url, *rest = sys.argv[1:]
headers = dict(h.split(": ", 1) for h in rest if ": " in h and not h.startswith("{"))
body = [r for r in rest if r.startswith("{") or r == "BIG"]
data = (b"x" * 2_000_000 if body[0] == "BIG" else body[0].encode()) if body else None
try:
    answer = urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60)
except urllib.error.HTTPError as error:
    answer = error
except urllib.error.URLError as error:
    print("closed", error.reason)
    sys.exit()
open("body.txt", "wb").write(answer.read())
print(answer.status)
PYTHON
}
status() { # WHAT EXPECTED REQUEST...
  local got
  got=$(request "${@:3}")
  [[ $got =~ ^($2)$ ]] || fail "$1: status $got, expected $2: $(head -c 200 body.txt)"
}
json='Content-Type: application/json'
status 'the page' 200 ''
grep -q "connect-src 'self'" body.txt || fail 'the page may not ask its own server'
grep -q '"lab":{"text":"the cat"}' body.txt || fail 'the page does not know the text'
status 'another host (DNS rebinding)' 403 '' 'Host: example.org'
status 'a form of another site' 415 run '{"text":"a","off":[],"cut":[]}'
status 'a page of another site' 403 run "$json" 'Origin: http://example.org' '{"text":"a cat","off":[],"cut":[]}'
status 'nothing there' 404 nothing
grep -q 'POST /run' body.txt || fail "the refusal of a path: $(cat body.txt)"
status 'a run' 200 run "$json" '{"text":"a cat","off":[],"cut":[]}'
grep -q '"runs":\[{"title":"","views"' body.txt || fail "one run: $(head -c 100 body.txt)"
status 'a run with changes' 200 run "$json" '{"text":"a cat","off":["0.1"],"cut":[[1,0,3,1]]}'
grep -q '"title":"changed"' body.txt || fail 'the changed run is missing'
grep -q '"title":"as it is"' body.txt || fail 'the unchanged run is missing'
problem() { # REGEX BODY
  status "$1" 400 run "$json" "$2"
  grep -qE "\"error\":\".*$1" body.txt || fail "no \"$1\": $(head -c 300 body.txt)"
}
problem 'the text is empty' '{"text":"","off":[],"cut":[]}'
problem 'the context is 16' '{"text":"the cat sat on a mat and","off":[],"cut":[]}'
problem 'no head 0.2' '{"text":"a","off":["0.2"],"cut":[]}'
problem 'a head is LAYER.HEAD' '{"text":"a","off":["x"],"cut":[]}'
problem 'two whole numbers' '{"text":"a","off":["0.x"],"cut":[]}'
problem 'cannot be cut' '{"text":"a cat","off":[],"cut":[[0,0,1,3]]}'
problem 'past the end' '{"text":"a cat","off":[],"cut":[[0,0]]}'
problem 'request' '{"text"'
problem 'text' '{"off":[],"cut":[]}'
status 'too large' '413|closed.*' run "$json" BIG
status 'it still runs' 200 ''

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
if [[ -n $browser ]]; then
  mkdir profile
  HOME=$work/profile timeout 100 "$browser" --headless=new --no-sandbox --disable-gpu --virtual-time-budget=5000 \
    --user-data-dir="$work/profile" --enable-logging=stderr --dump-dom "${address}#l=1&h=0&off=0.1&cut=1.0.3.1" \
    >dom.txt 2>browser.txt || fail "the browser: $(tail -n 1 browser.txt)"
  if grep -q CONSOLE browser.txt; then fail "the console has messages: $(grep CONSOLE browser.txt)"; fi
  grep -q 'off: 0.1 · cut 1.0: 3 → 1 · next:' dom.txt || fail 'the page does not say what was changed'
  [[ $(grep -oE '<h2 class="which">(changed|as it is)' dom.txt | wc -l) -eq 2 ]] || fail 'two runs are not side by side'
fi
# Clients that do not say what they want, byte by byte: others are served meanwhile, and Ctrl-C ends at once.
python3 - "$address" <<'PYTHON' &
import socket
import sys
import time
import urllib.parse

port = urllib.parse.urlparse(sys.argv[1]).port
clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
try:
    for byte in b"GET / HTTP/1.1\r\nX: " + b"x" * 300:
        for client in clients:
            client.send(bytes([byte]))
        time.sleep(0.1)
except OSError:
    pass
PYTHON
slow=$!
sleep 1
begin=$SECONDS
status 'beside slow clients' 200 ''
((SECONDS - begin < 8)) || fail "slow clients held another for $((SECONDS - begin)) s"
kill -0 "$slow" || fail 'the slow clients are gone'
begin=$SECONDS
kill -INT "$lab"
wait "$lab"
code=$?
[[ $code -eq 0 ]] || fail "Ctrl-C ends it with $code"
((SECONDS - begin < 5)) || fail "with slow clients, Ctrl-C took $((SECONDS - begin)) s"
wait "$slow"

# Threads that the system does not give are an error or done without, never an abort.
for kilobytes in 45000 50000 55000 60000 70000 90000; do
  (
    ulimit -c 0 -v "$kilobytes"
    timeout 1 "$multihead" lab model --threads 4 >limited.txt 2>&1
  )
  code=$?
  [[ $code -ne 134 && $code -ne 139 ]] || fail "with $kilobytes KB of memory: signal, $(cat limited.txt)"
done
finish

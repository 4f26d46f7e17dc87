#!/usr/bin/env bash
# The page of `multihead attend` in a real browser: content, keyboard, pointer, links, theme, CSV, load time.
#   tests/cli/attend.sh PATH/TO/multihead
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

{ make_text; printf '</script><!--'; } >text.txt
"$multihead" train lm --data text.txt --out model "${small[@]}" >log.txt 2>&1 || fail "training: $(cat log.txt)"
expect 0 'page.html: [0-9]+ KiB' "$multihead" attend model --text 'the cat sat' --out page.html
grep -q 'default-src .none.' page.html || fail 'the page does not forbid the network'
if grep -qE 'https?://|<link|src=' page.html; then fail 'the page refers to something outside'; fi
code=$(awk '/<style>/,/<\/style>/; /^\(\(\) =>/,/^}\)\(\);/' page.html | wc -c)
[[ $code -lt 15000 ]] || fail "$code bytes of script and style"
expect 0 '"queries": 9' "$multihead" attend model --text '</script>' --out hostile.html --json
[[ $(grep -o '</script' hostile.html | wc -l) -eq 3 ]] || fail 'the text closes a script element'

expect 2 '--out FILE is required' "$multihead" attend model --text 'the cat'
expect 2 'text is empty' "$multihead" attend model --out x.html
expect 2 '--source is for translators' "$multihead" attend model --source 'the cat' --out x.html
expect 2 '17 tokens, the context is 16' "$multihead" attend model --text 'the cat sat on a ' --out x.html
expect 3 'nowhere' "$multihead" attend nowhere --text 'the cat' --out x.html
expect 1 'missing' "$multihead" attend model --text 'the cat' --out missing/x.html

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
if [[ -z $browser ]]; then
  [[ $failures -eq 0 ]] || finish
  echo 'SKIPPED: no Chromium here, the page was not opened'
  exit 77
fi
# dom FILE [HASH]: the document as the browser has it at the end. A browser with a profile of its own each time:
# processes of the one before may live on for a moment, and a new one on their profile refuses to start (exit 21) and
# prints nothing. One that the system lets down (no memory, no time) gets two more chances.
dom() {
  local document='' try profile
  for try in 1 2 3; do
    profile=$(mktemp -d "$work/profile.XXXXXX")
    document=$(HOME=$profile timeout 100 "$browser" --headless=new --no-sandbox --disable-gpu \
      --virtual-time-budget=2000 --user-data-dir="$profile" --dump-dom "file://$work/$1${2:+#$2}" 2>"$work/browser.txt")
    [[ -n $document ]] && break
    echo "the browser printed nothing ($try): $(tail -n 1 "$work/browser.txt")" >&2
  done
  printf '%s\n' "$document"
}
# check WHAT REGEX FILE
check() { grep -qE -- "$2" "$3" || fail "$1: no \"$2\" in the document"; }

dom page.html >plain.txt
[[ $(grep -oE 'data-at="[0-9]' plain.txt | wc -l) -eq 6 ]] || fail 'two layers of two heads and their means make six buttons'
check 'no error on the way' 'data-ready="[0-9]+"' plain.txt
check 'lines between tokens' '<line ' plain.txt
dom page.html 'l=1&h=1&q=3&theme=dark' >linked.txt
check 'link to a head' 'layer 1, head 1' linked.txt
check 'link to a token' '“·” \(3\) looks at' linked.txt
check 'dark' 'data-theme="dark"' linked.txt

# A script at the end uses the page as a person would and notes what it sees.
cat >use.html <<'PAGE'
<script>
const seen = [], key = (element, name) => element.dispatchEvent(new KeyboardEvent('keydown', { key: name, bubbles: true }));
const name = () => document.getElementById('name').textContent, say = () => document.getElementById('say').textContent;
const first = document.querySelector('#grid button');
first.focus();
key(first, 'ArrowRight'); seen.push('right: ' + name());
key(document.activeElement, 'ArrowDown'); seen.push('down: ' + name() + ' focus ' + document.activeElement.dataset.at);
const tokens = document.querySelectorAll('#queries li');
tokens[0].focus(); key(tokens[0], 'ArrowDown'); seen.push('token: ' + say());
key(document.activeElement, 'Enter'); seen.push('kept: ' + location.hash);
key(document.activeElement, 'Escape'); seen.push('free: ' + location.hash);
tokens[0].onmouseenter(); seen.push('first: ' + say());
const box = document.getElementById('matrix').getBoundingClientRect();
document.getElementById('matrix').dispatchEvent(new MouseEvent('mousemove', { clientX: box.left + 1, clientY: box.top + 1 }));
seen.push('cell: ' + say());
document.getElementById('theme').click(); seen.push('theme: ' + document.documentElement.dataset.theme);
const OldBlob = Blob;
Blob = function (parts, options) { seen.push('csv: ' + parts[0].split('\r\n').slice(0, 2).join(' / ') + ' / rows ' + (parts[0].split('\r\n').length - 2)); return new OldBlob(parts, options); };
document.getElementById('csv').click(); document.getElementById('all').click();
const out = document.createElement('pre'); out.textContent = seen.join('\n'); document.body.append(out);
</script>
PAGE
cat page.html use.html >used.html
dom used.html >used.txt
check 'arrow right' '^.*right: Self-attention, layer 0, head 1$' used.txt
check 'arrow down' '^down: Self-attention, layer 1, head 1 focus 1,1$' used.txt
check 'token by keyboard' '^token: “h” \(1\) looks at “[th]” \([01]\) 0\.' used.txt
check 'kept in the address' '^kept: .*q=1$' used.txt
check 'let go' '^free: #v=0&amp;l=1&amp;h=1$' used.txt
check 'the first token sees itself alone' '^first: “t” \(0\) looks at “t” \(0\) 1\.000$' used.txt
check 'cell' '^cell: “t” \(0\) gives “t” \(0\) 1\.0000$' used.txt
check 'theme' '^theme: dark$' used.txt
check 'CSV' '^csv: layer,head,query,key,query_token,key_token,weight / 1,1,0,0,"t","t",1 / rows 121$' used.txt
check 'CSV of all' '^csv: .* / 0,0,0,0,"t","t",1 / rows 484' used.txt

dom hostile.html >hostile.txt
check 'hostile text is only text' '>&lt;<' hostile.txt

# The promise: 12 layers x 12 heads x 64 tokens in less than a second.
"$multihead" train lm --data text.txt --out large --layers 12 --heads 12 --width 48 --context 64 --batch 1 \
  --tokenizer char --steps 2 --warmup 1 --quiet >log.txt 2>&1 || fail "training: $(cat log.txt)"
"$multihead" attend large --text "$(head -c 64 text.txt)" --out large.html >/dev/null || fail 'attend large'
best=99999
for _ in 1 2 3 4 5 6; do
  ms=$(dom large.html | grep -oE 'data-ready="[0-9]+"' | grep -oE '[0-9]+')
  if [[ ${ms:-99999} -lt $best ]]; then best=$ms; fi
  if [[ $best -lt 1000 ]]; then break; fi
done
echo "12 x 12 x 64: ready after $best ms"
[[ $best -lt 1000 ]] || fail "12 x 12 x 64 takes $best ms"
finish

#!/usr/bin/env bash
# The page of `multihead attend` in a real browser: content, keyboard, pointer, links, theme, CSV, load time.
#   tests/cli/attend.sh PATH/TO/multihead
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

{ make_text; printf '</script><!--'; } >text.txt
"$multihead" train lm --data text.txt --out model "${small[@]}" >log.txt 2>&1 || fail "training: $(cat log.txt)"
expect 0 'page.html: [0-9]+ KiB' "$multihead" attend model --text 'the cat sat' --out page.html
grep -q 'default-src .none.' page.html || fail 'the page does not forbid the network'
if grep -vF 'http://www.w3.org/2000/svg' page.html | grep -qE 'https?://|<link|src='; then fail 'the page refers to something outside'; fi
code=$(awk '/<style>/,/<\/style>/; /^<script>$/,/^<\/script>$/' page.html | wc -c)
[[ $code -gt 20000 && $code -lt 45000 ]] || fail "$code bytes of script and style"
expect 0 '"queries": 9' "$multihead" attend model --text '</script>' --out hostile.html --json
[[ $(grep -o '</script' hostile.html | wc -l) -eq 6 ]] || fail 'the text closes a script element'

expect 2 '--out FILE is required' "$multihead" attend model --text 'the cat'
expect 2 'text is empty' "$multihead" attend model --out x.html
expect 2 '--source is for translators' "$multihead" attend model --source 'the cat' --out x.html
expect 2 '17 tokens, the context is 16' "$multihead" attend model --text 'the cat sat on a ' --out x.html
expect 3 'nowhere' "$multihead" attend nowhere --text 'the cat' --out x.html
expect 1 'missing' "$multihead" attend model --text 'the cat' --out missing/x.html

# Chosen layers and heads; everything else is refused by name.
expect 0 '"layers": 1' "$multihead" attend model --text 'the cat sat' --layers 1 --heads 0-1 --out one.html --json
grep -q '"layers":\[1\],"heads":\[0,1\],"of":\[2,2\]' one.html || fail 'the page does not say which layer it has'
for list in 2 -1 1-0 '0,' ',0' a 0-9 0:1 99999999999999999999 $'0\e[31m'; do
  expect 2 '--layers: expected numbers and ranges from 0 to 1, like 0,2-4; got "' \
    "$multihead" attend model --text 'the cat' --layers "$list" --out x.html
done
expect 2 '--rows: expected numbers and ranges from 0 to 6' "$multihead" attend model --text 'the cat' --rows 7 --out x.html
expect 0 'rows.html' "$multihead" attend model --text 'the cat sat' --rows 4,10 --out rows.html
expect 2 '--heads: expected numbers and ranges from 0 to 1' "$multihead" attend model --text 'a cat' --heads 2 --out x.html
[[ ! -e x.html ]] || fail 'a refused command wrote a page'

# Tokens that are pieces of characters.
"$multihead" train lm --data text.txt --out bytes --layers 1 --heads 2 --width 16 --context 16 --batch 4 --vocab-size 260 \
  --steps 1 --warmup 1 --quiet >log.txt 2>&1 || fail "training: $(cat log.txt)"
expect 0 'bytes.html' "$multihead" attend bytes --text 'a狐é' --out bytes.html
for label in a '狐¹⁄₃' '狐²⁄₃' '狐³⁄₃' 'é¹⁄₂' 'é²⁄₂'; do
  grep -q "\"$label\"" bytes.html || fail "no token \"$label\" in the page"
done
if grep -q $'\xEF\xBF\xBD' bytes.html; then fail 'the page has replacement characters'; fi

# A long text of many heads: 8 bits where 16 would be too much, then refused with the ways out. 24 layers x 16 heads.
"$multihead" train lm --data text.txt --out deep --layers 24 --heads 16 --width 32 --context 1024 --batch 1 \
  --tokenizer char --steps 1 --warmup 1 --quiet >log.txt 2>&1 || fail "training: $(cat log.txt)"
long() { make_text 400 | head -c "$1"; }
expect 0 'deep.html: 6[0-9]{4} KiB; weights in 8 bits, off by up to 0.004' "$multihead" attend deep --text "$(long 512)" --out deep.html
grep -q '"bits":8' deep.html || fail 'the page does not say that it has 8 bits'
expect 2 'page of .* MiB, more than 96, even with 8 bits per weight; choose some layers and heads' \
  "$multihead" attend deep --text "$(long 700)" --out x.html
expect 0 'x.html: [0-9]+ KiB; attention alone, see --measures$' "$multihead" attend deep --text "$(long 700)" --layers 0,20-23 --heads 3 --out x.html

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
if [[ -z $browser ]]; then
  [[ $failures -eq 0 ]] || finish
  echo 'SKIPPED: no Chromium here, the page was not opened'
  exit 77
fi
# dom FILE [HASH] [WIDTH]: the document as the browser has it at the end. A browser with a profile of its own each time:
# processes of the one before may live on for a moment, and a new one on their profile refuses to start (exit 21) and
# prints nothing. One that the system lets down (no memory, no time) gets two more chances.
dom() {
  local document='' try profile
  for try in 1 2 3; do
    profile=$(mktemp -d "$work/profile.XXXXXX")
    document=$(HOME=$profile timeout 100 "$browser" --headless=new --no-sandbox --disable-gpu \
      --window-size="${3:-1300},900" --virtual-time-budget=2000 --user-data-dir="$profile" --enable-logging=stderr \
      --dump-dom "file://$work/$1${2:+#$2}" 2>"$work/browser.txt")
    if grep -q CONSOLE "$work/browser.txt"; then echo "$1: $(grep CONSOLE "$work/browser.txt")" >>"$work/console.txt"; fi
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
{
const seen = [], save = document.getElementById('save'), key = (element, name) => element.dispatchEvent(new KeyboardEvent('keydown', { key: name, bubbles: true }));
const name = () => document.getElementById('name').textContent, say = () => document.getElementById('say').textContent;
const first = document.querySelector('.grid button');
first.focus();
key(first, 'ArrowRight'); seen.push('right: ' + name());
key(document.activeElement, 'ArrowDown'); seen.push('down: ' + name() + ' focus ' + document.activeElement.dataset.at);
const tokens = document.querySelectorAll('.queries li');
tokens[0].focus(); key(tokens[0], 'ArrowDown'); seen.push('token: ' + say());
key(document.activeElement, 'Enter'); seen.push('kept: ' + location.hash);
key(document.activeElement, 'Escape'); seen.push('free: ' + location.hash);
tokens[0].onmouseenter(); seen.push('first: ' + say());
const box = document.querySelector('.matrix').getBoundingClientRect();
document.querySelector('.matrix').dispatchEvent(new MouseEvent('mousemove', { clientX: box.left + 1, clientY: box.top + 1 }));
seen.push('cell: ' + say());
document.getElementById('theme').click(); seen.push('theme: ' + document.documentElement.dataset.theme);
const OldBlob = Blob;
Blob = function (parts, options) { seen.push(options.type + ' ' + parts[0].length); if (options.type === 'text/csv') seen.push('csv: ' + parts[0].split('\r\n').slice(0, 2).join(' / ') + ' / rows ' + (parts[0].split('\r\n').length - 2)); return new OldBlob(parts, options); };
for (const kind of ['csv', 'all', 'svg', 'json']) { save.value = kind; save.onchange(); }
seen.push('picture: ' + panels[0].picture().slice(0, 60) + ' ' + (panels[0].picture().match(/<rect/g) || []).length);
const lines = () => document.querySelectorAll('.lines line'), threshold = document.getElementById('threshold');
key(document, 'Escape');
const before = lines().length;
document.querySelector('.grid [data-at="1,0"]').dispatchEvent(new MouseEvent('click', { shiftKey: true, bubbles: true }));
seen.push(`more heads: ${lines().length > before} ${new Set([...lines()].map(line => line.style.stroke)).size} colours ${location.hash}`);
threshold.value = 1; threshold.oninput(); seen.push(`least: ${[...lines()].every(line => line.getAttribute('opacity') === '1.000')} ${location.hash}`);
seen.push(`neurons: ${document.querySelectorAll('.neurons tbody tr').length} keys of ${document.querySelector('.neurons tbody canvas').width}`);
seen.push(`lens: ${document.querySelectorAll('.lens tbody tr').length} rows, ${document.querySelectorAll('.lens tbody tr:last-child td').length} guesses`);
seen.push(`attributions: ${document.querySelectorAll('.attributions .tokens span').length} tokens`);
seen.push(`worth: ${document.querySelector('.grid [data-at="1,0"]').title}`);
const out = document.createElement('pre'); out.textContent = seen.join('\n'); document.body.append(out);
}
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
check 'SVG' '^picture: &lt;svg xmlns=.* [1-9][0-9]*$' used.txt
check 'JSON' '^application/json [0-9]{4,}$' used.txt
check 'several heads in colour' '^more heads: true 2 colours #.*more=0' used.txt
check 'threshold' '^least: true #.*least=1' used.txt
check 'neuron view' '^neurons: 11 keys of 8$' used.txt
check 'logit lens' '^lens: 3 rows, 5 guesses$' used.txt
check 'attributions' '^attributions: 11 tokens$' used.txt
check 'ablation' '^worth: layer 1, head 0: without it log p\(“.*”\) (\+|−)[0-9.]+' used.txt

# Some queries of a text.
dom rows.html 'l=1&h=0&q=1' >rows.txt
check 'the query under its own number' '“t” \(10\) looks at' rows.txt
check 'two queries' 'Only 2 of the queries' rows.txt

# Two texts, two models, side by side: what is chosen is chosen in both.
expect 0 'two.html' "$multihead" attend model --text 'the cat sat' --beside 'a cat' --out two.html
dom two.html 'l=1&h=0&q=2' >two.txt
[[ $(grep -oE 'data-at="1,0" title' two.txt | wc -l) -eq 2 ]] || [[ $(grep -oE 'aria-pressed="true"' two.txt | wc -l) -eq 2 ]] ||
  fail 'two panels have not two chosen heads'
check 'its own text' 'Attention of model: a cat' two.txt
"$multihead" train lm --data text.txt --out other "${small[@]}" --seed 5 >log.txt 2>&1 || fail "training: $(cat log.txt)"
expect 0 'pair.html' "$multihead" attend model --beside-model other --text 'the cat sat' --out pair.html
expect 2 'as many layers and heads' "$multihead" attend model --beside-model deep --text 'the cat' --out x.html
expect 0 'plain.html: [0-9]+ KiB$' "$multihead" attend model --measures never --text 'the cat sat' --out plain.html

dom hostile.html >hostile.txt
check 'hostile text is only text' '>&lt;<' hostile.txt
printf 'a\tA\nab\tAB\nb\tB\n' >pairs.tsv
"$multihead" train seq2seq --data pairs.tsv --out translator --encoder-layers 3 --decoder-layers 1 --heads 2 --width 16 \
  --max-positions 16 --max-tokens 12 --tokenizer char --batch-tokens 32 --steps 2 --warmup 1 >log.txt 2>&1 ||
  fail "training: $(cat log.txt)"
expect 0 'both.html' "$multihead" attend translator --source abba --text ABBA --out both.html
expect 0 '"name": "Encoder: source to source"' "$multihead" attend translator --source ab --text AB --layers 2 --out x.html --json
if grep -q Cross out.txt; then fail 'a view without layers'; fi

# What a person with three screens sees and where: `seen` notes it at the end of the document.
cat >look.html <<'PAGE'
<script>
{
const seen = [], by = id => document.querySelector(`#${id},.${id}`), out = document.createElement('pre');
const inside = box => box.top >= 0 && box.left >= 0 && box.bottom <= innerHeight && box.right <= innerWidth;
// Every small square: rows that add up to 1 (shades are square roots), no more dots than the square has.
let worst = 0, dots = 0;
for (const canvas of document.querySelectorAll('.grid canvas')) {
  const image = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  for (let r = 0; r < canvas.height; r++) {
    let sum = 0;
    for (let c = 0; c < canvas.width; c++) sum += (image[4 * (r * canvas.width + c) + 3] / 255) ** 2;
    worst = Math.max(worst, Math.abs(sum - 1));
  }
  dots = Math.max(dots, canvas.width / canvas.clientWidth);
}
seen.push(`rows of the squares off by ${worst < 0.1 ? 'little' : worst}, ${dots <= 1 ? 'no dot lost' : dots}`);
for (const part of ['grid', 'matrix', 'lines']) {
  by(part).scrollIntoView();
  seen.push(`read-out with ${part}: ${inside(by('bar').getBoundingClientRect())}`);
}
const labels = [...document.querySelectorAll('.axes text:not(.here)')];
seen.push(`axes: ${labels.length} labels, ${labels[0].textContent} ${document.documentElement.scrollWidth <= innerWidth ? 'fits' : 'too wide'}`);
const tops = labels.filter(t => t.getAttribute('text-anchor')).map(t => t.getBoundingClientRect().top);
seen.push(`labels apart: ${tops.every((t, i) => !i || t - tops[i - 1] >= 11)}`);
by('view').value = 1; by('view').onchange();
if (!by('view').hidden) {
  document.querySelector('.grid [data-at="2,1"]').click();
  by('view').value = 0; by('view').onchange(); seen.push('first: ' + by('name').textContent);
  by('view').value = 1; by('view').onchange(); seen.push('again: ' + by('name').textContent + ' ' + location.hash);
  location.hash = 'v=1&l=1&h=mean&theme=dark';
}
addEventListener('hashchange', () => { seen.push('address: ' + by('name').textContent + ' ' + document.documentElement.dataset.theme); out.textContent = seen.join('\n'); });
out.textContent = seen.join('\n');
document.body.append(out);
}
</script>
PAGE
cat both.html look.html >views.html
for width in 1920 1300 390; do
  dom views.html '' $width >views.txt
  for part in grid matrix lines; do check "read-out at $width" "read-out with $part: true" views.txt; done
  check "axes at $width" 'axes: 1[0-9] labels, &lt;start&gt; fits' views.txt
  check "labels at $width" '^labels apart: true' views.txt
done
check 'the layer is another stack'"'"'s, the head the same' '^first: Cross-attention: target to source, layer 0, head 1$' views.txt
check 'a view keeps layer and head' '^again: Encoder: source to source, layer 2, head 1 #v=1&amp;l=2&amp;h=1$' views.txt
check 'a new address is followed' '^address: Encoder: source to source, layer 1, mean of the heads dark' views.txt
cat deep.html look.html >deep-look.html
dom deep-look.html 'l=20&h=3&q=500' >deep.txt
check 'small squares of a long text' 'rows of the squares off by little, no dot lost' deep.txt
check 'what an 8-bit page says' 'Weights are kept in 8 bits' deep.txt
check 'labels of a long text' 'labels apart: true' deep.txt

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
cat large.html look.html >large-look.html
dom large-look.html >large.txt
check 'small squares' 'rows of the squares off by little, no dot lost' large.txt
echo "12 x 12 x 64: ready after $best ms"
[[ $best -lt 1000 ]] || fail "12 x 12 x 64 takes $best ms"
if [[ -e console.txt ]]; then fail "the console has messages: $(cat console.txt)"; fi
finish

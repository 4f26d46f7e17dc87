// The page around its panels: what is chosen, the address, saving, the laboratory.
const page = JSON.parse($('data').textContent);
let panels = [], dark, want = [0, 0];                 // want: layer and head for every view; dark: the theme if chosen
let changes = { off: [], cut: [] }, marked;           // of the laboratory; marked: the cell that was clicked

const say = text => $('say').textContent = text;
function point(side = state.side, i = state.i) {
  state.side = side, state.i = i;
  for (const panel of panels) panel.point();
  say(panels[0].words());
  remember();
}
function pick(l, h) {
  want = [l, h];
  state.more = [];
  choose(l, h);
}
function more(h) {
  state.more = state.more.includes(h) ? state.more.filter(m => m !== h) : [...state.more, h];
  choose(state.l, state.h);
}
function choose(l, h) {
  state.l = l, state.h = h;
  for (const panel of panels) panel.choose();
  $('name').textContent = `${panels[0].view.name}, ${panels[0].named(l, h)}` + (state.more.length ? ` and ${state.more.map(m => panels[0].view.heads[m] ?? 'mean').join(', ')}` : '');
  point();
  laboratory();
  document.dispatchEvent(new Event('choose'));
}
function draw() {
  const { view } = panels[0];
  state.l = clamp(want[0], view.layers.length), state.h = clamp(want[1], view.heads.length + 1);
  for (const panel of panels) panel.draw();
  choose(state.l, state.h);
}
function open(v) {
  state.v = clamp(v, page.runs[0].views.length), state.side = '', state.kept = false, state.more = [];
  const view = page.runs[0].views[state.v];
  state.l = clamp(want[0], view.layers.length), state.h = clamp(want[1], view.heads.length + 1);
  $('view').value = state.v;
  for (const panel of panels) panel.open();
  choose(state.l, state.h);
}
function fill(runs) {
  page.runs = runs;
  panels = runs.map((run, i) => new Panel(run, i));
  document.querySelector('main').replaceChildren(...panels.map(panel => panel.box));
  for (const panel of panels) panel.part('which').hidden = runs.length < 2;
  $('view').replaceChildren(...runs[0].views.map((v, i) => new Option(v.name, i)));
  $('view').hidden = runs[0].views.length < 2;
}

// What the address says: view, layer, head, more heads, token, threshold, theme.
function remember() {
  const { view } = panels[0], hash = `#v=${state.v}&l=${view.layers[state.l]}&h=${view.heads[state.h] ?? 'mean'}`
    + (state.more.length ? `&more=${state.more.map(m => view.heads[m] ?? 'mean')}` : '') + (state.kept ? `&${state.side}=${state.i}` : '')
    + (state.least === 0.04 ? '' : `&least=${state.least}`) + (page.lab ? remembered() : '') + (dark === undefined ? '' : '&theme=' + root.dataset.theme);
  try { history.replaceState(null, '', hash); } catch {}   // a frame without an address of its own
}
// The laboratory's part of it: its text and its changes.
const remembered = () => (changes.off.length ? `&off=${changes.off}` : '') + (changes.cut.length ? `&cut=${changes.cut.map(edge => edge.join('.'))}` : '')
  + ($('text').value === page.lab.text ? '' : `&text=${encodeURIComponent($('text').value)}`);
function restoreLaboratory(asked) {
  const list = key => (asked.get(key) || '').split(',').filter(Boolean), before = remembered();
  changes = { off: list('off'), cut: list('cut').map(edge => edge.split('.').map(Number)) };
  $('text').value = asked.get('text') ?? page.lab.text;
  if (remembered() !== before) rerun();
}
function restore() {
  const asked = new URLSearchParams(location.hash.slice(1)), number = key => parseInt(asked.get(key)) || 0;
  dark = asked.has('theme') ? asked.get('theme') === 'dark' : undefined;
  root.dataset.theme = dark ?? matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  const { layers, heads, queries, keys } = page.runs[0].views[clamp(number('v'), page.runs[0].views.length)];
  const place = name => name === 'mean' ? heads.length : heads.indexOf(parseInt(name));
  want = [clamp(layers.indexOf(number('l')), layers.length), clamp(place(asked.get('h')), heads.length + 1)];
  if (asked.has('least')) least(Math.min(1, Math.max(0, parseFloat(asked.get('least')) || 0)));
  open(number('v'));
  state.more = (asked.get('more') || '').split(',').map(place).filter(m => m >= 0);
  if (state.more.length) choose(state.l, state.h);
  for (const [side, list] of [['q', queries], ['k', keys]]) if (asked.has(side)) {
    state.kept = true;
    point(side, clamp(number(side), list.length));
  }
  if (page.lab) restoreLaboratory(asked);
}
function least(x) { state.least = x, $('threshold').value = x, $('least').textContent = x.toFixed(2); }

function save(kind) {
  const [panel] = panels, { view } = panel, name = `layer${view.layers[state.l]}-head${view.heads[state.h] ?? '-mean'}`;
  if (kind === 'csv') download(name + '.csv', 'text/csv', csv(view, [[state.l, state.h]]));
  if (kind === 'all') download('attention.csv', 'text/csv', csv(view, view.layers.flatMap((_, l) => view.heads.map((_, h) => [l, h]))));
  if (kind === 'svg') download(name + '.svg', 'image/svg+xml', panel.picture());
  if (kind === 'json') download('attention.json', 'application/json', json(panel.run));
  if (kind === 'png') {
    const image = new Image(), canvas = el('canvas');
    image.onload = () => {
      canvas.width = 2 * image.width, canvas.height = 2 * image.height;
      const pen = canvas.getContext('2d');
      pen.fillStyle = getComputedStyle(root).getPropertyValue('--panel'), pen.fillRect(0, 0, canvas.width, canvas.height);
      pen.drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(blob => download(name + '.png', 'image/png', blob));
    };
    image.src = 'data:image/svg+xml;charset=utf-8,' + encodeURIComponent(panel.picture());
  }
}

// The laboratory: the model runs again with another text, without heads, without edges.
function edge(panel, q, k) { marked = state.kept && !state.v ? [panel.view.layers[state.l], panel.view.heads[state.h], placeOf(panel.view, q), k] : undefined; laboratory(); }
const headName = () => `${panels[0].view.layers[state.l]}.${panels[0].view.heads[state.h]}`;
function laboratory() {
  if (!page.lab) return;
  const none = state.h >= panels[0].view.heads.length || state.v > 0;
  $('off').disabled = none, $('cut').disabled = !marked;
  $('off').textContent = changes.off.includes(headName()) ? 'Switch head on' : 'Switch head off';
  $('cut').textContent = marked ? `Cut ${marked[2]} → ${marked[3]} in head ${marked[0]}.${marked[1]}` : 'Cut edge (click a cell)';
  $('changes').textContent = [changes.off.length ? 'off: ' + changes.off.join(', ') : '', ...changes.cut.map(([l, h, q, k]) => `cut ${l}.${h}: ${q} → ${k}`),
    page.runs[0].next ? `${page.lab.says ?? 'next'}: ` + page.runs[0].next.map(([t, p]) => `“${show(t)}” ${p.toFixed(2)}`).join(', ') : ''].filter(Boolean).join(' · ');
}
// `multihead lab` answers; a page that brings its model along sets a function of its own (examples/browser).
const ask = window.askModel ?? (async request =>
  (await fetch('run', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(request) })).json());
async function rerun() {
  $('run').disabled = true, $('changes').textContent = 'running …';
  try {
    const result = await ask({ text: $('text').value, ...changes });
    if (result.error) throw Error(result.error);
    const kept = [state.l, state.h];
    fill(result.runs);
    want = kept, marked = undefined;
    open(state.v);
  } catch (error) {
    $('changes').textContent = error.message;
  }
  $('run').disabled = false;
  root.dataset.runs = +(root.dataset.runs || 0) + 1;
}
function startLaboratory() {
  $('lab').hidden = false, $('text').value = page.lab.text;
  $('lab').onsubmit = e => { e.preventDefault(); changes.cut = []; rerun(); };   // positions of another text are others
  $('off').onclick = () => { const name = headName(); changes.off = changes.off.includes(name) ? changes.off.filter(x => x !== name) : [...changes.off, name]; rerun(); };
  $('cut').onclick = () => { changes.cut.push(marked); rerun(); };
  $('reset').onclick = () => { changes = { off: [], cut: [] }; rerun(); };
}

$('view').onchange = () => open(+$('view').value);
$('theme').onclick = () => { dark = root.dataset.theme === 'light'; root.dataset.theme = dark ? 'dark' : 'light'; draw(); };
$('threshold').oninput = () => { least(+$('threshold').value); point(); };
$('save').onchange = () => { save($('save').value); $('save').value = ''; };
addEventListener('hashchange', restore);
document.addEventListener('keydown', e => { if (e.key === 'Escape') { state.kept = false, marked = undefined; point(''); laboratory(); } });
let width = innerWidth;
addEventListener('resize', () => { if (width !== innerWidth) { width = innerWidth; for (const panel of panels) panel.lists(); draw(); } });
least(state.least);
fill(page.runs);
if (page.lab) startLaboratory();
restore();
root.dataset.ready = Math.round(performance.now());

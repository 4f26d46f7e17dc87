(() => {
const $ = id => document.getElementById(id), el = name => document.createElement(name);
const views = JSON.parse($('data').textContent).views, root = document.documentElement;
const at = { v: 0, l: 0, h: 0, side: '', i: 0, kept: false };   // side: 'q', 'k' or ''
let view, rows, columns, w, px = 1;                             // w: weights of the chosen head; px: a cell's size
let want = [0, 0], dark;                                        // layer and head for every view; the theme if chosen
const hex = c => '<U+' + c.codePointAt().toString(16).toUpperCase().padStart(4, 0) + '>';
const show = t => t.replace(/ /g, '·').replace(/\n/g, '↵').replace(/\t/g, '⇥')
  .replace(/(?![\u200c\u200d])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, hex) || '∅';
const cut = (t, most) => [...t].length > most ? [...t].slice(0, most - 1).join('') + '…' : t;
const clamp = (x, n) => Math.max(0, Math.min(n - 1, x));

// √weight in steps of 1 / (2^bits - 1).
function levels(index) {
  if (!view.levels) {
    const text = atob($('w' + index).textContent), bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    view.levels = view.bits > 8 ? new Uint16Array(bytes.buffer) : bytes;
    $('w' + index).remove();
  }
  return view.levels;
}
// One head's weights; the one behind the last is the mean of the layer.
function head(l, h) {
  const heads = view.heads.length, from = levels(at.v), out = new Float32Array(rows * columns);
  const size = view.causal ? rows * (rows + 1) / 2 : rows * columns;   // causal: row q has q + 1 keys
  const [first, last] = h < heads ? [h, h + 1] : [0, heads];
  for (let k = first; k < last; k++) {
    let n = (l * heads + k) * size;
    for (let q = 0; q < rows; q++) {
      for (let c = q * columns, end = c + (view.causal ? q + 1 : columns); c < end; c++, n++) out[c] += from[n] * from[n];
    }
  }
  const unit = 1 / ((2 ** view.bits - 1) ** 2 * (last - first));
  for (let i = 0; i < out.length; i++) out[i] *= unit;
  return out;
}
// Which of `to` places item i of n falls into, and how much of it; the rest is the next one's.
function places(n, to) {
  const place = new Int32Array(n), part = new Float32Array(n);
  for (let i = 0; i < n; i++) {
    place[i] = i * to / n | 0;
    part[i] = Math.min(1, (place[i] + 1) * n / to - i + 1e-9);
  }
  return [place, part];
}
// At most `most` rows and columns: means over queries, sums over keys, so that rows still add up to 1.
function shrink(weights, most) {
  const r = Math.min(rows, most), c = Math.min(columns, most);
  if (r === rows && c === columns) return [weights, r, c];
  const [row, rowPart] = places(rows, r), [column, columnPart] = places(columns, c);
  const out = new Float32Array(r * c + c + 1), line = new Float32Array(c + 1);
  for (let q = 0; q < rows; q++) {
    line.fill(0);
    for (let k = 0; k < columns; k++) {
      const x = weights[q * columns + k], own = x * columnPart[k];
      if (x) line[column[k]] += own, line[column[k] + 1] += x - own;
    }
    for (let k = 0; k < c; k++) {
      const x = line[k] * r / rows, own = x * rowPart[q], to = row[q] * c + k;
      out[to] += own, out[to + c] += x - own;
    }
  }
  return [out, r, c];
}
function paint(canvas, [weights, r, c]) {
  canvas.width = c, canvas.height = r;
  const ink = getComputedStyle(root).getPropertyValue('--ink').split(',').map(Number);
  const image = new ImageData(c, r);
  for (let i = 0; i < r * c; i++) image.data.set([...ink, Math.sqrt(weights[i]) * 255], 4 * i);
  canvas.getContext('2d').putImageData(image, 0, 0);
}

function overview() {
  const grid = $('grid'), heads = view.heads.length;
  const thumb = Math.max(16, Math.min(52, Math.min(500, innerWidth - 90) / (heads + 1) | 0));
  grid.style.setProperty('--thumb', thumb + 'px');
  grid.style.gridTemplateColumns = `auto repeat(${heads + 1}, ${thumb}px)`;
  const dots = Math.floor((thumb - 2) * devicePixelRatio);   // its border is a pixel wide
  const label = text => { const s = el('span'); s.textContent = text; return s; };
  const cells = [label(''), ...view.heads.map(label), label('ø')];
  for (let l = 0; l < view.layers.length; l++) {
    cells.push(label(view.layers[l]));
    const squares = view.heads.map((_, h) => shrink(head(l, h), dots));
    const [first, ...sizes] = squares[0];
    squares.push([first.map((_, i) => squares.reduce((sum, square) => sum + square[0][i], 0) / heads), ...sizes]);
    for (let h = 0; h <= heads; h++) {
      const button = el('button'), canvas = el('canvas');
      button.dataset.at = l + ',' + h;
      button.ariaLabel = button.title = named(l, h);
      button.onclick = () => pick(l, h);
      paint(canvas, squares[h]);
      button.append(canvas);
      cells.push(button);
    }
  }
  grid.replaceChildren(...cells);
  const few = (name, list, all) => list.length < all ? `Only ${name} ${list.join(', ')} of ${all}. ` : '';
  $('part').textContent = few('layers', view.layers, view.of[0]) + few('heads', view.heads, view.of[1])
    + (view.bits > 8 ? '' : 'Weights are kept in 8 bits and off by up to 0.004; fewer layers, heads or tokens have 16.');
}
const named = (l, h) => `layer ${view.layers[l]}, ` + (h < view.heads.length ? `head ${view.heads[h]}` : 'mean of the heads');
const cell = (l, h) => document.querySelector(`#grid [data-at="${l},${h}"]`);
$('grid').onkeydown = e => {
  const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
  if (!move) return;
  e.preventDefault();
  pick(clamp(at.l + move[0], view.layers.length), clamp(at.h + move[1], view.heads.length + 1));
  cell(at.l, at.h).focus();
};

function pick(l, h) {
  want = [l, h];
  choose(l, h);
}
function choose(l, h) {
  for (const b of document.querySelectorAll('#grid button')) {
    const on = b.dataset.at === l + ',' + h;
    b.ariaPressed = on, b.tabIndex = on ? 0 : -1;
  }
  at.l = l, at.h = h, w = head(l, h);
  $('name').textContent = `${view.name}, ${named(l, h)}`;
  paint($('matrix'), [w, rows, columns]);
  point();
}

// The matrix with its tokens; where they are closer than lines of text, some of them.
const label = (list, n) => cut(show(list[n]), 14);
const spotOf = { q: n => `translate(${gap.q - 6},${gap.k + (n + .5) * px + 4})`,
  k: n => `translate(${gap.q + (n + .5) * px + 4},${gap.k - 6}) rotate(-90)` };
const gap = { q: 0, k: 0 };
function axes() {
  const most = Math.max(rows, columns), room = Math.min(innerWidth - 190, most > 160 ? 1100 : 500);
  px = Math.max(1, Math.min(22, room / most | 0));
  const pen = el('canvas').getContext('2d'), parts = [];
  pen.font = '11px ui-monospace, monospace';
  for (const [axis, list] of [['q', view.queries], ['k', view.keys]])
    gap[axis] = 12 + Math.ceil(Math.max(...list.map((_, n) => pen.measureText(label(list, n)).width)));
  for (const [axis, list] of [['q', view.queries], ['k', view.keys]]) {
    for (let n = 0; n < list.length; n += Math.ceil(12 / px)) parts.push(mark(axis, list, n));
    parts.push(mark(axis, list));
  }
  $('axes').setAttribute('width', gap.q + columns * px);
  $('axes').setAttribute('height', gap.k + rows * px);
  $('axes').replaceChildren(...parts);
  $('matrix').style.width = columns * px + 'px', $('matrix').style.height = rows * px + 'px';
}
function mark(axis, list, n) {
  const text = document.createElementNS($('axes').namespaceURI, 'text');
  if (axis === 'q') text.setAttribute('text-anchor', 'end');
  if (n === undefined) text.id = 'at' + axis, text.classList.add('here');
  else text.textContent = label(list, n), text.setAttribute('transform', spotOf[axis](n));
  return text;
}
function here(q, k) {
  for (const [axis, list, n] of [['q', view.queries, q], ['k', view.keys, k]]) {
    const text = $('at' + axis);
    text.textContent = n === undefined ? '' : label(list, n);
    text.setAttribute('transform', spotOf[axis](n || 0));
  }
}

function lists() {
  for (const [id, side] of [['queries', 'q'], ['keys', 'k']]) {
    $(id).replaceChildren(...view[id].map((token, i) => {
      const item = el('li'), number = el('i');
      const text = cut(show(token), innerWidth < 600 ? 10 : 24);
      item.append(...(side === 'q' ? [number, text] : [text, ' ', number]));
      item.tabIndex = i ? -1 : 0;
      item.onmouseenter = () => at.kept || point(side, i);
      item.onfocus = () => point(side, i);
      item.onclick = () => { at.kept = !(at.kept && at.side === side && at.i === i); point(side, i); };
      return item;
    }));
    $(id).onmouseleave = () => at.kept || point('');
    $(id).onkeydown = e => {
      const items = $(id).children, step = { ArrowUp: -1, ArrowDown: 1 }[e.key];
      if (step) { e.preventDefault(); items[clamp([...items].indexOf(document.activeElement) + step, items.length)].focus(); }
      if (e.key === 'Enter') document.activeElement.click();
    };
  }
}

// Shows the lines of one query or key, or of all.
function point(side = at.side, i = at.i) {
  at.side = side, at.i = i;
  const parts = [], shown = (q, k) => !side || (side === 'q' ? q : k) === i;
  for (let q = 0; q < rows; q++) for (let k = 0; k < columns; k++) {
    const weight = w[q * columns + k];
    if (weight >= (side ? 0.004 : 0.04) && shown(q, k))
      parts.push(`<line x1="2" y1="${q * 20 + 10}" x2="168" y2="${k * 20 + 10}" opacity="${(side ? Math.sqrt(weight) : weight).toFixed(3)}"/>`);
  }
  const svg = document.querySelector('#lines svg'), height = Math.max(rows, columns) * 20;
  svg.style.height = height + 'px';
  svg.setAttribute('viewBox', `0 0 170 ${height}`);
  svg.innerHTML = parts.join('');
  for (const [id, own] of [['queries', 'q'], ['keys', 'k']]) [...$(id).children].forEach((item, n) => {
    const other = side && side !== own, weight = other ? w[side === 'q' ? i * columns + n : n * columns + i] : 0;
    item.style.background = other ? `rgba(var(--ink), ${(weight * 0.75).toFixed(3)})` : '';
    item.querySelector('i').textContent = weight >= 0.005 ? weight.toFixed(2) : '';
    item.classList.toggle('on', side === own && n === i);
  });
  say();
  here(side === 'q' ? i : undefined, side === 'k' ? i : undefined);
  remember();
}
function remember() {
  const hash = `#v=${at.v}&l=${view.layers[at.l]}&h=${view.heads[at.h] ?? 'mean'}` + (at.kept ? `&${at.side}=${at.i}` : '')
    + (dark === undefined ? '' : '&theme=' + root.dataset.theme);
  try { history.replaceState(null, '', hash); } catch {}   // a frame without an address of its own
}
function say(q, k) {
  const digits = view.bits > 8 ? 4 : 3, name = (list, n) => `“${show(list[n])}” (${n})`;
  if (q !== undefined) {
    $('say').textContent = `${name(view.queries, q)} gives ${name(view.keys, k)} ${w[q * columns + k].toFixed(digits)}`;
    here(q, k);
  } else if (!at.side) {
    $('say').textContent = 'Lines: weights of 0.04 and more; of one token also smaller ones. '
      + 'Point at a token or a cell, or tab to one. Click or Enter keeps it, Esc lets go.';
  } else {
    const query = at.side === 'q', others = query ? view.keys : view.queries;
    const top = others.map((_, n) => [w[query ? at.i * columns + n : n * columns + at.i], n])
      .sort((a, b) => b[0] - a[0]).slice(0, 5).filter(x => x[0] >= 0.001);
    $('say').textContent = name(query ? view.queries : view.keys, at.i) + (query ? ' looks at ' : ' is seen by ')
      + (top.map(([x, n]) => `${name(others, n)} ${x.toFixed(3)}`).join(', ') || 'nothing');
  }
}

const matrix = $('matrix'), spot = { q: 0, k: 0 };
matrix.onmousemove = e => {
  const box = matrix.getBoundingClientRect(), part = (x, from, size, n) => clamp((x - from) / size * n | 0, n);
  spot.q = part(e.clientY, box.top, box.height, rows);
  spot.k = part(e.clientX, box.left, box.width, columns);
  if (!at.kept) point('q', spot.q);
  say(spot.q, spot.k);
};
matrix.onmouseleave = () => at.kept ? point() : point('');
matrix.onclick = () => { at.kept = !at.kept; point('q', spot.q); };
matrix.onkeydown = e => {
  const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
  if (e.key === 'Enter') matrix.onclick();
  if (!move) return;
  e.preventDefault();
  spot.q = clamp(spot.q + move[0], rows), spot.k = clamp(spot.k + move[1], columns);
  point('q', spot.q);
  say(spot.q, spot.k);
};
document.addEventListener('keydown', e => { if (e.key === 'Escape') { at.kept = false; point(''); } });

function csv(wanted) {
  const quoted = t => '"' + t.replace(/"/g, '""') + '"';
  const lines = ['layer,head,query,key,query_token,key_token,weight'];
  for (const [l, h] of wanted) head(l, h).forEach((x, n) => {
    const q = n / columns | 0, k = n % columns;
    lines.push([view.layers[l], view.heads[h] ?? 'mean', q, k, quoted(view.queries[q]), quoted(view.keys[k]), +x.toFixed(5)].join());
  });
  return lines.join('\r\n') + '\r\n';
}
function save(name, wanted) {
  const link = el('a');
  link.href = URL.createObjectURL(new Blob([csv(wanted)], { type: 'text/csv' }));
  link.download = name + '.csv';
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
$('csv').onclick = () => save(`layer${view.layers[at.l]}-head${view.heads[at.h] ?? '-mean'}`, [[at.l, at.h]]);
$('all').onclick = () => save('attention', view.layers.flatMap((_, l) => view.heads.map((_, h) => [l, h])));

function draw() {
  axes();
  overview();
  choose(clamp(want[0], view.layers.length), clamp(want[1], view.heads.length + 1));
}
function open(v) {
  at.v = clamp(v, views.length), view = views[at.v], at.side = '', at.kept = false;
  rows = view.queries.length, columns = view.keys.length;
  $('view').value = at.v;
  lists();
  draw();
}
// What the address says: view, layer, head, token, theme.
function restore() {
  const asked = new URLSearchParams(location.hash.slice(1)), number = key => parseInt(asked.get(key)) || 0;
  dark = asked.has('theme') ? asked.get('theme') === 'dark' : undefined;
  root.dataset.theme = dark ?? matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  const { layers, heads } = views[clamp(number('v'), views.length)];
  want = [clamp(layers.indexOf(number('l')), layers.length), asked.get('h') === 'mean' ? heads.length : clamp(heads.indexOf(number('h')), heads.length)];
  const tokens = ['q', 'k'].filter(side => asked.has(side)).map(side => [side, number(side)]);
  open(number('v'));
  for (const [side, n] of tokens) {
    at.kept = true;
    point(side, clamp(n, side === 'q' ? rows : columns));
  }
}
$('view').append(...views.map((v, i) => new Option(v.name, i)));
$('view').hidden = views.length < 2;
$('view').onchange = () => open(+$('view').value);
$('theme').onclick = () => { dark = root.dataset.theme === 'light'; root.dataset.theme = dark ? 'dark' : 'light'; draw(); };
addEventListener('hashchange', restore);
let width = innerWidth;
addEventListener('resize', () => { if (width !== innerWidth) width = innerWidth, lists(), draw(); });
restore();
root.dataset.ready = Math.round(performance.now());
})();

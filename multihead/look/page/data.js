// Reading what the page holds, and numbers made of it.
const $ = id => document.getElementById(id), el = name => document.createElement(name), root = document.documentElement;
const hex = c => '<U+' + c.codePointAt().toString(16).toUpperCase().padStart(4, 0) + '>';
const show = t => t.replace(/ /g, '·').replace(/\n/g, '↵').replace(/\t/g, '⇥')
  .replace(/(?![\u200c\u200d])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, hex) || '∅';
const cut = (t, most) => [...t].length > most ? [...t].slice(0, most - 1).join('') + '…' : t;
const clamp = (x, n) => Math.max(0, Math.min(n - 1, x));
const signed = (x, digits = 2) => (x < 0 ? '−' : '+') + Math.abs(x).toFixed(digits);

// Bytes of an element of the page, or of an answer of the laboratory.
function bytes(source) {
  const element = source.text === undefined ? $(source.id) : undefined;
  const text = atob(source.text ?? element.textContent), out = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) out[i] = text.charCodeAt(i);
  element?.remove(), delete source.text;   // decoded once: the numbers are kept, not their text
  return out;
}
// √weight in steps of 1 / (2^bits - 1).
function levels(view) {
  if (!view.levels) {
    const raw = bytes(view.weights);
    view.levels = view.bits > 8 ? new Uint16Array(raw.buffer) : raw;
  }
  return view.levels;
}
// Which of the tokens a query is.
const placeOf = (view, q) => view.rows.length ? view.rows[q] : q;
// The weights of one head of the view; the one behind the last is the mean of the layer.
function weightsOf(view, l, h) {
  const rows = view.queries.length, columns = view.keys.length, heads = view.heads.length, from = levels(view);
  const out = new Float32Array(rows * columns);
  const size = view.half ? rows * (rows + 1) / 2 : rows * columns;   // half: row q has q + 1 keys
  const [first, last] = h < heads ? [h, h + 1] : [0, heads];
  for (let k = first; k < last; k++) {
    let n = (l * heads + k) * size;
    for (let q = 0; q < rows; q++) {
      for (let c = q * columns, end = c + (view.half ? q + 1 : columns); c < end; c++, n++) out[c] += from[n] * from[n];
    }
  }
  const unit = 1 / ((2 ** view.bits - 1) ** 2 * (last - first));
  for (let i = 0; i < out.length; i++) out[i] *= unit;
  return out;
}
// Queries and keys of one head: {q, k: [token] -> Float32Array(size), size}. Each is stored in 8 bits with its own scale.
function vectorsOf(view, l, h) {
  const { neurons } = view, heads = view.heads.length, groups = neurons.groups.length, size = neurons.size;
  neurons.bytes ??= new Int8Array(bytes(neurons).buffer);
  const layer = l * (heads * view.queries.length + groups * view.keys.length) * size;
  const group = neurons.groups.indexOf(Math.floor(view.heads[h] / neurons.group));
  const part = (first, tokens, scale) => token => Float32Array.from(
    neurons.bytes.subarray(first + token * size, first + (token + 1) * size), x => x * scale);
  return { size,
    q: part(layer + h * view.queries.length * size, view.queries, neurons.q[l][h]),
    k: part(layer + (heads * view.queries.length + group * view.keys.length) * size, view.keys, neurons.k[l][group]) };
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
function shrink(weights, rows, columns, most) {
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

const colour = name => getComputedStyle(root).getPropertyValue(name).split(',').map(Number);
function paint(canvas, [weights, r, c]) {
  canvas.width = c, canvas.height = r;
  const ink = colour('--ink'), image = new ImageData(c, r);
  for (let i = 0; i < r * c; i++) image.data.set([...ink, Math.sqrt(weights[i]) * 255], 4 * i);
  canvas.getContext('2d').putImageData(image, 0, 0);
}
// One row of numbers, blue above zero and orange below; `most` is the deepest shade.
function paintSigned(canvas, values, most) {
  canvas.width = values.length, canvas.height = 1;
  const plus = colour('--ink'), minus = colour('--ink2'), image = new ImageData(values.length, 1);
  values.forEach((x, i) => image.data.set([...(x < 0 ? minus : plus), Math.min(1, Math.abs(x) / (most || 1)) * 255], 4 * i));
  canvas.getContext('2d').putImageData(image, 0, 0);
}

function csv(view, wanted) {
  const quoted = t => '"' + t.replace(/"/g, '""') + '"', columns = view.keys.length;
  const lines = ['layer,head,query,key,query_token,key_token,weight'];
  for (const [l, h] of wanted) weightsOf(view, l, h).forEach((x, n) => {
    const q = n / columns | 0, k = n % columns;
    lines.push([view.layers[l], view.heads[h] ?? 'mean', placeOf(view, q), k, quoted(view.queries[q]), quoted(view.keys[k]), +x.toFixed(5)].join());
  });
  return lines.join('\r\n') + '\r\n';
}
function json(run) {
  const views = run.views.map(view => ({ name: view.name, queries: view.queries, rows: view.rows, keys: view.keys, layers: view.layers, heads: view.heads,
    weights: view.layers.map((_, l) => view.heads.map((_, h) => {
      const all = weightsOf(view, l, h), columns = view.keys.length;
      return view.queries.map((_, q) => Array.from(all.subarray(q * columns, (q + 1) * columns), x => +x.toFixed(5)));
    })) }));
  return JSON.stringify({ title: run.title, views, next: run.next, lens: run.lens, ablation: run.ablation, attributions: run.attributions });
}
function download(name, type, content) {
  const link = el('a');
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

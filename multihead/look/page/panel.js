// One run of a model: its heads, its matrix, its lines, its numbers. Two of them stand side by side; what is chosen is
// chosen for both.
const state = { v: 0, l: 0, h: 0, more: [], side: '', i: 0, kept: false, least: 0.04 };   // side: 'q', 'k' or ''
const COLOURS = ['rgb(var(--ink))', 'rgb(var(--ink2))', '#2a9d5c', '#a44cc4', '#c7a008', '#d1477f', '#2aa0b8', '#8a6f4e'];

class Panel {
  constructor(run, index) {
    this.run = run, this.index = index;
    this.box = $('panel').content.firstElementChild.cloneNode(true);
    this.part = name => this.box.querySelector('.' + name);
    this.svg = this.box.querySelector('.lines svg');
    this.matrix = this.part('matrix');
    this.part('which').textContent = run.title || '';
    this.spot = { q: 0, k: 0 }, this.gap = { q: 0, k: 0 }, this.px = 1;
    this.listen();
  }
  open() {
    this.view = this.run.views[clamp(state.v, this.run.views.length)];
    this.rows = this.view.queries.length, this.columns = this.view.keys.length;
    this.lists();
    this.draw();
  }
  draw() {
    this.axes();
    this.overview();
    this.choose();
  }
  named(l, h) {
    return `layer ${this.view.layers[l]}, ` + (h < this.view.heads.length ? `head ${this.view.heads[h]}` : 'mean of the heads');
  }
  // What the head is worth to the last prediction, where that was measured.
  worth(l, h) {
    const { ablation } = this.run, layer = this.view.layers[l], head = this.view.heads[h];
    if (!ablation || state.v || h >= this.view.heads.length) return '';
    return `without it log p(“${show(ablation.target)}”) ${signed(ablation.change[layer][head], 3)}`;
  }

  overview() {
    const { view } = this, grid = this.part('grid'), heads = view.heads.length;
    const thumb = Math.max(16, Math.min(52, Math.min(500, innerWidth - 90) / (heads + 1) | 0));
    grid.style.setProperty('--thumb', thumb + 'px');
    grid.style.gridTemplateColumns = `auto repeat(${heads + 1}, ${thumb}px)`;
    const dots = Math.floor((thumb - 2) * devicePixelRatio);   // its border is a pixel wide
    const label = text => { const s = el('span'); s.textContent = text; return s; };
    const cells = [label(''), ...view.heads.map(label), label('ø')];
    for (let l = 0; l < view.layers.length; l++) {
      cells.push(label(view.layers[l]));
      const squares = view.heads.map((_, h) => shrink(weightsOf(view, l, h), this.rows, this.columns, dots));
      const [first, ...sizes] = squares[0];
      squares.push([first.map((_, i) => squares.reduce((sum, square) => sum + square[0][i], 0) / heads), ...sizes]);
      for (let h = 0; h <= heads; h++) cells.push(this.square(l, h, squares[h]));
    }
    grid.replaceChildren(...cells);
    const few = (name, list, all) => list.length < all ? `Only ${name} ${list.join(', ')} of ${all}. ` : '';
    this.part('part').textContent = few('layers', view.layers, view.of[0]) + few('heads', view.heads, view.of[1])
      + (this.run.ablation && !state.v ? 'The bar below a square: blue where the model needs the head for its last prediction, orange where it is better off without. ' : '')
      + (view.rows.length ? `Only ${view.rows.length} of the queries. ` : '')
      + (view.bits > 8 ? '' : 'Weights are kept in 8 bits and off by up to 0.004; fewer layers, heads or tokens have 16.');
  }
  square(l, h, weights) {
    const button = el('button'), canvas = el('canvas'), worth = this.worth(l, h);
    button.dataset.at = l + ',' + h;
    button.ariaLabel = button.title = this.named(l, h) + (worth && ': ' + worth);
    button.onclick = e => e.shiftKey ? more(h) : pick(l, h);
    paint(canvas, weights);
    button.append(canvas);
    if (worth) {
      const { change } = this.run.ablation, x = change[this.view.layers[l]][this.view.heads[h]];
      const most = Math.max(1e-6, ...change.flat().map(Math.abs)), bar = el('b');
      bar.style.background = `rgb(var(${x < 0 ? '--ink' : '--ink2'}))`;
      bar.style.opacity = Math.sqrt(Math.abs(x) / most).toFixed(2);
      button.append(bar);
    }
    button.classList.toggle('gone', (this.run.off || []).includes(`${this.view.layers[l]}.${this.view.heads[h]}`));
    return button;
  }

  choose() {
    const { l, h } = state;
    for (const b of this.box.querySelectorAll('.grid button')) {
      const [layer, head] = b.dataset.at.split(',').map(Number), on = layer === l && head === h;
      b.ariaPressed = on, b.tabIndex = on ? 0 : -1;
      const other = layer === l ? state.more.indexOf(head) : -1;
      b.style.outline = other < 0 ? '' : `2px dashed ${COLOURS[(other + 1) % COLOURS.length]}`;
    }
    this.w = weightsOf(this.view, l, h);
    this.others = state.more.filter(m => m !== h).map(m => weightsOf(this.view, l, m));
    paint(this.matrix, [this.w, this.rows, this.columns]);
    const scale = this.box.querySelector('.scale canvas');
    paint(scale, [Float32Array.from({ length: 64 }, (_, i) => i / 63), 1, 64]);
    this.point();
  }

  // The matrix with its tokens; where they are closer than lines of text, some of them.
  label(list, n) { return cut(show(list[n]), 14); }
  place(axis, n) {
    const { gap, px } = this;
    return axis === 'q' ? `translate(${gap.q - 6},${gap.k + (n + .5) * px + 4})`
      : `translate(${gap.q + (n + .5) * px + 4},${gap.k - 6}) rotate(-90)`;
  }
  sides() { return [['q', this.view.queries], ['k', this.view.keys]]; }
  axes() {
    const { rows, columns, gap } = this, most = Math.max(rows, columns), svg = this.part('axes');
    const room = Math.min(innerWidth - 190, most > 160 ? 1100 : 500);
    this.px = Math.max(1, Math.min(22, room / most | 0));
    const pen = el('canvas').getContext('2d'), parts = [];
    pen.font = '11px ui-monospace, monospace';
    for (const [axis, list] of this.sides())
      gap[axis] = 12 + Math.ceil(Math.max(...list.map((_, n) => pen.measureText(this.label(list, n)).width)));
    for (const [axis, list] of this.sides()) {
      for (let n = 0; n < list.length; n += Math.ceil(12 / this.px)) parts.push(this.mark(axis, list, n));
      parts.push(this.mark(axis, list));
    }
    svg.setAttribute('width', gap.q + columns * this.px);
    svg.setAttribute('height', gap.k + rows * this.px);
    svg.replaceChildren(...parts);
    this.matrix.style.width = columns * this.px + 'px', this.matrix.style.height = rows * this.px + 'px';
  }
  mark(axis, list, n) {
    const text = document.createElementNS('http://www.w3.org/2000/svg', 'text');
    if (axis === 'q') text.setAttribute('text-anchor', 'end');
    if (n === undefined) text.classList.add('here', 'at' + axis);
    else text.textContent = this.label(list, n), text.setAttribute('transform', this.place(axis, n));
    return text;
  }
  here(q, k) {
    for (const [axis, list, n] of [['q', this.view.queries, q], ['k', this.view.keys, k]]) {
      const text = this.part('at' + axis), shown = n !== undefined && n < list.length;
      text.textContent = shown ? this.label(list, n) : '';
      text.setAttribute('transform', this.place(axis, shown ? n : 0));
    }
  }

  lists() {
    for (const [id, side] of [['queries', 'q'], ['keys', 'k']]) {
      const list = this.part(id);
      list.replaceChildren(...this.view[id].map((token, i) => {
        const item = el('li'), number = el('i');
        const text = cut(show(token), innerWidth < 600 ? 10 : 24);
        if (this.view.special.includes(side === 'q' ? placeOf(this.view, i) : i)) item.classList.add('special');
        item.append(...(side === 'q' ? [number, text] : [text, ' ', number]));
        item.tabIndex = i ? -1 : 0;
        item.onmouseenter = () => state.kept || point(side, i);
        item.onfocus = () => point(side, i);
        item.onclick = () => { state.kept = !(state.kept && state.side === side && state.i === i); point(side, i); };
        return item;
      }));
      list.onmouseleave = () => state.kept || point('');
      list.onkeydown = e => {
        const items = list.children, step = { ArrowUp: -1, ArrowDown: 1 }[e.key];
        if (step) { e.preventDefault(); items[clamp([...items].indexOf(document.activeElement) + step, items.length)].focus(); }
        if (e.key === 'Enter') document.activeElement.click();
      };
    }
  }

  // Shows the lines of one query or key, or of all.
  point() {
    const { side, i } = state, { rows, columns } = this, parts = [];
    const shown = (q, k) => !side || (side === 'q' ? q : k) === i, least = side ? state.least / 10 : state.least;
    [this.w, ...this.others].forEach((w, n) => {
      for (let q = 0; q < rows; q++) for (let k = 0; k < columns; k++) {
        const weight = w[q * columns + k];
        if (weight >= least && weight > 0 && shown(q, k))
          parts.push(`<line x1="2" y1="${q * 20 + 10 + 2 * n}" x2="168" y2="${k * 20 + 10 + 2 * n}"`
            + ` style="stroke:${COLOURS[n % COLOURS.length]}" opacity="${(side ? Math.sqrt(weight) : weight).toFixed(3)}"/>`);
      }
    });
    const height = Math.max(rows, columns) * 20;
    this.svg.style.height = height + 'px';
    this.svg.setAttribute('viewBox', `0 0 170 ${height}`);
    this.svg.innerHTML = parts.join('');
    for (const [id, own] of [['queries', 'q'], ['keys', 'k']]) [...this.part(id).children].forEach((item, n) => {
      const other = side && side !== own, weight = other ? this.w[side === 'q' ? i * columns + n : n * columns + i] || 0 : 0;
      item.style.background = other ? `rgba(var(--ink), ${(weight * 0.75).toFixed(3)})` : '';
      item.querySelector('i').textContent = weight >= 0.005 ? weight.toFixed(2) : '';
      item.classList.toggle('on', side === own && n === i);
    });
    this.here(side === 'q' ? i : undefined, side === 'k' ? i : undefined);
    const query = clamp(side === 'q' ? i : rows - 1, rows);
    this.neurons(query);
    this.lens(query);
    this.attributions();
  }
  name(list, n) { return `“${show(list[n])}” (${list === this.view.queries ? placeOf(this.view, n) : n})`; }
  digits() { return this.view.bits > 8 ? 4 : 3; }
  // The read-out of a cell, of a token, of the head.
  words(q, k) {
    const { side, i } = state, { view, columns } = this;
    if (q !== undefined) return `${this.name(view.queries, q)} gives ${this.name(view.keys, k)} ${this.w[q * columns + k].toFixed(this.digits())}`;
    const query = side === 'q', list = query ? view.queries : view.keys, others = query ? view.keys : view.queries;
    if (!side || i >= list.length) {
      const worth = this.worth(state.l, state.h);
      return (worth && worth[0].toUpperCase() + worth.slice(1) + '. ') + `Lines: weights of ${state.least} and more; of one token also smaller ones. `
        + 'Point at a token or a cell, or tab to one. Click or Enter keeps it, Esc lets go.';
    }
    const top = others.map((_, n) => [this.w[query ? i * columns + n : n * columns + i], n])
      .sort((a, b) => b[0] - a[0]).slice(0, 5).filter(x => x[0] >= 0.001);
    return this.name(list, i) + (query ? ' looks at ' : ' is seen by ')
      + (top.map(([x, n]) => `${this.name(others, n)} ${x.toFixed(3)}`).join(', ') || 'nothing');
  }

  neurons(query) {
    const { view } = this, section = this.part('neurons'), known = view.neurons && state.h < view.heads.length;
    section.hidden = !known;
    if (!known) return;
    const { q, k, size } = vectorsOf(view, state.l, state.h), own = q(query);
    const keys = [...Array(view.causal ? placeOf(view, query) + 1 : this.columns).keys()]
      .map(n => [this.w[query * this.columns + n], n]).sort((a, b) => b[0] - a[0]).slice(0, 24).sort((a, b) => a[1] - b[1]);
    section.querySelector('.about').textContent = `${this.name(view.queries, query)} and the keys it looks at most: the key's ${size} numbers, their products with the query's, the sum.`;
    const rows = keys.map(([weight, n]) => [n, k(n), weight]).map(([n, key, weight]) => [n, key, key.map((x, d) => x * own[d]), weight]);
    const most = part => Math.max(...rows.map(row => Math.max(...row[part].map(Math.abs))));
    const mostKey = most(1), mostProduct = most(2);
    section.querySelector('tbody').replaceChildren(...rows.map(([n, key, product, weight]) => {
      const row = el('tr'), cells = Array.from({ length: 5 }, () => row.appendChild(el('td')));
      cells[0].textContent = cut(show(view.keys[n]), 14);
      for (const [at, values, scale] of [[1, key, mostKey], [2, product, mostProduct]]) {
        const canvas = el('canvas');
        canvas.style.width = Math.min(260, size * Math.max(1, Math.min(6, 240 / size | 0))) + 'px';
        paintSigned(canvas, values, scale);
        cells[at].append(canvas);
      }
      cells[3].textContent = (product.reduce((a, b) => a + b, 0) * view.neurons.scale).toFixed(2);
      cells[4].textContent = weight.toFixed(3);
      return row;
    }));
  }
  lens(query) {
    const { lens } = this.run, section = this.part('lens');
    section.hidden = !lens || state.v > 0;
    if (section.hidden) return;
    this.box.querySelector('.lens h2').textContent = this.view.causal ? 'What each layer would say next' : 'What the model would put there';
    section.querySelector('.about').textContent = this.view.causal ? `After ${this.name(this.view.queries, query)}, as if the model ended there (the logit lens):`
      : `In the place of ${this.name(this.view.queries, query)}:`;
    section.querySelector('tbody').replaceChildren(...lens.map((tokens, l) => {
      const row = el('tr'), head = row.appendChild(el('th'));
      head.textContent = l + 1 < lens.length ? `before layer ${l}` : 'the model';
      for (const [token, p] of tokens[placeOf(this.view, query)]) {
        const cell = row.appendChild(el('td'));
        cell.textContent = `${cut(show(token), 12)} ${p.toFixed(2)}`;
        cell.style.background = `rgba(var(--ink), ${(p * 0.6).toFixed(3)})`;
      }
      return row;
    }));
  }
  attributions() {
    const { attributions } = this.run, section = this.part('attributions');
    section.hidden = !attributions || state.v > 0;
    if (section.hidden || section.dataset.done) return;
    section.dataset.done = 1;
    if (!attributions.addUp) {
      const sum = attributions.values.reduce((a, x) => a + x, 0);
      section.querySelector('.about').textContent = `Integrated gradients do not settle between the mean embedding and this text: the shares add up to ${sum.toFixed(2)}, the log-probability of “${show(attributions.target)}” grows by ${attributions.whole.toFixed(2)}. They are not shown.`;
      return;
    }
    const most = Math.max(1e-9, ...attributions.values.map(Math.abs));
    section.querySelector('.about').textContent = `“${show(attributions.target)}” next, p ${attributions.probability.toFixed(3)}: each token's share of its log-probability, beside the mean embedding (integrated gradients). Blue speaks for it, orange against.`;
    section.querySelector('.tokens').replaceChildren(...attributions.values.map((x, n) => {
      const token = el('span');
      token.textContent = show(this.view.keys[n]);
      token.title = signed(x, 3);
      token.style.background = `rgba(var(${x < 0 ? '--ink2' : '--ink'}), ${(0.8 * Math.abs(x) / most).toFixed(3)})`;
      return token;
    }));
  }

  listen() {
    const { matrix, spot } = this, tip = this.part('tip');
    const read = () => { say(this.words(spot.q, spot.k)); this.here(spot.q, spot.k); };
    matrix.onmousemove = e => {
      const box = matrix.getBoundingClientRect(), part = (x, from, size, n) => clamp((x - from) / size * n | 0, n);
      spot.q = part(e.clientY, box.top, box.height, this.rows);
      spot.k = part(e.clientX, box.left, box.width, this.columns);
      if (!state.kept) point('q', spot.q);
      read();
      tip.hidden = false, tip.textContent = `${show(this.view.queries[spot.q])} → ${show(this.view.keys[spot.k])} ${this.w[spot.q * this.columns + spot.k].toFixed(this.digits())}`;
      const plot = this.part('plot').getBoundingClientRect();
      tip.style.left = Math.max(0, Math.min(e.clientX - plot.left + 14, plot.width - tip.offsetWidth)) + 'px';
      tip.style.top = Math.max(0, e.clientY - plot.top - 30) + 'px';
    };
    matrix.onmouseleave = () => { tip.hidden = true; state.kept ? point() : point(''); };
    matrix.onclick = () => { state.kept = !state.kept; point('q', spot.q); edge(this, spot.q, spot.k); };
    matrix.onkeydown = e => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
      if (e.key === 'Enter') matrix.onclick();
      if (!move) return;
      e.preventDefault();
      spot.q = clamp(spot.q + move[0], this.rows), spot.k = clamp(spot.k + move[1], this.columns);
      point('q', spot.q);
      read();
    };
    this.part('grid').onkeydown = e => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
      if (e.key === ' ') { e.preventDefault(); more(+document.activeElement.dataset.at.split(',')[1]); }
      if (!move) return;
      e.preventDefault();
      pick(clamp(state.l + move[0], this.view.layers.length), clamp(state.h + move[1], this.view.heads.length + 1));
      this.box.querySelector(`.grid [data-at="${state.l},${state.h}"]`).focus();
    };
  }

  // The matrix as it is seen, with its tokens.
  picture() {
    const { gap, px, rows, columns } = this, width = gap.q + columns * px, height = gap.k + rows * px;
    const ink = colour('--ink').join(), text = getComputedStyle(root).getPropertyValue('--text');
    const safe = t => t.replace(/[&<>"]/g, c => `&#${c.charCodeAt()};`), parts = [];
    for (const [axis, list] of this.sides())
      for (let n = 0; n < list.length; n += Math.ceil(12 / px))
        parts.push(`<text transform="${this.place(axis, n)}"${axis === 'q' ? ' text-anchor="end"' : ''}>${safe(this.label(list, n))}</text>`);
    this.w.forEach((x, n) => x > 1e-4 && parts.push(`<rect x="${gap.q + n % columns * px}" y="${gap.k + (n / columns | 0) * px}" width="${px}" height="${px}" fill="rgb(${ink})" fill-opacity="${Math.sqrt(x).toFixed(3)}"/>`));
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" font-family="monospace" font-size="11" fill="${text}">`
      + `<title>${safe(this.run.title || '')} ${safe(this.view.name)}, ${this.named(state.l, state.h)}</title>${parts.join('')}</svg>`;
  }
}

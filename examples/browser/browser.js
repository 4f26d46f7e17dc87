// The page without a server: a worker answers the laboratory, and there are digits to train on.
const unpacked = async id => new Response(new Blob([bytes({ id })]).stream().pipeThrough(new DecompressionStream('gzip')));
const worker = new Worker(URL.createObjectURL(new Blob([$('worker').textContent], { type: 'text/javascript' })));
const waiting = new Map(), digits = { on: false, history: [], step: 0, training: false };
worker.onmessage = ({ data: { id, answer } }) => { waiting.get(id)(answer); waiting.delete(id); };
function send(message) {
  return new Promise(done => { const id = Math.random(); waiting.set(id, done); worker.postMessage({ id, ...message }); });
}
const started = (async () => {
  const [wasm, data] = await Promise.all(['wasm', 'pack'].map(unpacked));
  await send({ wasm: await wasm.arrayBuffer() });
  const { weights, lines } = await data.json();
  digits.lines = lines.trimEnd().split('\n');
  await send({ request: { do: 'set', weights } });
  await send({ request: { do: 'digits', lines } });
})();
const told = async request => { await started; return send({ request }); };

window.askModel = request => told({ do: digits.on ? 'digit' : 'text', ...request });
const said = { false: undefined, true: '0' };   // the texts of the two models
function swap() {
  said[digits.on] = $('text').value;
  digits.on = $('model').value === 'digits';
  $('text').value = said[digits.on] ?? page.lab.text;
  $('digits').hidden = !digits.on, $('repeater').hidden = digits.on, page.lab.says = digits.on ? 'it is a' : 'next';
  changes = { off: [], cut: [] };
  return rerun();
}

const STEPS = 400, EVERY = 5;
async function train() {
  digits.training = !digits.training;
  $('train').textContent = digits.training ? 'Pause' : 'Train';
  while (digits.training && digits.step < STEPS) {
    const began = performance.now(), { loss, accuracy, error } = await told({ do: 'train_digits', steps: EVERY });
    if (error) { $('trained').textContent = error; break; }
    digits.step += EVERY, digits.seconds = (digits.seconds || 0) + (performance.now() - began) / 1000;
    digits.history.push([digits.step, loss, accuracy]);
    curve();
    if (digits.on && digits.step % 25 === 0) await rerun();
  }
  digits.training = false;
  $('train').textContent = 'Train', $('train').disabled = digits.step >= STEPS;
}
function curve() {
  const most = Math.max(...digits.history.map(([, loss]) => loss)), [step, loss, accuracy] = digits.history.at(-1);
  const line = (part, scale) => 'M' + digits.history.map(x => `${x[0] / STEPS * 400},${(105 - 100 * x[part] / scale).toFixed(1)}`).join('L');
  $('curve').innerHTML = `<path d="${line(1, most)}" stroke="rgb(var(--ink2))"/><path d="${line(2, 1)}" stroke="rgb(var(--ink))"/>`
    + '<text x="396" y="60" text-anchor="end">accuracy (blue), loss (orange)</text>';
  $('steps').value = step;
  $('trained').textContent = `step ${step}: loss ${loss.toFixed(3)}, ${(100 * accuracy).toFixed(1)} % of 300 test images right, ${digits.seconds.toFixed(0)} s`;
}

// The image, and where its class token looks in the chosen head.
function pictures() {
  if (!digits.on || !digits.lines) return;
  const number = clamp(parseInt($('text').value) || 0, 300), line = digits.lines[digits.lines.length - 300 + number];
  paint($('image'), [Float32Array.from(line.slice(1), c => ((c.charCodeAt() - 97) / 16) ** 2), 8, 8]);
  const [panel] = panels, w = panel.w.subarray(1, 17), most = Math.max(...w);
  paint($('looked'), [w.map(x => x / most), 4, 4]);
}
document.addEventListener('choose', pictures);
$('model').onchange = swap, $('train').onclick = train;

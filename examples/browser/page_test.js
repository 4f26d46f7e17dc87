// Opens the page in headless Chromium, edits the text, switches a head off, trains on the digits, takes pictures.
//   node page_test.js lab.html [PICTURES]
const { spawn } = require('child_process'), fs = require('fs'), os = require('os'), path = require('path');
const [, , file, pictures] = process.argv;
const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'browser-lab-'));
const browser = spawn('chromium', ['--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars', '--remote-debugging-pipe',
  '--user-data-dir=' + profile, 'about:blank'], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
const waiting = new Map(), problems = [];
let session, number = 0, rest = '';
browser.stdio[4].on('data', data => {
  const parts = (rest + data).split('\0');
  rest = parts.pop();
  for (const { id, result, error, method, params } of parts.map(part => JSON.parse(part))) {
    if (id) waiting.get(id)(error ? Promise.reject(Error(error.message)) : result);
    if (method === 'Runtime.exceptionThrown') problems.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    if (method === 'Log.entryAdded' && params.entry.level === 'error') problems.push(params.entry.text);
  }
});
const send = (method, params = {}) => new Promise(done => {
  waiting.set(++number, done);
  browser.stdio[3].write(JSON.stringify({ id: number, method, params, sessionId: session }) + '\0');
});
async function run(expression) {
  const { result, exceptionDetails } = await send('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
  if (exceptionDetails) throw Error(expression + ': ' + (exceptionDetails.exception?.description ?? exceptionDetails.text));
  return result.value;
}
async function until(what, expression, seconds) {
  for (const end = Date.now() + seconds * 1000; Date.now() < end; await new Promise(done => setTimeout(done, 200)))
    if (await run(expression)) return;
  throw Error(`${what}: not within ${seconds} s; the page says ${await run("$('changes').textContent + ' / ' + $('trained').textContent")}`);
}
const check = (what, right, found) => { if (!right) throw Error(`${what}: found ${found}`); console.log(`ok: ${what} (${found})`); };
const after = async action => {   // waits for the answer to what `action` asks
  const before = await run('+(root.dataset.runs || 0)');
  await run(action);
  await until(action, `+(root.dataset.runs || 0) > ${before}`, 60);
};
async function picture(name) {
  if (!pictures) return;
  for (const [width, theme] of [[1300, 'light'], [1300, 'dark'], [390, 'light'], [390, 'dark']]) {
    await send('Emulation.setDeviceMetricsOverride', { width, height: 1100, deviceScaleFactor: 1, mobile: false });
    await run(`if (root.dataset.theme !== '${theme}') $('theme').click()`);
    await new Promise(done => setTimeout(done, 300));
    const { data } = await send('Page.captureScreenshot', { format: 'png' });
    fs.writeFileSync(path.join(pictures, `${name}-${width}-${theme}.png`), Buffer.from(data, 'base64'));
    check(`${name} at ${width}: nothing wider than the page`, await run('document.documentElement.scrollWidth <= innerWidth'), await run('document.documentElement.scrollWidth'));
  }
  await send('Emulation.setDeviceMetricsOverride', { width: 1300, height: 1100, deviceScaleFactor: 1, mobile: false });
  await new Promise(done => setTimeout(done, 300));   // the page draws itself anew, and what it said last goes
}

(async () => {
  const { targetInfos } = await send('Target.getTargets');
  ({ sessionId: session } = await send('Target.attachToTarget', { targetId: targetInfos.find(t => t.type === 'page').targetId, flatten: true }));
  for (const domain of ['Runtime', 'Log', 'Page']) await send(domain + '.enable');
  await send('Page.navigate', { url: 'file://' + path.resolve(file) });
  await until('the page', "typeof root !== 'undefined' && !!root.dataset.ready", 60);
  const next = () => run('page.runs[0].next[0]');

  await after("$('text').value = 'one two. one tw'; $('run').click()");
  let [token, p] = await next();
  check('the text is continued', token === 'o', `${token} ${p}`);
  await after("pick(1, 0); $('off').click()");
  check('a head is off, beside the model as it is', await run("page.runs.length === 2 && page.runs[0].off[0] === '1.0'"), await run('page.runs[0].next[0].join()'));
  await picture('text');
  await after("$('text').value = 'Ä'; $('run').click()");
  check('an unknown character is refused by name', /knows the characters/.test(await run("$('changes').textContent")), await run("$('changes').textContent"));

  await after("$('text').value = 'one'; $('model').value = 'digits'; $('model').onchange()");
  const began = Date.now();
  await run("$('train').click()");
  await until('training', 'digits.step >= 400 && !digits.training', 300);
  const seconds = (Date.now() - began) / 1000, accuracy = await run('digits.history.at(-1)[2]');
  check('digits are learned', accuracy > 0.9, `${(100 * accuracy).toFixed(1)} % in ${seconds.toFixed(0)} s`);
  await picture('digits');
  check('no errors in the page', problems.length === 0, problems.join('; ') || 'none');
})().catch(error => { console.error('browser_lab:', error.message, problems.join('; ')); process.exitCode = 1; }).finally(async () => {
  browser.kill();
  browser.on('exit', () => fs.rmSync(profile, { recursive: true, force: true, maxRetries: 5 }));
});

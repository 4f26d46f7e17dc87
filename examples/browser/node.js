// The lab under Node: a request per line, an answer per line, as the native program.
//   node node.js browser_lab.js <requests
const fs = require('fs'), path = require('path'), [, , script] = process.argv;
const multihead = require(path.resolve(script));
(async () => {
  const lab = await multihead({ wasmBinary: fs.readFileSync(script.replace(/js$/, 'wasm')) });
  for (const line of fs.readFileSync(0, 'utf8').split('\n').filter(Boolean)) {
    const size = lab.lengthBytesUTF8(line) + 1, at = lab._malloc(size);
    lab.stringToUTF8(line, at, size);
    console.log(lab.UTF8ToString(lab._lab_answer(at)));
    lab._free(at);
  }
})();

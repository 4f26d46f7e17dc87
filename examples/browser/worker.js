// The worker of the page: the lab's requests, one after the other. The page sends the module first.
let lab;
function answer(request) {
  const text = JSON.stringify(request), size = lab.lengthBytesUTF8(text) + 1, at = lab._malloc(size);
  lab.stringToUTF8(text, at, size);
  const answer = JSON.parse(lab.UTF8ToString(lab._lab_answer(at)));
  lab._free(at);
  return answer;
}
onmessage = async ({ data: { id, wasm, request } }) => {
  if (wasm) lab = await multihead({ wasmBinary: wasm });
  postMessage({ id, answer: wasm ? {} : answer(request) });
};

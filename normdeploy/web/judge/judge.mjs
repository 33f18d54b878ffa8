// Sessions of onnxruntime-web for normdeploy.web: tensors come and go over the server (normdeploy/web/wire.py says how).

import * as ort from "./runtime/ort.wasm.bundle.min.mjs";
import { VIEWS } from "./views.mjs";

ort.env.logLevel = "fatal"; // what fails is thrown; its text would stand on the console a second time
ort.env.wasm.wasmPaths = { wasm: new URL("./runtime/ort-wasm-simd-threaded.wasm", import.meta.url).href };
ort.env.wasm.numThreads = Number(new URL(location.href).searchParams.get("threads") ?? 1);

const STEP = 8;
const padded = (size) => Math.ceil(size / STEP) * STEP;
const sessions = new Map();
let count = 0;

function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const entries = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const start = padded(4 + length);
  const feeds = {};
  for (const { name, type, shape, offset, bytes } of entries) {
    const View = VIEWS[type];
    feeds[name] = new ort.Tensor(type, new View(buffer, start + offset, bytes / View.BYTES_PER_ELEMENT), shape);
  }
  return feeds;
}

function pack(names, results) {
  let offset = 0;
  const parts = [];
  const entries = names.map((name) => {
    const { type, dims, data } = results[name];
    if (!(type in VIEWS)) throw new Error(`output ${name} is of type ${type}, which is not handed over`);
    const entry = { name, type, shape: dims, offset, bytes: data.byteLength };
    parts.push(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    parts.push(new Uint8Array(padded(data.byteLength) - data.byteLength));
    offset += padded(data.byteLength);
    return entry;
  });
  const header = new TextEncoder().encode(JSON.stringify(entries));
  const length = new DataView(new ArrayBuffer(4));
  length.setUint32(0, header.length, true);
  return new Blob([length, header, new Uint8Array(padded(4 + header.length) - 4 - header.length), ...parts]);
}

// An error of the runtime is a message; C++ without one throws a number
function said(error) {
  if (typeof error === "number") return `it threw the C++ exception ${error}, which has no message`;
  return String(error?.message ?? error);
}

async function answered(work) {
  try {
    return { found: await work() };
  } catch (error) {
    return { error: said(error) };
  }
}

globalThis.judge = {
  open: (model, options) =>
    answered(async () => {
      const session = await ort.InferenceSession.create(model, options);
      sessions.set(++count, session);
      return { id: count, inputs: session.inputNames, outputs: session.outputNames };
    }),

  run: (id, feeds, names, target) =>
    answered(async () => {
      const tensors = unpack(await (await fetch(feeds)).arrayBuffer());
      const results = await sessions.get(id).run(tensors, names);
      const sent = await fetch(target, { method: "POST", body: pack(names, results) });
      if (!sent.ok) throw new Error(`the results were not taken: ${sent.status}`);
      for (const tensor of Object.values(results)) tensor.dispose();
    }),

  release: (ids) =>
    answered(async () => {
      for (const id of ids) {
        await sessions.get(id)?.release();
        sessions.delete(id);
      }
    }),
};

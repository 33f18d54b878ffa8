// The page of a packaged model: its inputs as a form, its outputs as scores, pictures or numbers. What it needs to know
// of the model stands in model.json. `normdeploy.last`, in the console, holds what was fed and found the last time.

import * as ort from "./runtime/ort.wasm.bundle.min.mjs";
import { makeInput } from "./inputs.mjs";
import { readNumpy } from "./numpy.mjs";
import { showOutputs } from "./outputs.mjs";

ort.env.logLevel = "error";
ort.env.wasm.wasmPaths = { wasm: new URL("./runtime/ort-wasm-simd-threaded.wasm", import.meta.url).href };

const at = (id) => document.getElementById(id);
const state = (text) => (at("state").textContent = text);
globalThis.normdeploy = { last: null, runs: 0 };

function trouble(error) {
  const text = error ? String(error.message ?? error) : "";
  at("trouble").textContent = text;
  at("trouble").hidden = !text;
}

// Run work, one piece after the other, and say what goes wrong
let queue = Promise.resolve();
function inTurn(work) {
  queue = queue.then(async () => {
    trouble();
    try {
      await work();
    } catch (error) {
      trouble(error);
    }
  });
  return queue;
}

async function run(session, feeds) {
  const tensors = {};
  for (const [name, { type, data, shape }] of Object.entries(feeds)) tensors[name] = new ort.Tensor(type, data, shape);
  const start = performance.now();
  const results = await session.run(tensors);
  return { results, milliseconds: performance.now() - start };
}

async function fetched(place) {
  const answer = await fetch(place);
  if (!answer.ok) throw new Error(`${place} cannot be read (${answer.status}): is the whole folder there?`);
  return answer;
}

function tell(model) {
  const facts = { ...model.facts, "threads here": ort.env.wasm.numThreads || 1, "onnxruntime-web": ort.env.versions.web };
  for (const [name, value] of Object.entries(facts)) {
    const [term, text] = [document.createElement("dt"), document.createElement("dd")];
    [term.textContent, text.textContent] = [name, value];
    at("facts").querySelector("dl").append(term, text);
  }
  at("facts").hidden = false;
}

async function compare(session, model) {
  const read = async (place) => readNumpy(await (await fetched(place)).arrayBuffer());
  const feeds = {};
  for (const { name, sample } of model.inputs) feeds[name] = await read(sample);
  const { results } = await run(session, feeds);
  let worst = 0;
  for (const { name, expected } of model.outputs) {
    const wanted = await read(expected);
    const found = results[name];
    if (String(found.dims) !== String(wanted.shape)) throw new Error(`${name} has shape [${found.dims}], expected [${wanted.shape}]`);
    let [off, size] = [0, 0];
    wanted.data.forEach((value, i) => {
      const [a, b] = [Number(value), Number(found.data[i])];
      if (Object.is(a, b) || (Number.isNaN(a) && Number.isNaN(b))) return;
      off = Math.max(off, Math.abs(a - b));
    });
    for (const value of wanted.data) if (Number.isFinite(Number(value))) size = Math.max(size, Math.abs(Number(value)));
    worst = Math.max(worst, size ? off / size : off);
  }
  const where = model.facts["sample computed by"];
  at("compared").textContent = worst === 0
    ? `On the packaged sample every number is that of ${where}.`
    : `On the packaged sample, numbers differ from those of ${where} by at most ${worst.toExponential(1)} of the largest.`;
}

async function start() {
  const model = await (await fetched("model.json")).json();
  document.title = at("title").textContent = model.title;
  state("Loading the model…");
  const session = await ort.InferenceSession.create(model.model, { executionProviders: ["wasm"], graphOptimizationLevel: "all" });
  const again = () => at("form").requestSubmit();
  const sizes = {};
  const inputs = model.inputs.map((input) => makeInput(input, sizes, again));
  at("inputs").append(...inputs.map((input) => input.element));
  const pictured = model.inputs.some((input) => input.image);

  at("form").addEventListener("submit", (event) => {
    event.preventDefault();
    inTurn(async () => {
      const feeds = {};
      for (const input of inputs) feeds[input.name] = await input.read();
      const { results, milliseconds } = await run(session, feeds);
      globalThis.normdeploy = { last: { feeds, results }, runs: globalThis.normdeploy.runs + 1 };
      const best = showOutputs(at("results"), model, results, { pictured });
      state(`${best ? `${best}. ` : ""}Ran in ${milliseconds < 10 ? milliseconds.toFixed(1) : Math.round(milliseconds)} ms.`);
    });
  });
  at("check").addEventListener("click", () => inTurn(() => compare(session, model)));
  tell(model);
  at("form").hidden = false;
  state(pictured && model.inputs[0].image?.channels === 1 ? "Ready: draw." : "Ready.");
}

start().catch((error) => {
  state("The model cannot be run here.");
  trouble(error);
});

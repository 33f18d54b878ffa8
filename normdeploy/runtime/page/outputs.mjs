// Outputs: scores as bars, pictures as pictures, all as numbers, each to be kept as a .npy file.

import { isFloat, writeNumpy } from "./numpy.mjs";

const FEW = 64;
const BARS = 5;
const MOST_CLASSES = 20000;

function made(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const short = (value) => (typeof value === "bigint" || Number.isInteger(value) ? String(value) : Number(value).toPrecision(4));

// Shares of scores: as they are where they are shares already, else by softmax
function shares(scores) {
  const sum = scores.reduce((total, value) => total + value, 0);
  if (scores.every((value) => value >= 0 && value <= 1) && Math.abs(sum - 1) < 1e-3) return [scores, "share"];
  const most = Math.max(...scores);
  const powers = scores.map((value) => Math.exp(value - most));
  const all = powers.reduce((total, value) => total + value, 0);
  return [powers.map((value) => value / all), "share by softmax"];
}

function bars(scores, labels) {
  const [values, what] = shares(scores);
  const order = [...values.keys()].sort((a, b) => values[b] - values[a]);
  const name = (index) => labels?.[index] ?? String(index);
  const best = made("p", { className: "best", id: "best", textContent: name(order[0]) });
  best.dataset.index = order[0];
  const grid = made("div", { className: "bars" });
  for (const index of order.slice(0, BARS)) {
    const share = `${(100 * values[index]).toFixed(1)} %`;
    const inner = made("i");
    inner.style.width = share.replace(" ", "");
    grid.append(made("span", { textContent: name(index) }), made("span", { className: "bar", ariaHidden: "true" }, inner), made("span", { textContent: share }));
  }
  return [[best, grid, made("p", { className: "soft", textContent: what })], `${name(order[0])}, ${(100 * values[order[0]]).toFixed(1)} %`];
}

function picture(data, dims) {
  const [, channels, H, W] = dims;
  const values = Array.from(data, Number);
  const [low, high] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  const [from, to] = low >= 0 && high <= 1 ? [0, 1] : [low, high];
  const canvas = made("canvas", { className: "seen", width: W, height: H, ariaLabel: "the output as a picture" });
  const pixels = new ImageData(W, H);
  for (let i = 0; i < W * H; i++) {
    for (let c = 0; c < 3; c++) pixels.data[4 * i + c] = (255 * (values[(c % channels) * W * H + i] - from)) / (to - from || 1);
    pixels.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return made("figure", {}, canvas, made("figcaption", { textContent: `${short(from)} black, ${short(to)} white` }));
}

function numbers(data, dims) {
  const last = Math.min(dims.at(-1) ?? 1, FEW) || 1;
  const table = made("table");
  const few = Array.from(data.subarray(0, FEW));
  for (let i = 0; i < few.length; i += last) {
    table.append(made("tr", {}, ...few.slice(i, i + last).map((value) => made("td", { textContent: short(value) }))));
  }
  const rest = data.length > few.length ? `the first ${few.length} of ${data.length} numbers` : `${data.length} numbers`;
  return made("details", {}, made("summary", { textContent: rest }), made("div", { className: "scroll" }, table));
}

let kept = [];

// Show all outputs; return the best class in words, where there is one
export function showOutputs(place, model, results, { pictured }) {
  let best = "";
  kept.forEach((address) => URL.revokeObjectURL(address));
  kept = [];
  place.replaceChildren(...model.outputs.map(({ name }) => {
    const { type, dims, data } = results[name];
    const part = made("div", { className: "output" }, made("h2", {}, name, " ", made("small", { textContent: `${type}[${dims.join(", ")}]` })));
    const scores = isFloat(type) && dims.length === 2 && dims[0] === 1 && dims[1] > 1 && dims[1] <= MOST_CLASSES;
    if (scores && (pictured || model.labels)) {
      const [shown, words] = bars(Array.from(data, Number), model.labels);
      part.append(...shown);
      best ||= words;
    }
    if (pictured && dims.length === 4 && dims[0] === 1 && (dims[1] === 1 || dims[1] === 3)) part.append(picture(data, dims));
    part.append(numbers(data, dims));
    const address = URL.createObjectURL(writeNumpy(type, dims, data));
    kept.push(address);
    part.append(made("p", { className: "soft" }, made("a", { href: address, download: `${name.replace(/[^\w.-]/g, "_")}.npy`, textContent: "Save as .npy" })));
    return part;
  }));
  return best;
}

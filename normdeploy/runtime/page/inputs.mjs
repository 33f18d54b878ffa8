// One fieldset per input: where its numbers come from (a drawing, a picture, a file, made up), and how large it is.

import { count, isFloat, isLong, readNumpy } from "./numpy.mjs";
import { VIEWS } from "./views.mjs";
import { drawingBoard } from "./drawing.mjs";
import { drawn, numbers, shaped } from "./picture.mjs";

function made(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const labelled = (text, control) => made("label", {}, text, control);

// Numbers as the typed array of an input
function typed(type, values) {
  const View = VIEWS[type];
  if (type === "float16" && View === Uint16Array) throw new Error("this browser has no half-precision arrays: give a .npy file");
  return isLong(type) ? View.from(values, (value) => BigInt(Math.round(value))) : View.from(values);
}

function normal() {
  return Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
}

// Show planes as the network gets them
function show(canvas, planes, W, H) {
  [canvas.width, canvas.height] = [W, H];
  const picture = new ImageData(W, H);
  for (let i = 0; i < W * H; i++) {
    for (let c = 0; c < 3; c++) picture.data[4 * i + c] = planes[c % planes.length][i];
    picture.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(picture, 0, 0);
}

async function pixelsOf(file) {
  const picture = await createImageBitmap(file); // upright, as its EXIF orientation says
  const canvas = made("canvas", { width: picture.width, height: picture.height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(picture, 0, 0);
  return context.getImageData(0, 0, picture.width, picture.height);
}

// Return {name, element, read}; `sizes` holds the fields of dynamic sizes, which inputs share by their words
export function makeInput(input, sizes, again) {
  const { name, type, shape, image } = input;
  const element = made("fieldset", {}, made("legend", { textContent: `${name}: ${type}[${shape.map((s) => s ?? "?").join(", ")}]` }));
  const source = made("select", { id: `source-${name}` });
  const options = [...(image?.channels === 1 ? [["draw", "a drawing"]] : []), ...(image ? [["picture", "a picture"]] : []),
    ["random", isFloat(type) ? "random, N(0, 1)" : "random"], ["zeros", "zeros"], ["file", "a .npy file"]];
  source.append(...options.map(([value, text]) => made("option", { value, textContent: text })));
  element.append(labelled("Numbers from", source));

  const panels = {};
  const own = shape.map((size, axis) => {
    if (typeof size === "number") return () => size;
    const word = size ?? `axis ${axis} of ${name}`;
    if (!sizes[word]) {
      sizes[word] = made("input", { type: "number", min: 0, value: input.sizes[axis], id: `size-${word}` });
      if (!(image && axis === 0)) element.append(labelled(word, sizes[word]));
    }
    return () => Number(sizes[word].value);
  });
  const dims = () => own.map((size) => size());

  const file = made("input", { type: "file", accept: ".npy", id: `file-${name}` });
  panels.file = labelled("File", file);
  const below = made("input", { type: "number", min: 1, value: input.below ?? 2, id: `below-${name}` });
  if (!isFloat(type) && type !== "bool") panels.random = labelled("from 0 to below", below);

  let board = null;
  const framed = made("input", { type: "checkbox", checked: true });
  const upload = made("input", { type: "file", accept: "image/*", id: `picture-${name}` });
  const inverted = made("input", { type: "checkbox" });
  const seen = made("canvas", { className: "seen", width: 1, height: 1, ariaLabel: "what the network is given" });
  const what = image && made("figure", { hidden: true }, seen, made("figcaption", { textContent: `what the network is given, ${image.width} × ${image.height}` }));
  if (image?.channels === 1) {
    board = drawingBoard(image, name, again);
    panels.draw = made("div", {}, board.element, labelled(framed, "the ink fills the frame"));
    framed.addEventListener("change", again);
  }
  if (image) {
    panels.picture = made("div", {}, labelled("Picture", upload), labelled(inverted, "inverted"));
    upload.addEventListener("change", () => upload.files.length && again());
    inverted.addEventListener("change", () => upload.files.length && again());
  }
  const area = made("div", { className: "picture" }, ...Object.values(panels), ...(what ? [what] : []));
  element.append(area);
  const choose = () => {
    for (const [key, panel] of Object.entries(panels)) panel.hidden = key !== source.value;
    if (what && source.value !== "draw" && source.value !== "picture") what.hidden = true;
  };
  source.addEventListener("change", choose);
  choose();

  function fromPlanes(planes) {
    show(seen, planes, image.width, image.height);
    what.hidden = false;
    const size = image.channelsFirst ? [1, image.channels, image.height, image.width] : [1, image.height, image.width, image.channels];
    return { type, shape: size, data: typed(type, numbers(planes, image, !isFloat(type))) };
  }

  const readers = {
    draw: () => fromPlanes(drawn(board.pixels(), image, framed.checked)),
    picture: async () => {
      if (!upload.files.length) throw new Error(`choose a picture for ${name}`);
      const planes = shaped(await pixelsOf(upload.files[0]), image);
      return fromPlanes(inverted.checked ? planes.map((plane) => plane.map((value) => 255 - value)) : planes);
    },
    random: () => {
      const top = type === "bool" ? 2 : Number(below.value);
      const values = Array.from({ length: count(dims()) }, () => (isFloat(type) ? normal() : Math.floor(Math.random() * top)));
      return { type, shape: dims(), data: typed(type, values) };
    },
    zeros: () => ({ type, shape: dims(), data: new VIEWS[type](count(dims())) }),
    file: async () => {
      if (!file.files.length) throw new Error(`choose a .npy file for ${name}`);
      const found = readNumpy(await file.files[0].arrayBuffer());
      if (found.type !== type) throw new Error(`${file.files[0].name} holds ${found.type}, and ${name} takes ${type}`);
      return found;
    },
  };
  return { name, element, read: async () => readers[source.value]() };
}

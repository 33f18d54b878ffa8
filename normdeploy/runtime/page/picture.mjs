// Pictures to numbers: resampled to the model's size as Pillow does it, so that the page and `normdeploy predict` give
// the network the same; a drawing by the area that its ink covers.

// Each: how far it reaches, and its weight at a distance
const FILTERS = {
  box: [0.5, (x) => (x > -0.5 && x <= 0.5 ? 1 : 0)],
  bilinear: [1, (x) => Math.max(1 - Math.abs(x), 0)],
  bicubic: [2, (x) => {
    const a = -0.5, t = Math.abs(x);
    if (t < 1) return ((a + 2) * t - (a + 3)) * t * t + 1;
    return t < 2 ? (((t - 5) * t + 8) * t - 4) * a : 0;
  }],
  lanczos: [3, (x) => (Math.abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0)],
};
const sinc = (x) => (x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI));

// Weights of one axis: for each of `size` results, where it starts in the source and the weights from there
function weights(name, from, to, source, size) {
  const scale = (to - from) / size;
  if (name === "nearest") {
    return Array.from({ length: size }, (_, i) => [Math.min(Math.floor(from + (i + 0.5) * scale), source - 1), [1]]);
  }
  const [reach, weight] = FILTERS[name];
  const stretch = Math.max(scale, 1);
  return Array.from({ length: size }, (_, i) => {
    const center = from + (i + 0.5) * scale;
    const first = Math.max(Math.floor(center - reach * stretch + 0.5), 0);
    const last = Math.min(Math.floor(center + reach * stretch + 0.5), source);
    const raw = Array.from({ length: last - first }, (_, k) => weight((first + k - center + 0.5) / stretch));
    const sum = raw.reduce((total, value) => total + value, 0);
    return [first, sum ? raw.map((value) => value / sum) : raw];
  });
}

// Resample planes [C][height * width] from a box {x0, y0, x1, y1} to [C][H * W]; values are rounded and kept in 0..255
// after each axis where `whole`, as eight-bit pictures are
export function resample(planes, width, height, box, W, H, filter, whole = true) {
  const across = weights(filter, box.x0, box.x1, width, W);
  const down = weights(filter, box.y0, box.y1, height, H);
  const kept = whole ? (value) => Math.min(Math.max(Math.floor(value + 0.5), 0), 255) : (value) => value;
  return planes.map((plane) => {
    const narrow = new Float64Array(height * W);
    for (let y = 0; y < height; y++) {
      across.forEach(([first, own], x) => {
        narrow[y * W + x] = kept(own.reduce((sum, w, k) => sum + w * plane[y * width + first + k], 0));
      });
    }
    const result = new Float64Array(H * W);
    down.forEach(([first, own], y) => {
      for (let x = 0; x < W; x++) {
        result[y * W + x] = kept(own.reduce((sum, w, k) => sum + w * narrow[(first + k) * W + x], 0));
      }
    });
    return result;
  });
}

// Planes [C][H * W] in 0..255 from RGBA pixels; grey as Pillow weighs it
export function planesOf({ data, width, height }, channels) {
  const planes = Array.from({ length: channels }, () => new Float64Array(width * height));
  for (let i = 0; i < width * height; i++) {
    const [r, g, b] = [data[4 * i], data[4 * i + 1], data[4 * i + 2]];
    if (channels === 1) planes[0][i] = (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16;
    else [planes[0][i], planes[1][i], planes[2][i]] = [r, g, b];
  }
  return planes;
}

// A picture of any size to planes of the model's, as `resize` says: stretch, crop (fill and cut), fit (all, on black)
export function shaped(pixels, { channels, height: H, width: W, resize, filter }) {
  const planes = planesOf(pixels, channels);
  const { width, height } = pixels;
  const whole = { x0: 0, y0: 0, x1: width, y1: height };
  if (resize === "crop") {
    const own = width / height, wanted = W / H;
    const w = own >= wanted ? wanted * height : width;
    const h = own >= wanted ? height : width / wanted;
    const [x0, y0] = [(width - w) / 2, (height - h) / 2];
    return resample(planes, width, height, { x0, y0, x1: x0 + w, y1: y0 + h }, W, H, filter);
  }
  if (resize === "fit") {
    const scale = Math.min(W / width, H / height);
    const [w, h] = [Math.round(width * scale) || 1, Math.round(height * scale) || 1];
    return placed(resample(planes, width, height, whole, w, h, filter), w, h, W, H);
  }
  return resample(planes, width, height, whole, W, H, filter);
}

function placed(planes, w, h, W, H) {
  const [left, top] = [Math.round((W - w) / 2), Math.round((H - h) / 2)];
  return planes.map((plane) => {
    const result = new Float64Array(W * H);
    for (let y = 0; y < h; y++) for (let x = 0; x < w; x++) result[(top + y) * W + left + x] = plane[y * w + x];
    return result;
  });
}

// A drawing to one plane: what share of each cell its ink covers. Framed, the ink's own box fills the frame.
export function drawn(pixels, { height: H, width: W }, framed) {
  const { width, height } = pixels;
  const [ink] = planesOf(pixels, 1);
  let box = { x0: 0, y0: 0, x1: width, y1: height };
  if (framed) {
    const found = boxOf(ink, width, height);
    if (!found) return [new Float64Array(W * H)];
    box = found;
    const scale = Math.min(W / (box.x1 - box.x0), H / (box.y1 - box.y0));
    const w = Math.min(Math.max(Math.round((box.x1 - box.x0) * scale), 1), W);
    const h = Math.min(Math.max(Math.round((box.y1 - box.y0) * scale), 1), H);
    return placed(resample([ink], width, height, box, w, h, "box", false), w, h, W, H);
  }
  return resample([ink], width, height, box, W, H, "box", false);
}

function boxOf(ink, width, height) {
  let [x0, y0, x1, y1] = [width, height, 0, 0];
  ink.forEach((value, i) => {
    if (value < 32) return;
    const [x, y] = [i % width, Math.floor(i / width)];
    [x0, y0, x1, y1] = [Math.min(x0, x), Math.min(y0, y), Math.max(x1, x + 1), Math.max(y1, y + 1)];
  });
  return x1 > x0 ? { x0, y0, x1, y1 } : null;
}

// Numbers as the model takes them: (pixel / 255 - mean) / std per channel, or the pixels themselves for integers
export function numbers(planes, { mean, std, channelsFirst, height, width }, raw) {
  const channels = planes.length;
  const data = new Float64Array(channels * height * width);
  planes.forEach((plane, c) => {
    const [m, s] = [mean[c % mean.length], std[c % std.length]];
    plane.forEach((value, i) => {
      data[channelsFirst ? c * height * width + i : i * channels + c] = raw ? Math.round(value) : (value / 255 - m) / s;
    });
  });
  return data;
}

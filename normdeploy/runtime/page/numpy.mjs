// NumPy's .npy files. Layout: NEP 1, versions 1 to 3.

import { VIEWS } from "./views.mjs";

const CODES = {
  f4: "float32", f8: "float64", f2: "float16", b1: "bool", i1: "int8", u1: "uint8",
  i2: "int16", u2: "uint16", i4: "int32", u4: "uint32", i8: "int64", u8: "uint64",
};

export const isFloat = (type) => type.startsWith("float");
export const isLong = (type) => type === "int64" || type === "uint64";
export const count = (shape) => shape.reduce((product, size) => product * size, 1);

// Return {type, shape, data} from a file's bytes
export function readNumpy(buffer) {
  const bytes = new Uint8Array(buffer);
  const magic = String.fromCharCode(...bytes.slice(1, 6));
  if (bytes[0] !== 0x93 || magic !== "NUMPY") throw new Error("this is no .npy file");
  const view = new DataView(buffer);
  const wide = bytes[6] > 1;
  const length = wide ? view.getUint32(8, true) : view.getUint16(8, true);
  const start = (wide ? 12 : 10) + length;
  const header = new TextDecoder().decode(bytes.slice(wide ? 12 : 10, start));
  const [, order, code] = header.match(/'descr': *'([<>|=])(\w\d)'/) ?? [];
  const type = CODES[code];
  const shape = header.match(/'shape': *\(([^)]*)\)/)?.[1].split(",").map((size) => size.trim()).filter(Boolean).map(Number);
  if (!type || !shape) throw new Error(`the .npy file holds what is no plain array of numbers: ${header.trim()}`);
  if (order === ">") throw new Error("the .npy file is big-endian: save it as little-endian");
  if (/'fortran_order': *True/.test(header)) throw new Error("the .npy file is in Fortran order: save it with np.ascontiguousarray");
  const View = VIEWS[type];
  const needed = count(shape) * View.BYTES_PER_ELEMENT;
  if (buffer.byteLength - start < needed) throw new Error("the .npy file is cut short");
  return { type, shape, data: new View(buffer.slice(start, start + needed)) };
}

// Return a file's bytes as a Blob
export function writeNumpy(type, shape, data) {
  const code = Object.keys(CODES).find((key) => CODES[key] === type);
  const order = code.endsWith("1") ? "|" : "<";
  const sizes = shape.join(", ") + (shape.length === 1 ? "," : "");
  const text = `{'descr': '${order}${code}', 'fortran_order': False, 'shape': (${sizes}), }`;
  const padded = text + " ".repeat(63 - ((10 + text.length) % 64)) + "\n";
  const head = new Uint8Array(10 + padded.length);
  head.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, padded.length & 255, padded.length >> 8]);
  head.set(new TextEncoder().encode(padded), 10);
  return new Blob([head, data]);
}

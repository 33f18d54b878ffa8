// Typed arrays by the types of onnxruntime-web: read by the page that judges and by packaged pages.

export const VIEWS = {
  float32: Float32Array,
  float64: Float64Array,
  // browsers without half-precision arrays keep their bits
  float16: globalThis.Float16Array ?? Uint16Array,
  bool: Uint8Array,
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
};

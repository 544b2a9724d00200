// What is in the files that a person drops: the hash of all, the inputs of a model, the shape of an
// array. Only what is asked is read, so that a model of gigabytes costs no memory.

/** @type {Worker | null} */
let worker = null;
let last = 0;
/** @type {Map<number, {resolve: (hash: string) => void, reject: (error: Error) => void, onDone: (bytes: number) => void}>} */
const waiting = new Map();

/** @param {Blob} file @param {(bytes: number) => void} onDone @returns {Promise<string>} */
export function hashOf(file, onDone) {
  if (!worker) {
    worker = new Worker('app/hasher.js', { type: 'module' });
    worker.onmessage = ({ data }) => {
      const one = waiting.get(data.number);
      if (data.done != null) one?.onDone(data.done);
      else {
        waiting.delete(data.number);
        if (data.hash) one?.resolve(data.hash);
        else one?.reject(new Error(data.fault));
      }
    };
  }
  const number = ++last;
  worker.postMessage({ number, file });
  return new Promise((resolve, reject) => waiting.set(number, { resolve, reject, onDone }));
}

/** Reads pieces of a file, and keeps the one it read last. */
class Pieces {
  /** @param {Blob} file */
  constructor(file) {
    this.file = file;
    this.from = 0;
    this.bytes = new Uint8Array(0);
  }

  /** @param {number} at @param {number} length */
  async read(at, length) {
    const isHere = at >= this.from && at + length <= this.from + this.bytes.length;
    if (!isHere) {
      const piece = this.file.slice(at, at + Math.max(length, 1 << 16));
      this.from = at;
      this.bytes = new Uint8Array(await piece.arrayBuffer());
    }
    return this.bytes.subarray(at - this.from, at - this.from + length);
  }
}

/** @typedef {{number: number, from: number, to: number, value: number}} Field of a protocol buffer */

/** The fields of a message. @param {Pieces} pieces @param {number} from @param {number} to */
async function* fields(pieces, from, to) {
  let at = from;
  const varint = async () => {
    const bytes = await pieces.read(at, Math.min(10, to - at));
    let value = 0, scale = 1;
    for (const byte of bytes) {
      at += 1;
      value += (byte & 127) * scale;
      scale *= 128;
      if (byte < 128) return value;
    }
    throw new Error('the file ends in the middle of a number');
  };
  while (at < to) {
    const key = await varint();
    const field = { number: Math.floor(key / 8), from: at, to: at, value: 0 };
    switch (key % 8) {
      case 0: field.value = await varint(); break;
      case 1: at += 8; break;
      case 2: {
        const length = await varint();
        field.from = at;
        at += length;
        field.to = at;
        break;
      }
      case 5: at += 4; break;
      default: throw new Error('it is no ONNX model');
    }
    if (at > to) throw new Error('the file is cut off');
    yield field;
  }
}

/** @param {Pieces} pieces @param {Field} field */
async function text(pieces, field) {
  return new TextDecoder().decode(await pieces.read(field.from, field.to - field.from));
}

const ELEMENTS = /** @type {Record<number, string>} */ ({
  1: 'f32', 2: 'u8', 3: 'i8', 5: 'i16', 6: 'i32', 7: 'i64', 9: 'bool', 10: 'f16', 11: 'f64',
  12: 'u32', 13: 'u64', 16: 'bf16',
});

/** @typedef {{name: string, dtype: string, shape: (number | string)[]}} Input */

/** @param {Pieces} pieces @param {Field} value a ValueInfoProto @returns {Promise<Input>} */
async function inputOf(pieces, value) {
  const input = { name: '', dtype: '?', shape: /** @type {(number | string)[]} */ ([]) };
  for await (const of of fields(pieces, value.from, value.to)) {
    if (of.number === 1) input.name = await text(pieces, of);
    if (of.number !== 2) continue;
    for await (const type of fields(pieces, of.from, of.to)) {
      if (type.number !== 1) continue;
      for await (const tensor of fields(pieces, type.from, type.to)) {
        if (tensor.number === 1) input.dtype = ELEMENTS[tensor.value] ?? `type ${tensor.value}`;
        if (tensor.number === 2) input.shape = await shapeOf(pieces, tensor);
      }
    }
  }
  return input;
}

/** @param {Pieces} pieces @param {Field} shape */
async function shapeOf(pieces, shape) {
  const sizes = [];
  for await (const dimension of fields(pieces, shape.from, shape.to)) {
    /** @type {number | string} */
    let size = '?';
    for await (const is of fields(pieces, dimension.from, dimension.to)) {
      if (is.number === 1) size = is.value;
      if (is.number === 2) size = await text(pieces, is);
    }
    sizes.push(size);
  }
  return sizes;
}

/**
 * What a model wants. Weights that older models list among their inputs are none.
 * @param {Blob} file
 * @returns {Promise<{inputs: Input[], isSplit: boolean}>}
 */
export async function modelInputs(file) {
  const pieces = new Pieces(file);
  const weights = new Set();
  const inputs = [];
  let isSplit = false, hasGraph = false;
  for await (const field of fields(pieces, 0, file.size)) {
    if (field.number !== 7) continue;
    hasGraph = true;
    for await (const of of fields(pieces, field.from, field.to)) {
      if (of.number === 11) inputs.push(await inputOf(pieces, of));
      if (of.number !== 5) continue;
      for await (const weight of fields(pieces, of.from, of.to)) {
        if (weight.number === 8) weights.add(await text(pieces, weight));
        if (weight.number === 14 && weight.value === 1) isSplit = true;
      }
    }
  }
  if (!hasGraph) throw new Error('it is no ONNX model');
  return { inputs: inputs.filter((it) => !weights.has(it.name)), isSplit };
}

const DTYPES = /** @type {Record<string, string>} */ ({
  f4: 'f32', f8: 'f64', f2: 'f16', i8: 'i64', i4: 'i32', i2: 'i16', i1: 'i8', u1: 'u8', u2: 'u16',
  u4: 'u32', u8: 'u64', b1: 'bool',
});

/** @typedef {{name: string, dtype: string, shape: number[]}} Tensor */

/**
 * The arrays in a file of NumPy, which has one without a name, or of safetensors.
 * @param {File} file
 * @returns {Promise<Tensor[]>}
 */
export async function tensorsOf(file) {
  const head = new Uint8Array(await file.slice(0, 12).arrayBuffer());
  const view = new DataView(head.buffer);
  const isNumpy = head[0] === 0x93 && new TextDecoder().decode(head.subarray(1, 6)) === 'NUMPY';
  if (!isNumpy) return safetensorsOf(file, view);
  const [from, length] = head[6] === 1 ? [10, view.getUint16(8, true)] : [12, view.getUint32(8, true)];
  const said = await file.slice(from, from + length).text();
  const type = /'descr':\s*'[<>|=]?(\w+)'/.exec(said)?.[1] ?? '?';
  const shape = /'shape':\s*\(([^)]*)\)/.exec(said)?.[1].split(',').map((it) => it.trim()).filter(Boolean) ?? [];
  return [{ name: '', dtype: DTYPES[type] ?? type, shape: shape.map(Number) }];
}

/** @param {File} file @param {DataView} view */
async function safetensorsOf(file, view) {
  const length = view.byteLength >= 8 ? Number(view.getBigUint64(0, true)) : 0;
  if (length < 2 || length > file.size - 8) throw new Error('it is no file of NumPy or safetensors');
  const said = JSON.parse(await file.slice(8, 8 + length).text());
  return Object.entries(said).filter(([name]) => name !== '__metadata__')
    .map(([name, it]) => ({ name, dtype: String(it.dtype).toLowerCase(), shape: it.shape }));
}

/** Whether an array is what an input wants. @param {Input} input @param {Tensor} tensor */
export function fits(input, tensor) {
  return input.dtype === tensor.dtype && input.shape.length === tensor.shape.length
    && input.shape.every((size, place) => typeof size === 'string' || size === tensor.shape[place]);
}

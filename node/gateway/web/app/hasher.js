// Hashes files beside the page, so that the page stays awake under gigabytes.

import { Blake3 } from './blake3.js';

const PIECE_BYTES = 4 << 20;

self.onmessage = async ({ data: { number, file } }) => {
  try {
    const hash = new Blake3();
    for (let at = 0; at < file.size; at += PIECE_BYTES) {
      hash.update(new Uint8Array(await file.slice(at, at + PIECE_BYTES).arrayBuffer()));
      self.postMessage({ number, done: Math.min(file.size, at + PIECE_BYTES) });
    }
    self.postMessage({ number, hash: hash.hex() });
  } catch (error) {
    self.postMessage({ number, fault: String(error) });
  }
};

// BLAKE3 of whatever a person drops on the page: contents are named by it before they are sent.
// After the paper "BLAKE3: one function, fast everywhere" (2020), sections 2.1 to 2.5.

const CHUNK_BYTES = 1024;
const BLOCK_BYTES = 64;

const CHUNK_START = 1;
const CHUNK_END = 2;
const PARENT = 4;
const ROOT = 8;

const START = Uint32Array.of(
  0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
);

/**
 * Mixes one block of sixteen words into a chaining value of eight. Written out, since arrays of
 * state would cost most of the time that it takes.
 * @param {Uint32Array} chain
 * @param {Uint32Array} words
 * @param {number} at where in `words` the block begins
 * @param {number} counter
 * @param {number} length
 * @param {number} flags
 * @param {Uint32Array} out may be `chain`
 */
function compress(chain, words, at, counter, length, flags, out) {
  let m0 = words[at], m1 = words[at + 1], m2 = words[at + 2], m3 = words[at + 3];
  let m4 = words[at + 4], m5 = words[at + 5], m6 = words[at + 6], m7 = words[at + 7];
  let m8 = words[at + 8], m9 = words[at + 9], m10 = words[at + 10], m11 = words[at + 11];
  let m12 = words[at + 12], m13 = words[at + 13], m14 = words[at + 14], m15 = words[at + 15];
  let a0 = chain[0] | 0, a1 = chain[1] | 0, a2 = chain[2] | 0, a3 = chain[3] | 0;
  let b0 = chain[4] | 0, b1 = chain[5] | 0, b2 = chain[6] | 0, b3 = chain[7] | 0;
  let c0 = START[0] | 0, c1 = START[1] | 0, c2 = START[2] | 0, c3 = START[3] | 0;
  let d0 = counter | 0, d1 = (counter / 0x100000000) | 0, d2 = length, d3 = flags;
  for (let round = 0; ; round += 1) {
    // Columns.
    a0 = (a0 + b0 + m0) | 0; d0 ^= a0; d0 = (d0 >>> 16) | (d0 << 16);
    c0 = (c0 + d0) | 0; b0 ^= c0; b0 = (b0 >>> 12) | (b0 << 20);
    a0 = (a0 + b0 + m1) | 0; d0 ^= a0; d0 = (d0 >>> 8) | (d0 << 24);
    c0 = (c0 + d0) | 0; b0 ^= c0; b0 = (b0 >>> 7) | (b0 << 25);
    a1 = (a1 + b1 + m2) | 0; d1 ^= a1; d1 = (d1 >>> 16) | (d1 << 16);
    c1 = (c1 + d1) | 0; b1 ^= c1; b1 = (b1 >>> 12) | (b1 << 20);
    a1 = (a1 + b1 + m3) | 0; d1 ^= a1; d1 = (d1 >>> 8) | (d1 << 24);
    c1 = (c1 + d1) | 0; b1 ^= c1; b1 = (b1 >>> 7) | (b1 << 25);
    a2 = (a2 + b2 + m4) | 0; d2 ^= a2; d2 = (d2 >>> 16) | (d2 << 16);
    c2 = (c2 + d2) | 0; b2 ^= c2; b2 = (b2 >>> 12) | (b2 << 20);
    a2 = (a2 + b2 + m5) | 0; d2 ^= a2; d2 = (d2 >>> 8) | (d2 << 24);
    c2 = (c2 + d2) | 0; b2 ^= c2; b2 = (b2 >>> 7) | (b2 << 25);
    a3 = (a3 + b3 + m6) | 0; d3 ^= a3; d3 = (d3 >>> 16) | (d3 << 16);
    c3 = (c3 + d3) | 0; b3 ^= c3; b3 = (b3 >>> 12) | (b3 << 20);
    a3 = (a3 + b3 + m7) | 0; d3 ^= a3; d3 = (d3 >>> 8) | (d3 << 24);
    c3 = (c3 + d3) | 0; b3 ^= c3; b3 = (b3 >>> 7) | (b3 << 25);
    // Diagonals.
    a0 = (a0 + b1 + m8) | 0; d3 ^= a0; d3 = (d3 >>> 16) | (d3 << 16);
    c2 = (c2 + d3) | 0; b1 ^= c2; b1 = (b1 >>> 12) | (b1 << 20);
    a0 = (a0 + b1 + m9) | 0; d3 ^= a0; d3 = (d3 >>> 8) | (d3 << 24);
    c2 = (c2 + d3) | 0; b1 ^= c2; b1 = (b1 >>> 7) | (b1 << 25);
    a1 = (a1 + b2 + m10) | 0; d0 ^= a1; d0 = (d0 >>> 16) | (d0 << 16);
    c3 = (c3 + d0) | 0; b2 ^= c3; b2 = (b2 >>> 12) | (b2 << 20);
    a1 = (a1 + b2 + m11) | 0; d0 ^= a1; d0 = (d0 >>> 8) | (d0 << 24);
    c3 = (c3 + d0) | 0; b2 ^= c3; b2 = (b2 >>> 7) | (b2 << 25);
    a2 = (a2 + b3 + m12) | 0; d1 ^= a2; d1 = (d1 >>> 16) | (d1 << 16);
    c0 = (c0 + d1) | 0; b3 ^= c0; b3 = (b3 >>> 12) | (b3 << 20);
    a2 = (a2 + b3 + m13) | 0; d1 ^= a2; d1 = (d1 >>> 8) | (d1 << 24);
    c0 = (c0 + d1) | 0; b3 ^= c0; b3 = (b3 >>> 7) | (b3 << 25);
    a3 = (a3 + b0 + m14) | 0; d2 ^= a3; d2 = (d2 >>> 16) | (d2 << 16);
    c1 = (c1 + d2) | 0; b0 ^= c1; b0 = (b0 >>> 12) | (b0 << 20);
    a3 = (a3 + b0 + m15) | 0; d2 ^= a3; d2 = (d2 >>> 8) | (d2 << 24);
    c1 = (c1 + d2) | 0; b0 ^= c1; b0 = (b0 >>> 7) | (b0 << 25);
    if (round === 6) break;
    const n0 = m0, n1 = m1, n5 = m5, n8 = m8;
    m0 = m2; m2 = m3; m3 = m10; m10 = m12; m12 = m9; m9 = m11; m11 = n5;
    m5 = n0;
    m1 = m6; m6 = m4; m4 = m7; m7 = m13; m13 = m14; m14 = m15; m15 = n8;
    m8 = n1;
  }
  out[0] = a0 ^ c0; out[1] = a1 ^ c1; out[2] = a2 ^ c2; out[3] = a3 ^ c3;
  out[4] = b0 ^ d0; out[5] = b1 ^ d1; out[6] = b2 ^ d2; out[7] = b3 ^ d3;
}

/** The hash of bytes that come piece by piece. */
export class Blake3 {
  constructor() {
    this.bytes = new Uint8Array(CHUNK_BYTES);
    this.words = new Uint32Array(this.bytes.buffer);
    this.filled = 0;
    this.chunks = 0;
    /** Chaining values of whole subtrees, the largest first. @type {Uint32Array[]} */
    this.subtrees = [];
  }

  /** @param {Uint8Array} bytes */
  update(bytes) {
    for (let at = 0; at < bytes.length; ) {
      // The last chunk waits: only what comes behind it says that it is not the root.
      if (this.filled === CHUNK_BYTES) this.#close();
      const taken = Math.min(CHUNK_BYTES - this.filled, bytes.length - at);
      this.bytes.set(bytes.subarray(at, at + taken), this.filled);
      this.filled += taken;
      at += taken;
    }
    return this;
  }

  /** The hash, as contents are named. */
  hex() {
    const isOnly = this.subtrees.length === 0;
    let chain = this.#chunk(isOnly ? ROOT : 0);
    for (let place = this.subtrees.length - 1; place >= 0; place -= 1) {
      chain = parent(this.subtrees[place], chain, place === 0 ? ROOT : 0);
    }
    const bytes = new Uint8Array(chain.buffer);
    return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
  }

  #close() {
    let chain = this.#chunk(0);
    this.chunks += 1;
    for (let count = this.chunks; count % 2 === 0; count /= 2) {
      chain = parent(/** @type {Uint32Array} */ (this.subtrees.pop()), chain, 0);
    }
    this.subtrees.push(chain);
    this.filled = 0;
  }

  /** @param {number} root */
  #chunk(root) {
    const chain = START.slice();
    const blocks = Math.max(1, Math.ceil(this.filled / BLOCK_BYTES));
    this.bytes.fill(0, this.filled);
    for (let block = 0; block < blocks; block += 1) {
      const isLast = block === blocks - 1;
      const length = isLast ? this.filled - block * BLOCK_BYTES : BLOCK_BYTES;
      const flags = (block === 0 ? CHUNK_START : 0) | (isLast ? CHUNK_END | root : 0);
      compress(chain, this.words, block * 16, this.chunks, length, flags, chain);
    }
    return chain;
  }
}

/** @param {Uint32Array} left @param {Uint32Array} right @param {number} root */
function parent(left, right, root) {
  const words = new Uint32Array(16);
  words.set(left);
  words.set(right, 8);
  const chain = new Uint32Array(8);
  compress(START, words, 0, 0, BLOCK_BYTES, PARENT | root, chain);
  return chain;
}

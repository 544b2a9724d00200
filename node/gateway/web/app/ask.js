// What the gateway is asked, with the token of this tab, and how it answers.

const TOKEN = 'souk-token';

/** Takes the token out of the address, so that it is in no history and no bookmark. */
export function takeToken() {
  const found = /^#token=([0-9a-f]{64})(?:&to=(.*))?$/.exec(location.hash);
  if (!found) return;
  sessionStorage.setItem(TOKEN, found[1]);
  history.replaceState(null, '', found[2] ? `#${decodeURIComponent(found[2])}` : '#/market');
}

export function hasToken() {
  return sessionStorage.getItem(TOKEN) != null;
}

/** @returns {Record<string, string>} */
export function credentials() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { authorization: `Bearer ${token}` } : {};
}

/** A refusal, as RFC 9457 has it, or an answer that never came. */
export class Problem extends Error {
  /** @param {{title: string, detail: string, hint: string, code: string, facts?: any}} told */
  constructor(told) {
    super(told.detail || told.title);
    this.title = told.title;
    this.hint = told.hint;
    this.code = told.code;
    this.facts = told.facts ?? {};
  }
}

/** @param {number} status @param {string} text */
function refusal(status, text) {
  try {
    return new Problem(JSON.parse(text));
  } catch {
    const detail = `the gateway answered ${status} without a reason`;
    return new Problem({ title: 'an odd answer', detail, hint: '', code: 'unexpected' });
  }
}

function silence() {
  const detail = 'the gateway does not answer';
  const hint = 'start it with `souk serve`, or the whole testnet with `souk testnet up`';
  return new Problem({ title: 'no answer', detail, hint, code: 'silent' });
}

/** @typedef {{method?: string, json?: any, headers?: Record<string, string>, signal?: AbortSignal}} Question */

/** Asks, and gives the response as it is. @param {string} path @param {Question} [question] */
export async function askRaw(path, { method = 'GET', json, headers, signal } = {}) {
  const body = json === undefined ? undefined : JSON.stringify(json);
  /** @type {Record<string, string>} */
  const type = body === undefined ? {} : { 'content-type': 'application/json' };
  let response;
  try {
    const all = { ...credentials(), ...type, ...headers };
    response = await fetch(path, { method, body, signal, headers: all, cache: 'no-store' });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw silence();
  }
  if (!response.ok) throw refusal(response.status, await response.text());
  return response;
}

/** Asks, and reads the answer. @param {string} path @param {Question} [question] @returns {Promise<any>} */
export async function ask(path, question) {
  const response = await askRaw(path, question);
  const text = await response.text();
  return text === '' ? null : JSON.parse(text);
}

/**
 * Brings a content, and tells how far it is: `fetch` cannot.
 * @param {string} hash
 * @param {Blob} blob
 * @param {(sent: number) => void} onSent
 * @returns {Promise<void>}
 */
export function bring(hash, blob, onSent) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open('PUT', `/v1/contents/${hash}`);
    for (const [name, value] of Object.entries(credentials())) {
      request.setRequestHeader(name, value);
    }
    request.setRequestHeader('content-type', 'application/octet-stream');
    request.upload.onprogress = (event) => onSent(event.loaded);
    request.onerror = () => reject(silence());
    request.onload = () => {
      const isFine = request.status >= 200 && request.status < 300;
      if (isFine) resolve();
      else reject(refusal(request.status, request.responseText));
    };
    request.send(blob);
  });
}

/** Saves an answer as a file. @param {string} path @param {string} name */
export async function save(path, name) {
  const blob = await (await askRaw(path)).blob();
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

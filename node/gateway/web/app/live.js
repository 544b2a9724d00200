// What happens, as it happens: one stream of events for all tabs of this browser.
//
// The tab that holds a lock reads the stream, and asks once a second how the market is; the others
// say what they want to follow, and hear of it by a channel. When that tab is closed, the next one
// that waits for the lock goes on. Eight tabs with a stream each would leave a browser none of its
// six connections to ask anything else.

import { ask, credentials, Problem } from './ask.js';

/**
 * @typedef {{isLive: boolean, isRefused: boolean, status: any, at: number,
 *            heard: number}} Standing
 * `at` is when the status was true, `heard` when the gateway last said anything.
 */

const TOPICS_MAX = 64;
const STATUS_PERIOD = 1_000;
const STATUS_PERIOD_UNSEEN = 5_000;
const ANSWER_MAX = 1_500;
/** A stream that is opened anew may take so long before it counts as gone. */
const OPENING_MAX = 1_500;
const AGAIN = 500;

const me = crypto.randomUUID();
const channel = new BroadcastChannel('souk-live');

/** Who listens in this tab, by topic. @type {Map<string, Set<(data: any) => void>>} */
const listeners = new Map();
/** @type {Set<(standing: Standing) => void>} */
const watchers = new Set();
/** Who begins anew when what came between is not known. @type {Set<() => void>} */
const beginners = new Set();

/** @type {Standing} */
let standing = { isLive: false, isRefused: false, status: null, at: 0, heard: 0 };

/** The stream, where this tab reads it. @type {Reader | null} */
let reader = null;

/** Follows a topic until the answer is called. @param {string} topic @param {(data: any) => void} on */
export function follow(topic, on) {
  const known = listeners.get(topic) ?? new Set();
  listeners.set(topic, known.add(on));
  tellWanted();
  return () => {
    known.delete(on);
    if (known.size === 0 && listeners.get(topic) === known) listeners.delete(topic);
    tellWanted();
  };
}

/** @param {(standing: Standing) => void} on */
export function watch(on) {
  watchers.add(on);
  on(standing);
  return () => watchers.delete(on);
}

/** Calls when all that is shown must be asked anew. @param {() => void} on */
export function onReset(on) {
  beginners.add(on);
  return () => beginners.delete(on);
}

/** Begins to read, or to listen to the tab that does. */
export function begin() {
  channel.onmessage = ({ data }) => hear(data);
  channel.postMessage({ is: 'who', from: me });
  navigator.locks.request('souk-live', () => {
    reader = new Reader();
    reader.begin();
    // Held until this tab is closed.
    return new Promise(() => {});
  });
  addEventListener('pagehide', () => channel.postMessage({ is: 'bye', from: me }));
}

let isTelling = false;

/** Says what this tab wants, once for all that is said in a moment. */
function tellWanted() {
  if (isTelling) return;
  isTelling = true;
  queueMicrotask(() => {
    isTelling = false;
    const topics = [...listeners.keys()];
    if (reader) reader.want(me, topics);
    else channel.postMessage({ is: 'want', from: me, topics });
  });
}

/** @param {any} said by another tab */
function hear(said) {
  switch (said.is) {
    case 'event': if (!said.to || said.to === me) tellHere(said.topic, said.data); break;
    case 'standing': setStanding(said.standing); break;
    case 'reset': beginners.forEach((on) => on()); break;
    // The tab that reads asks who is there, or has just begun to.
    case 'who':
      if (!reader) tellWanted();
      else if (said.from !== me) reader.greet();
      break;
    case 'want': reader?.want(said.from, said.topics); break;
    case 'bye': reader?.want(said.from, []); break;
  }
}

/** @param {string} topic @param {any} data */
function tellHere(topic, data) {
  listeners.get(topic)?.forEach((on) => on(data));
}

/** @param {Standing} next */
function setStanding(next) {
  const isBack = next.isLive && !standing.isLive;
  standing = next;
  watchers.forEach((on) => on(standing));
  if (isBack) beginners.forEach((on) => on());
}

/** Reads the stream, and tells all tabs. */
class Reader {
  constructor() {
    /** @type {Map<string, string[]>} */
    this.wanted = new Map();
    /** What was told last, by topic; for tabs that come later. @type {Map<string, any>} */
    this.told = new Map();
    this.last = '';
    this.open = '';
    /** Since when there is no stream; 0 while there is one. */
    this.without = 0;
    this.abort = new AbortController();
    this.asking = 0;
  }

  begin() {
    this.want(me, [...listeners.keys()]);
    channel.postMessage({ is: 'who', from: me });
    this.askStatus();
    document.addEventListener('visibilitychange', () => this.askStatus());
  }

  greet() {
    channel.postMessage({ is: 'standing', standing });
  }

  /** @param {string} tab @param {string[]} topics */
  want(tab, topics) {
    const before = new Set(this.wanted.get(tab));
    if (topics.length === 0) this.wanted.delete(tab);
    else this.wanted.set(tab, topics);
    const all = [...new Set([...this.wanted.values()].flat())].sort().slice(0, TOPICS_MAX);
    for (const topic of topics) {
      const is = !before.has(topic) && this.told.get(topic);
      if (is) this.tell(tab, topic, is);
    }
    const open = all.join(',');
    if (open === this.open) return;
    this.open = open;
    for (const topic of this.told.keys()) if (!all.includes(topic)) this.told.delete(topic);
    this.abort.abort();
    this.abort = new AbortController();
    this.without = Date.now();
    if (all.length > 0) this.read(open, this.abort.signal);
  }

  /** @param {string} tab to whom, or '' to all @param {string} topic @param {any} data */
  tell(tab, topic, data) {
    if (tab === '' || tab === me) tellHere(topic, data);
    if (tab !== me) channel.postMessage({ is: 'event', to: tab, topic, data });
  }

  /** @param {Partial<Standing>} change */
  stand(change) {
    setStanding({ ...standing, ...change });
    channel.postMessage({ is: 'standing', standing });
  }

  /** @param {string} topics @param {AbortSignal} signal */
  async read(topics, signal) {
    while (!signal.aborted) {
      try {
        await this.stream(topics, signal);
      } catch {
        // Told by what the status says; the stream is tried again below.
      }
      if (signal.aborted) return;
      this.without ||= Date.now();
      await new Promise((resolve) => setTimeout(resolve, AGAIN));
    }
  }

  /** @param {string} topics @param {AbortSignal} signal */
  async stream(topics, signal) {
    const headers = credentials();
    if (this.last) headers['last-event-id'] = this.last;
    const path = `/v1/events?topics=${encodeURIComponent(topics)}`;
    const response = await fetch(path, { headers, signal, cache: 'no-store' });
    if (response.status === 401) this.stand({ isRefused: true, isLive: false });
    if (!response.ok || !response.body) throw new Error(String(response.status));
    this.without = 0;
    const text = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let waiting = '';
    for (;;) {
      const { value, done } = await text.read();
      if (done || signal.aborted) return;
      const events = (waiting + value).split('\n\n');
      waiting = events.pop() ?? '';
      events.forEach((event) => this.event(event));
    }
  }

  /** @param {string} text of one event */
  event(text) {
    let topic = '', data = '';
    for (const line of text.split('\n')) {
      if (line.startsWith('id: ')) this.last = line.slice(4);
      else if (line.startsWith('event: ')) topic = line.slice(7);
      else if (line.startsWith('data: ')) data += line.slice(6);
    }
    if (topic === 'reset') {
      this.last = '';
      beginners.forEach((on) => on());
      channel.postMessage({ is: 'reset' });
      return;
    }
    if (topic === '' || data === '') return;
    const is = JSON.parse(data);
    // What happens to a job is told once and is not the whole, so it is not kept.
    if (!topic.startsWith('job:')) this.told.set(topic, is);
    this.tell('', topic, is);
  }

  /** Asks how the market is, now and then again after a while. */
  async askStatus() {
    const number = ++this.asking;
    try {
      const status = await ask('/v1/status', { signal: AbortSignal.timeout(ANSWER_MAX) });
      const at = Math.min(Date.now(), Date.parse(status.as_of));
      const isLive = this.open === '' || !this.without || Date.now() - this.without < OPENING_MAX;
      this.stand({ status, at, heard: Date.now(), isLive, isRefused: false });
    } catch (error) {
      const isRefused = error instanceof Problem && error.code === 'unauthorized';
      this.stand({ isLive: false, isRefused });
    }
    if (number !== this.asking) return;
    const period = document.hidden ? STATUS_PERIOD_UNSEEN : STATUS_PERIOD;
    setTimeout(() => number === this.asking && this.askStatus(), period);
  }
}

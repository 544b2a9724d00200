// How long a job took, and what for: by its events, and by what its devices measured.

import { html } from './view.js';
import { Table } from './table.js';
import * as words from './words.js';

/** @typedef {{from: number, to: number, what: string, name: string}} Span in milliseconds of the clock */

export const BUYERS_LANE = 'as the buyer saw it';

/** What may still change. */
export const UNDER_WAY = ['accepted', 'running'];

/** When it ended, as far as is known. @param {any} job @param {any[]} events */
export function endOf(job, events) {
  if (UNDER_WAY.includes(job.state) || events.length === 0) return null;
  return Date.parse(events[events.length - 1].at);
}

/** What each provider did as the buyer heard of it. @param {any[]} events @param {number} now */
export function phasesOf(events, now) {
  /** @type {Map<string, Span[]>} */
  const phases = new Map();
  const next = /** @type {Record<string, [string, string]>} */ ({
    fetched: ['wait', 'get ready'], ready: ['wait', 'wait'], running: ['compute', 'run'],
  });
  const close = (account, at) => {
    const last = phases.get(account)?.at(-1);
    if (last && last.to < 0) last.to = at;
  };
  const open = (account, at, /** @type {[string, string]} */ what) => {
    close(account, at);
    const known = phases.get(account) ?? [];
    known.push({ from: at, to: -1, what: what[0], name: what[1] });
    phases.set(account, known);
  };
  for (const it of events) {
    const at = Date.parse(it.at);
    for (const { provider } of it.leases ?? []) open(provider, at, ['transfer-in', 'upload']);
    if (next[it.event]) open(it.provider, at, next[it.event]);
    if (['finished', 'retrying'].includes(it.event)) close(it.provider, at);
    if (it.event === 'returned') for (const account of phases.keys()) close(account, at);
  }
  for (const account of phases.keys()) close(account, now);
  return phases;
}

/** What the devices themselves measured. @param {any} timeline @returns {Span[]} */
function ownSpans(timeline) {
  const own = (timeline?.spans ?? []).filter((it) => it.lane !== BUYERS_LANE);
  return own.map((it) => ({ from: it.start / 1000, to: it.end / 1000, what: it.kind, name: it.name }));
}

/** What a moment counts as, where several things happen: the first of these. */
const SHARES = /** @type {[string, string][]} */ ([
  ['compute', 'compute'], ['upload', 'upload'], ['moving', 'tensors between providers'],
  ['ready', 'getting ready'], ['buying', 'buying'], ['settling', 'settling'], ['waiting', 'waiting'],
]);

/** How long each of SHARES took. @param {any} job @param {any} timeline @param {any[]} events */
function sharesOf(job, timeline, events) {
  const end = endOf(job, events);
  if (end == null) return null;
  const begun = Date.parse(job.begun_at);
  const at = (/** @type {string} */ word) => events.filter((it) => it.event === word)
    .map((it) => Date.parse(it.at));
  const leased = at('leased'), returned = at('returned');
  const phases = [...phasesOf(events, end).values()].flat();
  const own = ownSpans(timeline);
  const isMeasured = own.some((it) => it.what === 'compute');
  const spans = /** @type {Record<string, {from: number, to: number}[]>} */ ({
    compute: isMeasured ? own.filter((it) => it.what === 'compute')
      : phases.filter((it) => it.what === 'compute'),
    moving: own.filter((it) => it.what.startsWith('transfer')),
    upload: phases.filter((it) => it.name === 'upload'),
    ready: phases.filter((it) => it.name === 'get ready'),
    buying: leased.length > 0 ? [{ from: begun, to: leased[0] }] : [],
    settling: returned.length > 0 ? [{ from: /** @type {number} */ (returned.at(-1)), to: end }] : [],
    waiting: [{ from: begun, to: end }],
  });
  return { total: end - begun, shares: split(spans, begun, end) };
}

/** Gives each stretch of time to the first kind that has it.
 * @param {Record<string, {from: number, to: number}[]>} spans @param {number} begun @param {number} end */
function split(spans, begun, end) {
  const cuts = new Set([begun, end]);
  for (const { from, to } of Object.values(spans).flat()) cuts.add(from).add(to);
  const times = [...cuts].filter((it) => it >= begun && it <= end).sort((a, b) => a - b);
  /** @type {Record<string, number>} */
  const shares = {};
  times.slice(1).forEach((to, place) => {
    const from = times[place];
    const found = SHARES.find(([key]) => spans[key].some((it) => it.from <= from && it.to >= to));
    if (found) shares[found[0]] = (shares[found[0]] ?? 0) + to - from;
  });
  return shares;
}

export function Shares({ job, timeline, events }) {
  const is = sharesOf(job, timeline, events);
  if (!is) return html`<p class="empty">Told when the job is over.</p>`;
  const rows = SHARES.filter(([key]) => is.shares[key] > 0)
    .map(([key, name]) => ({ key, name, time: is.shares[key] / 1000, part: is.shares[key] / is.total }));
  const columns = [
    { name: 'what', value: (it) => it.name,
      cell: (it) => html`<i class=${`swatch share-${it.key}`} aria-hidden="true"></i> ${it.name}` },
    { name: 'time', numeric: true, value: (it) => it.time,
      cell: (it) => words.seconds(it.time) },
    { name: 'of all', numeric: true, value: (it) => it.part,
      cell: (it) => words.percent(it.part) },
  ];
  return html`<div class="shares" aria-hidden="true">${rows.map((it) => html`<span
      class=${`share share-${it.key}`} style=${{ width: `${it.part * 100}%` }}></span>`)}</div>
    <${Table} caption="Where the time went" columns=${columns} rows=${rows} sort="time" isDown=${true} />`;
}

/**
 * Upload, wait and compute as the command line counts them: compute is by the devices' clocks, from
 * the first part to the last.
 * @param {any} job @param {any} timeline @param {any[]} events
 */
function measuredOf(job, timeline, events) {
  const end = endOf(job, events);
  if (end == null) return null;
  const all = (end - Date.parse(job.begun_at)) / 1000;
  const last = (word) => events.findLast((it) => it.event === word)?.at;
  const bought = Date.parse(last('leased')), fetched = Date.parse(last('fetched'));
  const computed = ownSpans(timeline).filter((it) => it.what === 'compute');
  const length = computed.length === 0 ? 0
    : Math.max(...computed.map((it) => it.to)) - Math.min(...computed.map((it) => it.from));
  const compute = Math.min(all, length / 1000);
  const upload = Math.min(all - compute, fetched > bought ? (fetched - bought) / 1000 : 0);
  return { upload, wait: all - compute - upload, compute, all };
}

export function Times({ job, plan, timeline, events }) {
  const { times } = plan;
  const is = measuredOf(job, timeline, events);
  const rows = [
    ['upload', times.upload_seconds, is?.upload],
    ['wait', times.wait_seconds || null, is?.wait],
    ['compute', times.compute_seconds, is?.compute],
    ['in all', times.all_seconds, is?.all],
  ].map(([name, planned, measured]) => [name, words.seconds(planned), words.seconds(measured)]);
  rows.push(['credits', words.credits(times.micro_credits), words.credits(job.paid)]);
  const columns = [
    { name: 'time', cell: (it) => it[0] },
    { name: 'planned', numeric: true, cell: (it) => it[1] },
    { name: 'measured', numeric: true, cell: (it) => it[2] },
  ];
  return html`<${Table} caption="Planned and measured" columns=${columns} rows=${rows} canSort=${false} />`;
}

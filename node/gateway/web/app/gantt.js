// When each provider did what: as it measured, as the buyer saw it, and as it was planned.

import { html, useEffect, useState } from './view.js';
import { Table } from './table.js';
import { BUYERS_LANE, endOf, phasesOf } from './times.js';
import * as words from './words.js';

/** @typedef {import('./times.js').Span} Span */

const KINDS = /** @type {Record<string, string>} */ ({
  compute: 'compute', 'transfer-in': 'take in', 'transfer-out': 'give out', wait: 'wait',
});
/** What a provider itself measured. @param {any} timeline @param {string} name @returns {Span[]} */
function measuredOf(timeline, name) {
  const own = (timeline?.spans ?? []).filter((it) =>
    it.lane !== BUYERS_LANE && it.device.split(' (')[0] === name);
  return own.map((it) => ({ from: it.start / 1000, to: it.end / 1000, what: it.kind, name: it.name }));
}

/** @param {any} plan @param {string} account @param {number} begin @returns {Span[]} */
function plannedOf(plan, account, begin) {
  const zero = begin + plan.times.upload_seconds * 1000;
  const upload = { from: begin, to: zero, what: 'transfer-in', name: 'upload' };
  const parts = plan.parts.filter((it) => it.provider === account);
  return [upload, ...parts.map((it) => ({ from: zero + it.start_seconds * 1000,
    to: zero + it.finish_seconds * 1000, what: 'compute', name: `part ${it.part}` }))];
}

/** The time now, while something is under way. @param {boolean} isOver */
function useNow(isOver) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (isOver) return undefined;
    const timer = setInterval(() => setNow(Date.now()), 250);
    return () => clearInterval(timer);
  }, [isOver]);
  return now;
}

/**
 * @param {{job: any, plan: any, events: any[], timeline: any, names: Map<string, any>,
 *          colours: Map<string, number>}} props
 */
export function Gantt({ job, plan, events, timeline, names, colours }) {
  const [isTable, setTable] = useState(false);
  const end = endOf(job, events);
  const now = useNow(end != null);
  const begun = Date.parse(job.begun_at);
  const until = Math.max(end ?? now, begun + 1);
  const leased = events.find((it) => it.event === 'leased');
  const phases = phasesOf(events, until);
  const accounts = [...new Set([...plan.parts.map((it) => it.provider), ...phases.keys()])];
  const rows = accounts.map((account) => {
    const known = plan.parts.find((it) => it.provider === account);
    const name = names.get(account)?.name ?? known?.provider_name ?? words.short(account);
    return { account, name, colour: colours.get(account) ?? 0,
      isEmulated: known?.emulated ?? job.leases.some((it) => it.provider === account && it.emulated),
      lanes: [
        { name: 'measured', spans: measuredOf(timeline, name) },
        { name: 'as you saw it', spans: phases.get(account) ?? [] },
        { name: 'planned', spans: leased ? plannedOf(plan, account, Date.parse(leased.at)) : [] },
      ].filter((lane) => lane.spans.length > 0) };
  });
  const scale = { begun, length: until - begun };
  return html`<div class="chart-head"><h3>${words.seconds(scale.length / 1000)} from the beginning</h3>
      <button type="button" class="small" aria-pressed=${isTable}
        onClick=${() => setTable(!isTable)}>${isTable ? 'chart' : 'table'}</button></div>
    ${isTable ? html`<${SpanTable} rows=${rows} begun=${begun} />` : html`<div class="gantt">
      ${rows.map((row) => html`<${Row} key=${row.account} row=${row} scale=${scale} />`)}
      <div class="gantt-axis" aria-hidden="true"><span>0</span><span>${words.seconds(scale.length / 2000)}</span>
        <span>${words.seconds(scale.length / 1000)}</span></div>
      <p class="note legend" aria-hidden="true"><i class="swatch compute"></i> compute
        <i class="swatch transfer-in"></i> take in or give out <i class="swatch wait"></i> get ready or wait
        <i class="swatch planned"></i> planned</p></div>`}`;
}

function Row({ row, scale }) {
  return html`<div class=${`gantt-row p${row.colour}`}>
    <div class="gantt-name">${row.name}${row.isEmulated && html` <span class="emulated-word">emulated</span>`}</div>
    <div class="gantt-lanes">${row.lanes.map((lane) => html`<div
      class=${`lane ${lane.name.replaceAll(' ', '-')}`} role="img" aria-label=${laneText(lane, scale.begun)}>
      ${lane.spans.map((it) => html`<${Bar} it=${it} scale=${scale} />`)}</div>`)}</div></div>`;
}

/** @param {{name: string, spans: Span[]}} lane @param {number} begun */
function laneText(lane, begun) {
  return `${lane.name}: ${lane.spans.map((it) => `${it.name} from ${words.seconds((it.from - begun) / 1000)
    } to ${words.seconds((it.to - begun) / 1000)}`).join(', ')}`;
}

function Bar({ it, scale }) {
  const part = (time) => Math.min(1, Math.max(0, time / scale.length)) * 100;
  const left = part(it.from - scale.begun), width = part(it.to - it.from);
  return html`<span class=${`bar ${it.what}`} title=${`${it.name}: ${words.seconds((it.to - it.from) / 1000)}`}
    style=${{ left: `${left}%`, width: `max(2px, ${width}%)` }}></span>`;
}

function SpanTable({ rows, begun }) {
  const all = rows.flatMap((row) => row.lanes.flatMap((lane) =>
    lane.spans.map((it) => ({ ...it, who: row.name, lane: lane.name }))));
  const time = (name, /** @type {(it: any) => number} */ value) => ({ name, numeric: true,
    value, cell: (it) => words.seconds(value(it)) });
  const columns = [
    { name: 'provider', value: (it) => it.who },
    { name: 'seen', value: (it) => it.lane },
    { name: 'what', value: (it) => it.name },
    { name: 'kind', wide: true, value: (it) => KINDS[it.what] ?? it.what },
    time('from', (it) => (it.from - begun) / 1000),
    time('took', (it) => (it.to - it.from) / 1000),
  ];
  return html`<${Table} caption="Spans of time" columns=${columns} rows=${all} sort="from" />`;
}

// The parts of a job and what goes between them, coloured by provider.

import { html, useMemo, useState } from './view.js';
import { Table } from './table.js';
import * as words from './words.js';

const BOX = { width: 208, height: 74 };
const GAP = { x: 104, y: 22 };
const ENDS = 78;

/** @typedef {{from: string, to: string, bytes: number | null, name: string}} Edge */

/** Parts and what goes between them; of an older plan only the parts are known. @param {any} plan */
function drawn(plan) {
  const parts = plan.parts.map((it) => ({ ...it, id: String(it.part) }));
  /** @type {Edge[]} */
  const edges = (plan.edges ?? []).map((it) => ({
    from: it.from == null ? 'inputs' : String(it.from),
    to: it.to == null ? 'outputs' : String(it.to),
    bytes: it.bytes,
    name: it.tensor,
  }));
  return { parts, edges };
}

/** The column of each part: one more than that of the last it waits for. */
function layersOf(parts, /** @type {Edge[]} */ edges) {
  /** @type {Map<string, number>} */
  const layers = new Map(parts.map((it, place) => [it.id, edges.length === 0 ? place : 0]));
  for (let round = 0; round < parts.length; round += 1) {
    for (const { from, to } of edges) {
      const before = layers.get(from), after = layers.get(to);
      if (before != null && after != null) layers.set(to, Math.max(after, before + 1));
    }
  }
  return layers;
}

/** Where everything stands. @param {any[]} parts @param {Edge[]} edges */
function placed(parts, edges) {
  const layers = layersOf(parts, edges);
  const columns = Math.max(...layers.values()) + 1;
  const rows = Array.from({ length: columns }, () => 0);
  /** @type {Map<string, {x: number, y: number, w: number, h: number}>} */
  const places = new Map();
  for (const part of parts) {
    const column = layers.get(part.id) ?? 0;
    places.set(part.id, { x: ENDS + GAP.x / 2 + column * (BOX.width + GAP.x),
      y: 8 + rows[column]++ * (BOX.height + GAP.y), w: BOX.width, h: BOX.height });
  }
  const height = 16 + Math.max(...rows) * (BOX.height + GAP.y) - GAP.y;
  const width = ENDS * 2 + columns * (BOX.width + GAP.x);
  const end = { y: height / 2 - 16, w: ENDS - 6, h: 32 };
  places.set('inputs', { x: 2, ...end });
  places.set('outputs', { x: width - ENDS + 4, ...end });
  return { places, width, height };
}

/** All that goes from one part to another, as one. @param {Edge[]} edges */
function joined(edges) {
  /** @type {Map<string, Edge & {count: number}>} */
  const all = new Map();
  for (const edge of edges) {
    const key = `${edge.from} ${edge.to}`;
    const before = all.get(key);
    const bytes = (before?.bytes ?? 0) + (edge.bytes ?? 0);
    all.set(key, { ...edge, bytes, count: (before?.count ?? 0) + 1 });
  }
  return [...all.values()];
}

/** @param {{plan: any, colours: Map<string, number>, events: any[], names: Map<string, any>}} props */
export function Graph({ plan, colours, events, names }) {
  const { parts, edges } = useMemo(() => drawn(plan), [plan]);
  const [isTable, setTable] = useState(false);
  const { places, width, height } = useMemo(() => placed(parts, edges), [parts, edges]);
  const doing = stateOf(events);
  const label = `${words.counted(parts.length, 'part')}: ${parts.map((it) =>
    `part ${it.part} on ${it.device} of ${it.provider_name}`).join('; ')}`;
  return html`<div class="chart-head"><h3>${words.counted(parts.length, 'part')}</h3><button type="button"
      class="small" aria-pressed=${isTable} onClick=${() => setTable(!isTable)}>${
      isTable ? 'graph' : 'table'}</button></div>
    ${isTable ? html`<${EdgeTable} parts=${parts} edges=${edges} />` : html`<div class="scroll" role="region"
      aria-label="Graph of the parts" tabindex="0"><svg class="graph" role="img" aria-label=${label}
      viewBox=${`0 0 ${width} ${height}`} width=${width} height=${height}>
      ${joined(edges).map((edge) => html`<${EdgeLine} edge=${edge} places=${places} />`)}
      ${edges.length > 0 && ['inputs', 'outputs'].map((name) => html`<${EndBox} name=${name}
        at=${places.get(name)} />`)}
      ${parts.map((part) => html`<${PartBox} part=${part} at=${places.get(part.id)}
        colour=${colours.get(part.provider) ?? 0} name=${names.get(part.provider)?.name ?? part.provider_name}
        state=${doing.get(part.provider)} />`)}</svg></div>`}`;
}

/** What each provider was last heard to do. @param {any[]} events */
function stateOf(events) {
  /** @type {Map<string, string>} */
  const doing = new Map();
  const said = /** @type {Record<string, string>} */ (
    { fetched: 'gets ready', ready: 'is ready', running: 'runs', finished: 'is done', retrying: 'failed' });
  for (const it of events) {
    if (it.event === 'leased') for (const lease of it.leases) doing.set(lease.provider, 'fetches');
    if (said[it.event]) doing.set(it.provider, said[it.event]);
  }
  return doing;
}

function PartBox({ part, at, colour, name, state }) {
  const device = part.device.replace(/ \(emulated\)$/, '');
  const x = at.x + 16;
  return html`<g class=${`part p${colour} ${part.emulated ? 'is-emulated' : ''}`}>
    <rect class="box" x=${at.x} y=${at.y} width=${at.w} height=${at.h} rx="7" />
    <rect class="band" x=${at.x} y=${at.y} width="7" height=${at.h} rx="3" />
    <text class="strong" x=${x} y=${at.y + 20}>${`part ${part.part} · ${words.counted(part.nodes, 'node')}`}</text>
    <text x=${x} y=${at.y + 39}>${device.length > 26 ? `${device.slice(0, 25)}…` : device}</text>
    <text class="dim" x=${x} y=${at.y + 58}>${[name, part.emulated && 'emulated', state].filter(Boolean)
      .join(' · ')}</text>
    <title>${part.operators ? Object.entries(part.operators).map(([op, n]) => `${n} ${op}`).join(', ') : device}</title>
  </g>`;
}

function EndBox({ name, at }) {
  return html`<g class="end"><rect class="box" x=${at.x} y=${at.y} width=${at.w} height=${at.h} rx="16" />
    <text x=${at.x + at.w / 2} y=${at.y + 21} text-anchor="middle">${name}</text></g>`;
}

function EdgeLine({ edge, places }) {
  const from = places.get(edge.from), to = places.get(edge.to);
  if (!from || !to) return null;
  const x1 = from.x + from.w, y1 = from.y + from.h / 2, x2 = to.x - 7, y2 = to.y + to.h / 2;
  const bend = (x2 - x1) / 2;
  const text = edge.bytes ? words.bytes(edge.bytes) : '';
  return html`<g class="edge"><path d=${`M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`} />
    <path class="head" d=${`M${x2} ${y2 - 5}l8 5l-8 5z`} />
    <text x=${(x1 + x2) / 2} y=${(y1 + y2) / 2 - 7} text-anchor="middle">${text}</text>
    <title>${`${edge.name}${edge.count > 1 ? ` and ${edge.count - 1} more` : ''}`}</title></g>`;
}

function EdgeTable({ parts, edges }) {
  const name = (id) => (parts.some((it) => it.id === id) ? `part ${id}` : id);
  const columns = [
    { name: 'tensor', value: (it) => it.name },
    { name: 'from', value: (it) => name(it.from) },
    { name: 'to', value: (it) => name(it.to) },
    { name: 'size', numeric: true, value: (it) => it.bytes,
      cell: (it) => words.bytes(it.bytes) },
  ];
  return html`<${Table} caption="What goes between parts" columns=${columns} rows=${edges}
    empty="What goes between the parts is not known." />`;
}

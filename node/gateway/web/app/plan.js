// A plan, before it is bought and after: parts, times, alternatives, and what did not suit.

import { html } from './view.js';
import { Device } from './parts.js';
import { Table } from './table.js';
import * as words from './words.js';

export function PlanParts({ plan }) {
  const columns = [
    { name: 'part', numeric: true, value: (it) => it.part },
    { name: 'provider', value: (it) => it.provider_name },
    { name: 'device', cell: (it) => html`<${Device} device=${it.device} emulated=${it.emulated} />` },
    { name: 'nodes', numeric: true, wide: true, value: (it) => it.nodes },
    { name: 'busy', numeric: true, value: (it) => it.busy_seconds,
      cell: (it) => words.seconds(it.busy_seconds) },
    { name: 'credits', numeric: true, value: (it) => it.micro_credits,
      cell: (it) => words.credits(it.micro_credits) },
    { name: 'why there', wide: true, cell: (it) => it.why },
  ];
  return html`<${Table} caption="Parts of the plan" columns=${columns} rows=${plan.parts} canSort=${false} />`;
}

export function PlanTimes({ plan }) {
  const { times } = plan;
  const rows = [
    ['upload', words.seconds(times.upload_seconds)],
    ['wait', times.wait_seconds > 0 ? words.seconds(times.wait_seconds) : '–'],
    ['compute', words.seconds(times.compute_seconds)],
    ['in all', words.seconds(times.all_seconds)],
    ['credits', words.credits(times.micro_credits)],
  ];
  const columns = [
    { name: 'time', cell: (it) => it[0] },
    { name: 'planned', numeric: true, cell: (it) => it[1] },
  ];
  return html`<${Table} caption="Planned times" columns=${columns} rows=${rows} canSort=${false} />`;
}

export function PlanAlternatives({ plan }) {
  const all = plan.alternatives ?? [];
  if (all.length === 0) return null;
  const columns = [
    { name: 'devices', cell: (it) => it.devices.map((name) => html`<div>
      <${Device} device=${name} emulated=${name.endsWith('(emulated)')} /></div>`) },
    { name: 'time', numeric: true, value: (it) => it.makespan_seconds,
      cell: (it) => words.seconds(it.makespan_seconds) },
    { name: 'credits', numeric: true, value: (it) => it.micro_credits,
      cell: (it) => words.credits(it.micro_credits) },
    { name: 'against this plan', value: (it) => it.against_plan },
  ];
  return html`<h3>Other plans</h3><${Table} caption="Other plans" columns=${columns} rows=${all} />`;
}

/** Offers that did not suit, by cause. */
export function Refusals({ refusals }) {
  if (!refusals?.length) return null;
  const columns = [
    { name: 'offers', numeric: true, value: (it) => it.asks },
    { name: 'did not suit by', value: (it) => words.spaced(it.cause) },
    { name: 'for example', cell: (it) => it.examples.join('; ') },
  ];
  return html`<${Table} caption="Offers that did not suit" columns=${columns} rows=${refusals} />`;
}

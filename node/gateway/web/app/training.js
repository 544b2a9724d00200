// The runs of training that were begun from this folder, and how their losses fall.

import { html, useEffect, useMemo, useState } from './view.js';
import { Chart } from './chart.js';
import { useAnswer } from './known.js';
import { Empty, Facts, Panel, Shown } from './parts.js';
import { Table } from './table.js';
import * as words from './words.js';

const PAGE = 100;

/** A run keeps its steps now and then, and tells nobody: while one is at work, it is looked at so often. */
const PERIOD = 2_000;

/** How often the list is asked for if no run is at work. */
const IDLE_PERIOD = 15_000;

/**
 * An answer that is asked anew while a run in it is at work.
 * @param {string} path @param {(is: any) => boolean} isAtWork @param {number} idle
 */
function useWorking(path, isAtWork, idle) {
  const [every, setEvery] = useState(PERIOD);
  const answer = useAnswer(path, { every });
  useEffect(() => {
    if (answer.is) setEvery(isAtWork(answer.is) ? PERIOD : idle);
  }, [answer.is]);
  return answer;
}

export function Training({ path }) {
  return path[0] ? html`<${One} key=${path[0]} id=${path[0]} />` : html`<${List} />`;
}

/** @param {number | null | undefined} value */
const loss = (value) => (value == null ? '–' : value.toFixed(4));

function State({ state }) {
  return html`<span class=${`state ${state}`}>${words.spaced(state)}</span>`;
}

function List() {
  const answer = useWorking(`/v1/trainings?limit=${PAGE}`,
    (is) => is.items.some((/** @type {any} */ it) => it.state === 'running'), IDLE_PERIOD);
  return html`<h1>Training</h1><${Shown} answer=${answer}>${(is) => (is.items.length === 0
    ? html`<${Empty}>No run of training yet. Type ${' '}<code>souk train MODEL data.jsonl --eval
        held.jsonl -o tuned/</code>.<//>`
    : html`<${Panel} title=${words.counted(is.items.length, 'run')}><${Runs} runs=${is.items} /><//>`)}<//>`;
}

function Runs({ runs }) {
  const columns = [
    { name: 'run', cell: (it) => html`<a href=${`#/training/${it.id}`}><code>${it.id}</code></a>` },
    { name: 'state', value: (it) => it.state, cell: (it) => html`<${State} state=${it.state} />` },
    { name: 'begun', wide: true, value: (it) => it.begun_at, first: 'down',
      cell: (it) => words.moment(it.begun_at) },
    { name: 'steps', numeric: true, value: (it) => it.steps_done,
      cell: (it) => `${words.count(it.steps_done)} of ${words.count(it.steps)}` },
    { name: 'loss', numeric: true, value: (it) => it.loss, cell: (it) => loss(it.loss) },
    { name: 'held-out', numeric: true, value: (it) => it.held_out_loss, cell: (it) => loss(it.held_out_loss) },
    { name: 'cost', numeric: true, first: 'down', wide: true, value: (it) => it.spent,
      cell: (it) => words.credits(it.spent) },
    { name: 'result', wide: true, cell: (it) => html`<code>${it.result}</code>` },
  ];
  return html`<${Table} caption="Runs of training" columns=${columns} rows=${runs} sort="begun" isDown=${true}
    rowKey=${(it) => it.id} />`;
}

function One({ id }) {
  const answer = useWorking(`/v1/trainings/${id}`, (is) => is.state === 'running', 0);
  return html`<h1>Training <code>${id}</code></h1><${Shown} answer=${answer}>${(is) => html`
    <${Panel} title=${`${words.count(is.steps_done)} of ${words.counted(is.steps, 'step')}`}
      aside=${html`<${State} state=${is.state} />`}>
      <${Facts} rows=${[
        ['begun', words.moment(is.begun_at)],
        ['loss', html`<span class="loss">${loss(is.loss)}</span>`],
        is.held_out.length > 0 && ['held-out loss', html`<span class="held-out">${loss(is.held_out_loss)}</span>`],
        ['cost of ended leases', words.credits(is.spent)],
        ['receipts', words.count(is.receipts)],
        ['result', html`<code>${is.result}</code>`],
      ]} />
      <${Curve} is=${is} /><//>`}<//>`;
}

function Curve({ is }) {
  const drawing = useMemo(() => drawingOf(is), [is]);
  if (is.curve.length + is.held_out.length === 0) {
    return html`<${Empty}>No step is kept yet.<//>`;
  }
  const rows = drawing.xs.map((step, place) => ({ step, values: drawing.series.map((it) => it.values[place]) }));
  const columns = [
    { name: 'step', numeric: true, value: (it) => it.step, cell: (it) => words.count(it.step) },
    ...drawing.series.map((one, place) => ({ name: one.label, numeric: true,
      value: (it) => it.values[place], cell: (it) => loss(it.values[place]) })),
  ];
  return html`<${Chart} label="Loss, by step" drawing=${drawing} height=${260} table=${html`<${Table}
    caption="Losses by step" columns=${columns} rows=${rows} sort="step" />`} />`;
}

/** @param {any} is @returns {import('./chart.js').Drawing} */
function drawingOf(is) {
  const xs = [...new Set([...is.curve, ...is.held_out].map((it) => it.step))].sort((a, b) => a - b);
  /** @param {{step: number, loss: number | null}[]} points */
  const along = (points) => {
    // A loss that is no number breaks the line; a step without a point does not.
    const known = new Map(points.map((it) => [it.step, it.loss ?? NaN]));
    return xs.map((step) => known.get(step) ?? null);
  };
  /** @type {import('./chart.js').Series[]} */
  const series = [{ label: 'loss', kind: 'line', tone: '0', values: along(is.curve) }];
  if (is.held_out.length > 0) {
    series.push({ label: 'held-out', kind: 'line', tone: '1', values: along(is.held_out) });
  }
  return { xs, xRange: [0, Math.max(1, xs.at(-1) ?? 1)], isTime: false, series,
    x: (value) => words.count(Math.round(value)), y: (value) => String(Number(value.toPrecision(3))) };
}

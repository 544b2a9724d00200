// The jobs of this account: how each stands, what it cost, and where it ran.

import { html, useState } from './view.js';
import { Job, JobState } from './job.js';
import { useAnswer, useAction } from './known.js';
import { ask } from './ask.js';
import { Empty, Panel, ProblemNote, Shown } from './parts.js';
import { Table } from './table.js';
import * as words from './words.js';

const PAGE = 50;

export function Jobs({ path }) {
  return path[0] ? html`<${Job} key=${path[0]} id=${path[0]} />` : html`<${List} />`;
}

const NAMES = 'souk-models';

/** What models are called that this browser submitted, by hash. @returns {Record<string, string>} */
function modelNames() {
  return JSON.parse(localStorage.getItem(NAMES) ?? '{}');
}

/** @param {string} hash @param {string} name */
export function rememberModel(hash, name) {
  const kept = Object.entries(modelNames()).filter(([known]) => known !== hash).slice(-99);
  localStorage.setItem(NAMES, JSON.stringify(Object.fromEntries([...kept, [hash, name]])));
}

/** The model's own name where it is known, else the first of its hash. @param {string} model */
export function modelName(model) {
  if (!/^[0-9a-f]{64}$/.test(model)) return model.split('/').at(-1) ?? model;
  return modelNames()[model] ?? words.short(model);
}

function List() {
  const first = useAnswer(`/v1/jobs?limit=${PAGE}`, { topics: ['jobs'] });
  const [older, setOlder] = useState(/** @type {any[]} */ ([]));
  const [next, setNext] = useState(/** @type {string | null | undefined} */ (undefined));
  const [text, setText] = useState('');
  const cursor = next === undefined ? first.is?.next : next;
  const more = useAction(async () => {
    const page = await ask(`/v1/jobs?limit=${PAGE}&cursor=${encodeURIComponent(cursor)}`);
    setOlder((before) => [...before, ...page.items]);
    setNext(page.next);
  });
  return html`<h1>Jobs</h1>
    <${Shown} answer=${first}>${(is) => {
      const known = new Set(is.items.map((it) => it.id));
      const all = [...is.items, ...older.filter((it) => !known.has(it.id))];
      if (all.length === 0) {
        return html`<${Empty}>No jobs yet. <a href="#/submit">Submit one</a>, or type
          ${' '}<code>souk submit model.onnx -i x=x.npy -o out/</code>.<//>`;
      }
      const wanted = all.filter((it) => says(it).includes(text.toLowerCase()));
      const search = html`<label class="choice"><span>show those with</span>
        <input type="search" value=${text} size="14"
          onInput=${(event) => setText(event.target.value)} /></label>`;
      return html`<${Panel} title=${words.counted(all.length, 'job')} aside=${search}>
        <${JobTable} jobs=${wanted} />
        ${cursor && html`<div class="actions"><button type="button" disabled=${more.isBusy}
          onClick=${more.run}>Older ones</button></div>`}
        <${ProblemNote} problem=${more.problem} /><//>`;
    }}<//>`;
}

/** All that a filter looks at. @param {any} job */
function says(job) {
  return [job.id, words.STANDING[job.state], modelName(job.model), ...job.providers].join(' ').toLowerCase();
}

function JobTable({ jobs }) {
  const columns = [
    { name: 'job', cell: (it) => html`<a href=${`#/jobs/${it.id}`}><code>${it.id}</code></a>` },
    { name: 'state', value: (it) => it.state,
      cell: (it) => html`<${JobState} state=${it.state} />` },
    { name: 'begun', value: (it) => it.begun_at, first: 'down',
      cell: (it) => words.moment(it.begun_at) },
    { name: 'model', wide: true, value: (it) => modelName(it.model) },
    { name: 'paid', numeric: true, first: 'down', value: (it) => it.paid,
      cell: (it) => words.credits(it.paid) },
    { name: 'providers', wide: true, cell: (it) => it.providers.map(
      (name) => html`<div><${ProviderText} text=${name} /></div>`) },
    { name: 'attempts', wide: true, numeric: true, value: (it) => it.attempts },
  ];
  return html`<${Table} caption="Jobs" columns=${columns} rows=${jobs} sort="begun" isDown=${true}
    rowKey=${(it) => it.id} empty="None of the jobs says that." />`;
}

/** `name (device, emulated) 6e26aefe`, with what is emulated marked. */
function ProviderText({ text }) {
  const [, name, device, emulated, id] = /^(.*) \((.*?)(, emulated)?\) ([0-9a-f]+)$/.exec(text) ?? [];
  if (!id) return html`${text}`;
  return html`<span>${name} <span class=${emulated ? 'device emulated' : 'device'}>${device}${
    emulated && html` <span class="emulated-word">emulated</span>`}</span> <code>${id}</code></span>`;
}

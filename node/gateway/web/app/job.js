// One job: where its parts ran, when, what took the time, what it cost, and whether that holds.

import { html, useMemo, useState } from './view.js';
import { ask, save } from './ask.js';
import { Gantt } from './gantt.js';
import { Graph } from './graph.js';
import { modelName } from './jobs.js';
import { useAction, useAnswer, useNames } from './known.js';
import { Account, Device, Facts, Panel, ProblemNote, Shown, SureButton } from './parts.js';
import { PlanAlternatives, PlanParts, Refusals } from './plan.js';
import { Receipts } from './receipts.js';
import { Table } from './table.js';
import { endOf, Shares, Times, UNDER_WAY } from './times.js';
import * as words from './words.js';

/** What can be gone on with. */
const RESUMABLE = ['abandoned', 'interrupted', 'failed'];

export function JobState({ state }) {
  return html`<span class=${`state ${state}`}>${words.STANDING[state] ?? words.spaced(state)}</span>`;
}

export function Job({ id }) {
  const job = useAnswer(`/v1/jobs/${id}`, { topics: ['jobs', `job:${id}`] });
  return html`<h1>Job <code>${id}</code></h1>
    <${Shown} answer=${job}>${(is) => html`<${Told} job=${is} again=${job.again} />`}<//>`;
}

function Told({ job, again }) {
  const names = useNames();
  const happened = useAnswer(`/v1/jobs/${job.id}/events?limit=1000`, { topics: [`job:${job.id}`] });
  const events = happened.is?.items ?? [];
  // What is kept of a job comes with its first lease, and is whole when it is over.
  const step = `${job.state}-${job.attempts}`;
  const plan = useAnswer(job.attempts > 0 ? `/v1/jobs/${job.id}/plan` : null);
  const isOver = !UNDER_WAY.includes(job.state);
  const timeline = useAnswer(isOver && job.attempts > 0 ? `/v1/jobs/${job.id}/timeline` : null);
  const colours = useMemo(() => coloursOf(plan.is, job), [plan.is, step]);
  const facts = { names, colours, job, plan: plan.is, events };
  return html`<${Head} job=${job} events=${events} again=${again} />
    ${plan.is && html`<${Panel} title="Parts" aside="one colour for each provider; what is dashed is emulated">
      <${Graph} ...${facts} /><//>`}
    ${plan.is && html`<${Panel} title="Time" aside="measured, and under it as planned">
      <${Gantt} ...${facts} timeline=${timeline.is} />
      <div class="even"><div><h3>Where the time went</h3>
        <${Shares} job=${job} timeline=${timeline.is} events=${events} /></div>
        <div><h3>Planned and measured</h3>
        <${Times} job=${job} plan=${plan.is} timeline=${timeline.is} events=${events} /></div></div><//>`}
    <${Why} ...${facts} />
    <div class="even"><${Outputs} job=${job} /><${Receipts} job=${job} names=${names} /></div>
    <${Leases} job=${job} names=${names} /><${Happened} events=${events} names=${names} />`;
}

/** A number for each provider, in the order of the plan. @param {any} plan @param {any} job */
function coloursOf(plan, job) {
  /** @type {Map<string, number>} */
  const colours = new Map();
  const accounts = [...(plan?.parts ?? []), ...job.leases].map((it) => it.provider);
  for (const account of accounts) if (!colours.has(account)) colours.set(account, colours.size % 8);
  return colours;
}

function Head({ job, events, again }) {
  const change = (method, path) => async () => {
    await ask(`/v1/jobs/${job.id}${path}`, { method });
    again();
  };
  const cancel = useAction(change('DELETE', ''));
  const resume = useAction(change('POST', '/resume'));
  const trace = useAction(() => save(`/v1/jobs/${job.id}/trace`, `${job.id}-trace.json`));
  const end = endOf(job, events);
  const retries = events.filter((it) => it.event === 'retrying').length;
  const held = events.flatMap((it) => it.leases ?? []).reduce((sum, it) => sum + it.escrow, 0);
  return html`<${Panel} title=${html`<${JobState} state=${job.state} />`} class="job-head"
    aside=${html`<span title=${job.model}>${modelName(job.model)}</span>`}>
    <${Facts} rows=${[
      ['begun', words.moment(job.begun_at)],
      end && ['took', words.seconds((end - Date.parse(job.begun_at)) / 1000)],
      ['paid', html`<span class="paid">${words.credits(job.paid)}</span>`],
      ['held', html`${words.credits(job.escrow)}${held > 0 && job.escrow === 0
        ? html` <small class="inline">was ${words.credits(held)}</small>` : ''}`],
      ['attempts', job.attempts],
      retries > 0 && ['continued without', words.counted(retries, 'provider')],
    ]} />
    ${job.cause && html`<div class="problem"><strong>${job.cause}</strong></div>`}
    <div class="actions">
      ${UNDER_WAY.includes(job.state) && html`<${SureButton} label="Cancel" onSure=${cancel.run}
        isBusy=${cancel.isBusy} question="End its leases? What was used is paid, the rest returns." />`}
      ${RESUMABLE.includes(job.state) && html`<button type="button" class="first" disabled=${resume.isBusy}
        onClick=${resume.run}>Resume</button>`}
      ${job.attempts > 0 && !UNDER_WAY.includes(job.state) && html`<button type="button"
        onClick=${trace.run}>Save the trace</button><small>for ui.perfetto.dev</small>`}
    </div>
    <${ProblemNote} problem=${cancel.problem ?? resume.problem ?? trace.problem} /><//>`;
}

/** Why parts went where they did, which offers were refused, what went wrong.
 * @param {{plan: any, events: any[], names: Map<string, any>, job: any}} props */
function Why({ plan, events, names, job }) {
  const wrong = events.filter((it) => ['retrying', 'refused', 'not_commanded'].includes(it.event));
  if (!plan && wrong.length === 0 && !job.cause) return null;
  return html`<${Panel} title="Why it ran there" id="why">
    ${plan && html`<${PlanParts} plan=${plan} />
      <p>${words.counted(plan.asks_seen, 'offer')} seen, ${words.count(plan.asks_eligible)} of them
        suited.</p><${Refusals} refusals=${plan.not_eligible} /><${PlanAlternatives} plan=${plan} />`}
    ${wrong.length > 0 && html`<h3>What went wrong on the way</h3><ul>${wrong.map((it) => html`<li>${
      words.moment(it.at)} ${eventText(it, names)}</li>`)}</ul>`}<//>`;
}

function Outputs({ job }) {
  const fetched = useAction(async () => {});
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  const take = (output) => {
    const path = `/v1/jobs/${job.id}/outputs/${encodeURIComponent(output.name)}`;
    const file = `${output.name.replace(/[%/\\]/g, encodeURIComponent)}.npy`;
    save(path, file).then(() => setProblem(null), setProblem);
  };
  const columns = [
    { name: 'name', value: (it) => it.name },
    { name: 'array', cell: (it) => `${it.dtype} [${it.shape.join(', ')}]` },
    { name: 'size', numeric: true, value: (it) => it.bytes,
      cell: (it) => words.bytes(it.bytes) },
    { name: '', cell: (it) => html`<button type="button" class="small"
      disabled=${fetched.isBusy} onClick=${() => take(it)} aria-label=${`save ${it.name}`}>save</button>` },
  ];
  const nothing = job.state === 'done'
    ? 'They are where the command line wrote them, not at this gateway.'
    : 'They come when the job is done.';
  return html`<${Panel} title="Outputs">
    <${Table} caption="Outputs" columns=${columns} rows=${job.outputs} empty=${nothing} canSort=${false} />
    <${ProblemNote} problem=${problem} /><//>`;
}

function Leases({ job, names }) {
  const columns = [
    { name: 'lease', numeric: true, value: (it) => it.lease },
    { name: 'provider', cell: (it) => html`<${Account} account=${it.provider}
      name=${names.get(it.provider)?.name} />` },
    { name: 'device', cell: (it) => html`<${Device} device=${it.device} emulated=${it.emulated} />` },
    { name: 'state', value: (it) => it.state },
    { name: 'cost', numeric: true, value: (it) => it.cost,
      cell: (it) => words.credits(it.cost) },
    { name: 'held', numeric: true, wide: true, value: (it) => it.escrow,
      cell: (it) => words.credits(it.escrow) },
    { name: 'until', wide: true, cell: (it) => words.moment(it.ends_at) },
  ];
  return html`<${Panel} title="Leases"><${Table} caption="Leases" columns=${columns} rows=${job.leases}
    rowKey=${(it) => it.lease} empty="None is bought yet." /><//>`;
}

/** @param {any} is @param {Map<string, any>} names */
function eventText(is, names) {
  const called = (account) => names.get(account)?.name ?? words.short(account);
  const who = called(is.provider);
  const why = is.cause?.replace(/\b[0-9a-f]{64}\b/g, called);
  switch (is.event) {
    case 'leased': {
      const held = is.leases.reduce((sum, it) => sum + it.escrow, 0);
      return `${words.counted(is.leases.length, 'lease')} bought; ${words.credits(held)} held until settled`;
    }
    case 'fetched': return `${who} fetched ${words.bytes(is.bytes)}, ${is.pieces_cached} of ${
      words.counted(is.pieces, 'piece')} there already`;
    case 'ready': return `${who} is ready`;
    case 'running': return `${who} runs ${is.part}`;
    case 'finished': return `${who} is done`;
    case 'returned': return 'the outputs are here, checked and not yet paid';
    case 'signed': return `the receipt of lease ${is.lease} has both signatures: ${words.credits(is.paid)}`;
    case 'retrying': return `the job continues without ${who}: ${why}; ${
      words.counted(is.values_kept, 'value')} computed so far kept`;
    case 'refused': return `${who} is not paid: ${why}`;
    case 'not_commanded': return `lease ${is.lease} is left to the market's rules: ${why}`;
    default: return words.spaced(is.event);
  }
}

function Happened({ events, names }) {
  if (events.length === 0) return null;
  const columns = [
    { name: 'when', cell: (it) => new Date(it.at).toLocaleTimeString('en-GB',
      { hour: '2-digit', minute: '2-digit', second: '2-digit', fractionalSecondDigits: 3 }) },
    { name: 'what', cell: (it) => eventText(it, names) },
  ];
  return html`<${Panel} title="What happened"><div class="tall"><${Table} caption="Events" columns=${columns}
    rows=${events} canSort=${false} rowKey=${(it) => it.number} /></div><//>`;
}

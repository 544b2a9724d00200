// What a provider earned, when, and with what.

import { html, useMemo, useState } from './view.js';
import { ask } from './ask.js';
import { Chart } from './chart.js';
import { useAnswer, useNames, useTopic } from './known.js';
import { Account, Choice, Empty, Facts, Panel, PriceButton, ProblemNote, Shown } from './parts.js';
import { Table } from './table.js';
import * as words from './words.js';

const DAY = 86_400;
const STEPS = /** @type {[string, string][]} */ ([['5m', '5 min'], ['1h', 'hour'], ['1d', 'day']]);
/** Bars for each step at most: two hours, two days, thirty days. */
const BARS = /** @type {Record<string, [number, number]>} */ ({ '5m': [300, 24], '1h': [3600, 48], '1d': [DAY, 30] });

export function Earnings({ path }) {
  const names = useNames();
  const me = useTopic('account');
  // Who sells nothing looks at others.
  const [other] = names.keys();
  const account = path[0] ?? (me?.earned === 0 && other ? other : 'me');
  const all = /** @type {[string, string][]} */ ([['me', 'this gateway'],
    ...[...names.values()].map((it) => [it.account, `${it.name} ${words.short(it.account)}`])]);
  if (path[0] && path[0] !== 'me' && !names.has(path[0])) all.push([path[0], words.short(path[0])]);
  const choice = html`<${Choice} label="of" all=${all} value=${account}
    onChoose=${(is) => { location.hash = `#/earnings/${is}`; }} />`;
  return html`<h1>Earnings</h1><div class="actions">${choice}</div>
    <${Of} key=${account} account=${account} name=${names.get(account)?.name} />`;
}

function Of({ account, name }) {
  const [step, setStep] = useState('5m');
  const days = useAnswer(`/v1/providers/${account}/earnings?step=1d&steps=14`, { topics: ['market'] });
  const fine = useAnswer(`/v1/providers/${account}/earnings?step=${step}&steps=${BARS[step][1]}`, { topics: ['market'] });
  const known = useAnswer(account === 'me' ? '/v1/accounts/me' : `/v1/providers/${account}`, { topics: ['market'] });
  const purse = known.is?.account?.account ? known.is.account : known.is;
  return html`<${Shown} answer=${days}>${(is) => html`<${Panel} title=${purse
      ? html`<${Account} account=${purse.account} name=${purse.name || name} />` : 'Earned'}>
      <${Figures} steps=${is.steps} purse=${purse} />
      ${known.is?.asks?.[0] && html`<${Price} account=${account} price=${known.is.asks[0].price} />`}<//>`}<//>
    <${Panel} title="By time" aside=${html`<${Choice} label="each bar is" all=${STEPS} value=${step} onChoose=${setStep} />`}>
      <${Shown} answer=${fine}>${(is) => html`<${Bars} is=${is} step=${step} />`}<//><//>`;
}

/** Another price, where the gateway's owner sells. */
function Price({ account, price }) {
  const { is } = useAnswer('/v1/status');
  const [note, setNote] = useState(/** @type {any} */ (null));
  const set = (to) => ask(`/v1/providers/${account}`, { method: 'PATCH', json: { price: to } })
    .then(() => setNote(html`<p role="status">Asked soon.</p>`),
      (problem) => setNote(html`<${ProblemNote} problem=${problem} />`));
  return is?.scope === 'operate' && html`<div class="actions"><${PriceButton} label="Set the price" price=${price}
    onPrice=${set} />${note}</div>`;
}

/** The sum over the last so many days, today's included, and those before. */
function sumOf(steps, from, to, what) {
  const now = Date.now();
  return steps.filter((it) => {
    const age = (now - Date.parse(it.start)) / 1000 / DAY;
    return age >= from && age < to;
  }).reduce((sum, it) => sum + (it[what] ?? 0), 0);
}

function Figures({ steps, purse }) {
  const week = sumOf(steps, 0, 7, 'paid'), before = sumOf(steps, 7, 14, 'paid');
  const time = sumOf(steps, 0, 7, 'device_time');
  const change = before > 0 ? Math.round((week / before - 1) * 100) : null;
  return html`<${Facts} rows=${[
    ['in a day', html`<span class="earned-day">${words.credits(sumOf(steps, 0, 1, 'paid'))}</span>`],
    ['7 days', html`${words.credits(week)}${change == null ? '' : html` <small class="inline">${
      change >= 0 ? '+' : '\u2212'}${Math.abs(change)} % on the 7 before</small>`}`],
    ['device time in 7 days', words.seconds(time)],
    ['per hour at work', time > 0 ? words.credits(Math.round((week / time) * 3600)) : '–'],
    ['leases in 7 days', words.count(sumOf(steps, 0, 7, 'leases'))],
    purse && ['earned ever', words.credits(purse.earned)],
    purse && ['reputation', `${purse.reputation} of 1000`],
    purse && ['leases now', purse.leases_sold],
  ]} />`;
}

function Bars({ is, step }) {
  const drawing = useMemo(() => drawingOf(is.steps, step), [is, step]);
  if (is.steps.length === 0) return html`<${Empty}>Nothing was earned yet. A provider's first lease shows here as
    soon as it is paid.<//>`;
  const columns = [
    { name: 'from', value: (it) => it.start, first: 'down', cell: (it) => words.moment(it.start) },
    { name: 'class', wide: true, value: (it) => it.class, cell: (it) => it.class ?? 'forgotten' },
    { name: 'earned', numeric: true, value: (it) => it.paid, cell: (it) => words.credits(it.paid) },
    { name: 'leases', numeric: true, value: (it) => it.leases },
    { name: 'device time', numeric: true, value: (it) => it.device_time, cell: (it) => words.seconds(it.device_time) },
  ];
  return html`<${Chart} label="Credits, by class" drawing=${drawing} table=${html`<${Table} caption="Earnings by time"
    columns=${columns} rows=${is.steps} sort="from" isDown=${true} />`} />`;
}

/** @param {any[]} steps @param {string} step */
function drawingOf(steps, step) {
  const [length, count] = BARS[step];
  const last = Math.floor(Date.now() / 1000 / length) * length;
  const xs = Array.from({ length: count }, (_, place) => last - (count - 1 - place) * length);
  const key = (start, name) => `${Math.floor(start / length)} ${name}`;
  const paid = new Map(steps.map((it) => [key(Date.parse(it.start) / 1000, it.class), it.paid]));
  const classes = [...new Set(steps.map((it) => it.class))].sort();
  return {
    xs,
    xRange: /** @type {[number, number]} */ ([xs[0] - length, last + length]),
    step: length,
    isTime: true,
    x: length === DAY ? (value) => new Date(value * 1000).toLocaleDateString('en-CA').slice(5) : words.timeOfDay,
    y: (value) => words.finePrice(value * 1e6),
    series: classes.map((name, place) => ({ label: name ?? 'class forgotten', tone: String(place % 6),
      kind: 'bars',
      values: xs.map((x) => (paid.has(key(x, name)) ? paid.get(key(x, name)) / 1e6 : null)) })),
  };
}

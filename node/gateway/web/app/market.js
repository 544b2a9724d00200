// What computing time costs: the classes, the book of one, its prices over time, what is on offer.

import { html, useMemo, useState } from './view.js';
import { Chart } from './chart.js';
import { useAnswer, useTopic } from './known.js';
import { Account, Choice, Device, Empty, Panel, Shown } from './parts.js';
import { Table } from './table.js';
import * as words from './words.js';

const DTYPES = /** @type {[string, string][]} */ (
  ['f32', 'f16', 'bf16', 'f64', 'int8', 'int4'].map((it) => [it, it]));
const STEPS = /** @type {[string, string][]} */ ([['60', '1 min'], ['300', '5 min'], ['3600', '1 h']]);
const OFFERED_MAX = 200;

/** The class that is looked at: that of the address, else where something happens. */
function chosenOf(classes, named) {
  return classes.find((it) => it.class === named)
    ?? classes.toSorted((a, b) => (b.ask ? 1 : 0) - (a.ask ? 1 : 0) || b.volume - a.volume)[0];
}

export function Market({ path }) {
  const asked = useAnswer('/v1/market/classes');
  const told = useTopic('market');
  const [dtype, setDtype] = useState('f32');
  const classes = told ?? asked.is;
  const chosen = classes?.length > 0 ? chosenOf(classes, path[0]) : null;
  // Kept as they are when only the classes' own figures change.
  const book = useMemo(() => chosen && html`<${Book} key=${chosen.class} name=${chosen.class} />`, [chosen?.class]);
  const offers = useMemo(() => html`<${Offers} dtype=${dtype} setDtype=${setDtype} />`, [dtype]);
  return html`<h1>Market</h1>
    <${Shown} answer=${{ ...asked, is: classes }}>${() => (chosen
      ? html`<${Classes} classes=${classes} chosen=${chosen} dtype=${dtype} />${book}${offers}`
      : html`<${Empty}>Nothing was ever on offer here. To sell: <code>souk provider init</code>, then
          ${' '}<code>souk provider run</code>.<//>`)}<//>`;
}

function Classes({ classes, chosen, dtype }) {
  const index = (it) => it.index.per_tera_operation[dtype];
  const columns = [
    { name: 'class', value: (it) => it.class,
      cell: (it) => html`<a href=${`#/market/${it.class}`}
        class=${it.emulated ? 'device emulated' : 'device'}
        aria-current=${it === chosen ? 'true' : undefined}>${words.className(it)}${
        it.emulated && html` <span class="emulated-word">emulated</span>`}</a>` },
    { name: 'best bid', numeric: true, wide: true, value: (it) => it.bid?.price,
      cell: (it) => words.credits(it.bid?.price) },
    { name: 'best ask', numeric: true, value: (it) => it.ask?.price,
      cell: (it) => words.credits(it.ask?.price) },
    { name: 'spread', numeric: true, wide: true,
      value: (it) => (it.ask && it.bid ? it.ask.price - it.bid.price : null),
      cell: (it) => words.credits(it.ask && it.bid ? it.ask.price - it.bid.price : null) },
    { name: 'last trade', numeric: true, wide: true, value: (it) => it.last?.price,
      cell: (it) => (it.last ? html`${words.credits(it.last.price)}
        <small>${words.moment(it.last.at)}</small>` : '–') },
    { name: 'units in 24 h', numeric: true, wide: true, first: 'down',
      value: (it) => it.volume },
    { name: `per Top, ${dtype}`, numeric: true, value: index,
      cell: (it) => words.finePrice(index(it) == null ? null : index(it) / 1000) },
  ];
  return html`<${Panel} title="Classes" aside="credits for a second of a device">
    <${Table} caption="Classes of devices" columns=${columns} rows=${classes}
      rowKey=${(it) => it.class} isChosen=${(it) => it === chosen} />
    <p class="note">The last column is what a million million operations cost in the trades of late.</p>
  <//>`;
}

function Book({ name }) {
  const depth = useTopic(`depth:${name}`);
  const trades = useTopic(`trades:${name}`);
  const [step, setStep] = useState('60');
  const candles = useAnswer(`/v1/market/classes/${name}/candles?step=${step}`,
    { topics: [`trades:${name}`] });
  return html`<div class="three">
    <${Panel} title="Depth">${depth ? html`<${Depth} depth=${depth} />` : html`<p class="awaited">…</p>`}<//>
    <${Panel} title="Price, 24 h" aside=${html`<${Choice} label="candles of" all=${STEPS} value=${step}
      onChoose=${setStep} />`}>
      <${Shown} answer=${candles}>${(is) => html`<${Candles} view=${is} />`}<//><//>
    <${Panel} title="Trades">${trades ? html`<${Trades} trades=${trades.trades} />`
      : html`<p class="awaited">…</p>`}<//>
  </div>`;
}

/** What is there at a price or better. @param {any[]} levels */
function summed(levels) {
  let sum = 0;
  return levels.map((level) => ({ ...level, sum: (sum += level.units) }));
}

function Depth({ depth }) {
  const bids = summed(depth.bids), asks = summed(depth.asks);
  const drawing = useMemo(() => depthDrawing(bids, asks), [depth]);
  if (bids.length + asks.length === 0) return html`<${Empty}>Nobody asks or bids in this class now.<//>`;
  const rows = [
    ...bids.map((level) => ({ ...level, side: 'bid' })),
    ...asks.map((level) => ({ ...level, side: 'ask' })),
  ];
  const columns = [
    { name: 'side', value: (it) => it.side },
    { name: 'price', numeric: true, value: (it) => it.price,
      cell: (it) => words.credits(it.price) },
    { name: 'units', numeric: true, value: (it) => it.units },
    { name: 'at this or better', numeric: true, value: (it) => it.sum },
  ];
  return html`<${Best} depth=${depth} />
    <${Chart} label="Units by price" drawing=${drawing} height=${180} table=${html`<${Table}
      caption="Asks and bids by price" columns=${columns} rows=${rows} />`} />`;
}

function Best({ depth }) {
  const ask = depth.asks[0]?.price, bid = depth.bids[0]?.price;
  const spread = ask != null && bid != null ? ask - bid : null;
  return html`<dl class="facts inline">
    <div><dt>best bid</dt><dd class="best-bid">${words.credits(bid)}</dd></div>
    <div><dt>best ask</dt><dd class="best-ask">${words.credits(ask)}</dd></div>
    <div><dt>spread</dt><dd>${words.credits(spread)}</dd></div></dl>`;
}

/** @param {any[]} bids @param {any[]} asks */
function depthDrawing(bids, asks) {
  const prices = [...bids, ...asks].map((level) => level.price / 1e6);
  const least = Math.min(...prices), most = Math.max(...prices);
  const room = Math.max((most - least) * 0.2, most * 0.1);
  const xRange = /** @type {[number, number]} */ ([Math.max(0, least - room), most + room]);
  const xs = [...new Set([xRange[0], ...prices, xRange[1]])].sort((a, b) => a - b);
  // Bids are there at their price and below, asks at theirs and above.
  const bidAt = (x) => bids.findLast((it) => it.price / 1e6 >= x)?.sum ?? null;
  const askAt = (x) => asks.findLast((it) => it.price / 1e6 <= x)?.sum ?? null;
  return {
    xs,
    xRange,
    isTime: false,
    x: (value) => words.credits(Math.round(value * 1e6)),
    y: (value) => (Number.isInteger(value) ? words.count(value) : ''),
    series: [
      { label: 'bids', tone: 'up', kind: 'bids', values: xs.map(bidAt) },
      { label: 'asks', tone: 'down', kind: 'asks', values: xs.map(askAt) },
    ],
  };
}

function Candles({ view }) {
  const drawing = useMemo(() => candleDrawing(view.candles), [view]);
  if (view.candles.length === 0) return html`<${Empty}>No trade in this class within a day.<//>`;
  const price = (name) => ({ name, numeric: true,
    value: (it) => it[name], cell: (it) => words.credits(it[name]) });
  const columns = [
    { name: 'from', value: (it) => it.start, cell: (it) => words.moment(it.start) },
    price('open'), price('high'), price('low'), price('close'),
    { name: 'units', numeric: true, value: (it) => it.units },
  ];
  return html`<${Chart} label="Credits a device-second" drawing=${drawing} height=${220}
    table=${html`<${Table} caption="Prices over time" columns=${columns} rows=${view.candles}
      sort="from" isDown=${true} />`} />`;
}

/** @param {any[]} candles */
function candleDrawing(candles) {
  const of = (name) => candles.map((it) => it[name] / 1e6);
  const xs = candles.map((it) => Date.parse(it.start) / 1000);
  const gaps = xs.slice(1).map((x, place) => x - xs[place]);
  const step = gaps.length > 0 ? Math.min(...gaps) : 60;
  return {
    xs,
    xRange: /** @type {[number, number]} */ ([xs[0] - step * 4, xs[xs.length - 1] + step * 4]),
    step,
    isTime: true,
    x: words.timeOfDay,
    y: (value) => words.finePrice(value * 1e6),
    series: [{ label: 'hollow: up or same; full: down', tone: 'ink', kind: 'candles',
      values: of('close'),
      candles: { open: of('open'), high: of('high'), low: of('low'), close: of('close') } }],
  };
}

function Trades({ trades }) {
  const columns = [
    { name: 'when', value: (it) => it.at, cell: (it) => words.moment(it.at) },
    { name: 'price', numeric: true, value: (it) => it.price,
      cell: (it) => words.credits(it.price) },
    { name: 'units', numeric: true, value: (it) => it.units },
  ];
  return html`<div class="tall"><${Table} caption="The last trades" columns=${columns}
    rows=${trades.slice(0, 64)} canSort=${false} empty="No trade in this class yet." /></div>`;
}

function Offers({ dtype, setDtype }) {
  const [kind, setKind] = useState('');
  const [real, setReal] = useState('');
  const filter = [kind && `kind=${kind}`, real && `real=${real}`, `limit=${OFFERED_MAX}`];
  const answer = useAnswer(`/v1/market/asks?${filter.filter(Boolean).join('&')}`, { topics: ['market'] });
  const kinds = /** @type {[string, string][]} */ ([['', 'any kind'],
    ...['cpu', 'gpu', 'tpu', 'npu', 'lpu', 'fpga', 'dsp', 'wasm'].map((it) => [it, it])]);
  const reals = /** @type {[string, string][]} */ ([['', 'real and emulated'], ['true', 'real only']]);
  const aside = html`<${Choice} label="kind" all=${kinds} value=${kind} onChoose=${setKind} />
    <${Choice} label="devices" all=${reals} value=${real} onChoose=${setReal} />
    <${Choice} label="figures for" all=${DTYPES} value=${dtype} onChoose=${setDtype} />`;
  return html`<${Panel} title="On offer" aside=${aside} id="offers">
    <${Shown} answer=${answer}>${(is) => html`
      <${OfferTable} asks=${is.items} dtype=${dtype} />
      ${is.next && html`<p class="note">The ${words.count(OFFERED_MAX)} cheapest are shown; choose a kind
        to see fewer of others.</p>`}`}<//><//>`;
}

function OfferTable({ asks, dtype }) {
  const speed = (it) => it.throughput[dtype] || null;
  const dear = (it) => words.perTera(it.price, speed(it));
  const columns = [
    { name: 'device', value: (it) => it.device,
      cell: (it) => html`<${Device} device=${it.device} emulated=${it.emulated} />` },
    { name: 'provider', value: (it) => it.provider_name, wide: true,
      cell: (it) => html`<a href=${`#/earnings/${it.provider}`}><${Account}
        account=${it.provider} name=${it.provider_name} /></a>` },
    { name: 'price', numeric: true, value: (it) => it.price,
      cell: (it) => words.credits(it.price) },
    { name: `per Top, ${dtype}`, numeric: true, value: dear,
      cell: (it) => words.finePrice(dear(it)) },
    { name: dtype, numeric: true, wide: true, first: 'down', value: speed,
      cell: (it) => words.throughput(speed(it)) },
    { name: 'memory', numeric: true, wide: true, first: 'down',
      value: (it) => it.memory_bytes,
      cell: (it) => words.bytes(it.memory_bytes) },
    { name: 'power', numeric: true, wide: true, value: (it) => it.power_milliwatts || null,
      cell: (it) => words.watts(it.power_milliwatts) },
    { name: 'notice', numeric: true, wide: true, value: (it) => it.notice,
      cell: (it) => words.seconds(it.notice) },
    { name: 'reputation', numeric: true, wide: true, first: 'down',
      value: (it) => it.reputation },
    { name: 'units', numeric: true, wide: true, value: (it) => it.units },
    { name: '', cell: (it) => html`<a href=${`#/submit?device=${
      encodeURIComponent(it.device)}`} aria-label=${`use ${it.device} for a job`}>use</a>` },
  ];
  return html`<${Table} caption="What is on offer" columns=${columns} rows=${asks} sort=${`per Top, ${dtype}`}
    rowKey=${(it) => it.order}
    empty="Nothing of that is on offer now." />`;
}

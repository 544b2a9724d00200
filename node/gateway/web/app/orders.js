// Orders by hand: bids of this account, what rests in the books, and the leases that came of them.

import { html, useState } from './view.js';
import { ask } from './ask.js';
import { useAction, useAnswer, useNames } from './known.js';
import { Account, Device, Panel, PriceButton, ProblemNote, Shown, SureButton } from './parts.js';
import { Table } from './table.js';
import * as words from './words.js';

const ORDERS = '/v1/market/orders';
const REST = /** @type {[string, string][]} */ ([['gtc', 'until it is cancelled'], ['ioc', 'not at all'],
  ['fok', 'not at all, and all at once or nothing']]);

export function Orders() {
  const orders = useAnswer(`${ORDERS}?limit=200`, { topics: ['account', 'market'] });
  return html`<h1>Orders</h1>
    <${Bid} placed=${orders.again} />
    <${Resting} answer=${orders} />
    <${OpenLeases} /><${ClosedLeases} />`;
}

function Bid({ placed }) {
  const classes = useAnswer('/v1/market/classes', { topics: ['market'] });
  const [is, setIs] = useState({ class: '', price: '', units: '1', duration: '60', budget: '', tif: 'gtc', spot: false });
  const [key, setKey] = useState(() => crypto.randomUUID());
  const [done, setDone] = useState(/** @type {any} */ (null));
  const change = (name) => (event) => {
    const { type, checked, value } = event.target;
    setIs((before) => ({ ...before, [name]: type === 'checkbox' ? checked : value }));
    setKey(crypto.randomUUID());
  };
  const chosen = is.class || classes.is?.[0]?.class || '';
  const place = useAction(async () => {
    setDone(null);
    const came = await ask(ORDERS, { method: 'POST', headers: { 'idempotency-key': key }, json: {
      side: 'bid', class: chosen, price: Math.round(Number(is.price) * 1e6), units: Number(is.units),
      duration: Number(is.duration), tif: is.tif, spot: is.spot,
      ...(is.budget === '' ? {} : { budget: Math.round(Number(is.budget) * 1e6) }),
    } });
    setKey(crypto.randomUUID());
    setDone(came);
    placed();
  });
  const most = Number(is.price) * Number(is.units) * Number(is.duration);
  const number = { type: 'number', min: '0', step: 'any', inputmode: 'decimal' };
  const field = (name, label, more = {}) => html`<label class="field"><span>${label}</span><input name=${name}
    value=${is[name]} onInput=${change(name)} ...${number} ...${more} /></label>`;
  return html`<${Panel} title="Bid" aside="jobs bid by themselves; this is for leases without one">
    <form onSubmit=${(event) => { event.preventDefault(); place.run(); }}><div class="fields">
      <label class="field broad"><span>class</span><select name="class" onChange=${change('class')}>${(classes.is ?? [])
        .map((it) => html`<option value=${it.class} selected=${it.class === chosen}>${words.className(it)}${
          it.emulated ? ' · emulated' : ''}${it.ask ? `, from ${words.credits(it.ask.price)}` : ''}</option>`)}</select></label>
      ${field('price', 'credits a second, at most', { required: true })}
      ${field('units', 'devices', { min: '1', step: '1' })}
      ${field('duration', 'seconds of each lease', { min: '1' })}
      ${field('budget', 'credits for all, at most', { placeholder: most > 0 ? words.credits(Math.round(most * 1e6)) : '' })}
      <label class="field"><span>rests in the book</span><select name="tif" onChange=${change('tif')}>${REST.map(
        ([value, text]) => html`<option value=${value} selected=${value === is.tif}>${text}</option>`)}</select></label></div>
      <div class="actions"><label class="tick"><input type="checkbox" checked=${is.spot} onChange=${change('spot')} />
        take a lease that may be taken back</label></div>
      <div class="actions"><button class="first" disabled=${place.isBusy || chosen === ''}>Place the bid</button>
        <span class="note">${most > 0 ? `Holds up to ${words.credits(Math.round(most * 1e6))} credits until it is
        cancelled or its leases are settled.` : ''}</span></div></form>
    ${done && html`<p role="status" class="placed">Order ${done.order}: ${words.counted(done.trades.length, 'lease')}
      bought at once, ${words.counted(done.resting, 'unit')} ${done.resting === 1 ? 'rests' : 'rest'} in the book.</p>`}
    <${ProblemNote} problem=${place.problem} /><//>`;
}

/** What changes an answer, which is then asked anew. @returns {[any, (path: string, how: any) => any]} */
function useChange(answer) {
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  return [problem, (path, how) => ask(path, how).then(() => setProblem(null), setProblem).then(answer.again)];
}

function Resting({ answer }) {
  const [problem, change] = useChange(answer);
  const columns = [
    { name: 'order', numeric: true, value: (it) => it.order },
    { name: 'side', value: (it) => it.side },
    { name: 'class', value: (it) => it.class, cell: (it) => html`<a href=${`#/market/${it.class}`}>${it.class}</a>` },
    { name: 'price', numeric: true, value: (it) => it.price,
      cell: (it) => (it.price == null ? 'any' : words.credits(it.price)) },
    { name: 'units', numeric: true, value: (it) => it.units },
    { name: 'held', numeric: true, wide: true, value: (it) => it.held, cell: (it) => words.credits(it.held) },
    { name: 'until', wide: true, value: (it) => it.expires_at,
      cell: (it) => (it.expires_at ? words.moment(it.expires_at) : 'it is cancelled') },
    { name: '', cell: (it) => html`<${SureButton} label="Cancel" question="Take it out of the book?"
      onSure=${() => change(`${ORDERS}/${it.order}`, { method: 'DELETE' })} /> ${it.price != null && html`<${PriceButton} label="Reprice"
      price=${it.price} onPrice=${(price) => change(`${ORDERS}/${it.order}`, { method: 'PATCH',
      json: { price } })} />`}` },
  ];
  return html`<${Panel} title="In the books" id="resting"><${Shown} answer=${answer}>${(is) => html`<${Table}
    caption="Orders that rest" columns=${columns} rows=${is.items} rowKey=${(it) => it.order}
    empty="No order of this account rests in a book." />`}<//><${ProblemNote} problem=${problem} /><//>`;
}

function OpenLeases() {
  const names = useNames();
  const answer = useAnswer('/v1/leases?limit=200', { topics: ['account'] });
  const [problem, change] = useChange(answer);
  const sell = (lease, price) => change(ORDERS, { method: 'POST', json: { side: 'ask', lease, price },
    headers: { 'idempotency-key': crypto.randomUUID() } });
  const columns = [
    { name: 'lease', numeric: true, value: (it) => it.lease },
    { name: 'provider', cell: (it) => html`<${Account} account=${it.provider} name=${names.get(it.provider)?.name} />` },
    { name: 'device', value: (it) => it.device,
      cell: (it) => html`<${Device} device=${it.device} emulated=${it.emulated} />` },
    { name: 'state', value: (it) => it.state },
    { name: 'price', numeric: true, wide: true, value: (it) => it.price, cell: (it) => words.credits(it.price) },
    { name: 'held', numeric: true, value: (it) => it.escrow, cell: (it) => words.credits(it.escrow) },
    { name: 'until', wide: true, value: (it) => it.ends_at, cell: (it) => words.moment(it.ends_at) },
    { name: '', cell: (it) => html`<${Resale} lease=${it} sell=${sell} /> <${SureButton} label="End" onSure=${() => change(`/v1/leases/${it.lease}/end`, { method: 'POST' })}
      question="What was used is paid, the rest returns." />` },
  ];
  return html`<${Panel} title="Leases, open"><${Shown} answer=${answer}>${(is) => html`<${Table} caption="Open leases"
    columns=${columns} rows=${is.items} rowKey=${(it) => it.lease} empty="None is open." />`}<//>
    <${ProblemNote} problem=${problem} /><//>`;
}

/** Offers the rest of a lease to others. */
function Resale({ lease, sell }) {
  if (lease.resale_order != null) return html`<small>its rest is offered as order ${lease.resale_order}</small>`;
  return html`<${PriceButton} label="Sell the rest" price=${lease.price} onPrice=${(price) => sell(lease.lease, price)} />`;
}

function ClosedLeases() {
  const names = useNames();
  const answer = useAnswer('/v1/leases/closed?limit=50', { topics: ['account'] });
  return html`<${Panel} title="Leases, closed" aside="the newest 50"><${Shown} answer=${answer}>${(is) => html`<${LeaseTable}
    leases=${is.items} names=${names} />`}<//><//>`;
}

/** Leases that are closed. */
export function LeaseTable({ leases, names, isSold = false }) {
  const other = (it) => (isSold ? it.buyer : it.provider);
  const columns = [
    { name: 'closed', value: (it) => it.at, first: 'down', cell: (it) => words.moment(it.at) },
    { name: 'lease', numeric: true, value: (it) => it.lease },
    { name: isSold ? 'buyer' : 'provider', wide: true, cell: (it) => html`<${Account} account=${other(it)}
      name=${names.get(other(it))?.name} />` },
    { name: 'device', wide: true, value: (it) => it.device,
      cell: (it) => it.device && html`<${Device} device=${it.device} emulated=${it.emulated} />` },
    { name: 'device time', numeric: true, value: (it) => it.device_time, cell: (it) => words.seconds(it.device_time) },
    { name: 'paid', numeric: true, value: (it) => it.paid, cell: (it) => words.credits(it.paid) },
    { name: 'returned', numeric: true, wide: true, value: (it) => it.refunded, cell: (it) => words.credits(it.refunded) },
    { name: 'ended by', value: (it) => it.reason, cell: (it) => words.spaced(it.reason) },
  ];
  return html`<${Table} caption="Closed leases" columns=${columns} rows=${leases} sort="closed" isDown=${true}
    rowKey=${(it) => it.lease} empty="None is closed yet." />`;
}

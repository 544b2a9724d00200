// What the gateway's account has, and every movement that made it so.

import { html, useState } from './view.js';
import { ask } from './ask.js';
import { useAction, useAnswer, useNames, useTopic } from './known.js';
import { Account, Facts, Panel, ProblemNote, Shown } from './parts.js';
import { Table } from './table.js';
import * as words from './words.js';

const PAGE = 50;

export function AccountPage() {
  const asked = useAnswer('/v1/accounts/me');
  const told = useTopic('account');
  return html`<h1>Account</h1>
    <${Shown} answer=${{ ...asked, is: told ?? asked.is }}>${(is) => html`<${Purse} is=${is} />`}<//>
    <${Statement} />
    <${Totals} />`;
}

function Purse({ is }) {
  return html`<${Panel} title=${html`<${Account} account=${is.account} name=${is.name} />`} id="purse">
    <${Facts} rows=${[
      ['to spend', html`<span class="available">${words.credits(is.available)}</span>`],
      ['held for orders and leases', words.credits(is.escrow)],
      is.stake > 0 && ['stake', words.credits(is.stake)],
      ['earned', words.credits(is.earned)],
      ['open orders', words.count(is.open_orders)],
      ['leases bought and sold, open', `${is.leases_bought}, ${is.leases_sold}`],
      ['reputation', `${is.reputation} of 1000`],
    ]} />
    ${is.frozen && html`<div class="problem"><strong>The account is frozen: ${is.frozen}</strong></div>`}
    <p class="note">Its whole name: <code class="whole">${is.account}</code>. To put credits in or take them out:
      ${' '}<code>souk account deposit</code>, <code>souk account withdraw</code>.</p><//>`;
}

/** What moved credits, in words. @param {any} cause @param {Map<string, any>} names */
function causeText(cause, names) {
  if (typeof cause === 'string') return words.spaced(cause);
  const [[kind, is]] = Object.entries(cause);
  const who = (account) => names.get(account)?.name ?? words.short(account);
  switch (kind) {
    case 'traded': return `lease ${is.lease} bought of ${who(is.provider)} at ${words.credits(is.price)
      } a second: ${words.credits(is.escrow)} held`;
    case 'lease_closed': return `lease ${is.lease} of ${who(is.provider)} closed by ${words.spaced(is.reason)}: ${
      words.credits(is.paid)} paid, ${words.credits(is.refunded)} back`;
    case 'rested': return `order ${is.order} rests: ${is.side} of ${words.counted(is.quantity, 'unit')} at ${
      words.credits(is.price)}`;
    case 'order_closed': return `order ${is.order} ${words.spaced(is.reason)}`;
    default: return [words.spaced(kind), ...Object.entries(is ?? {})
      .filter(([name, value]) => name !== 'account' && typeof value !== 'object')
      .map(([name, value]) => `${words.spaced(name)} ${/amount|price|escrow|paid/.test(name)
        ? words.credits(value) : /^[0-9a-f]{64}$/.test(String(value)) ? words.short(value) : value}`)].join(', ');
  }
}

function Statement() {
  const names = useNames();
  const first = useAnswer(`/v1/accounts/me/statement?limit=${PAGE}`, { topics: ['account'] });
  const [older, setOlder] = useState(/** @type {any} */ (null));
  const cursor = older ? older.next : first.is?.next;
  const more = useAction(async () => {
    const page = await ask(`/v1/accounts/me/statement?limit=${PAGE}&cursor=${encodeURIComponent(cursor)}`);
    setOlder((before) => ({ items: [...(before?.items ?? []), ...page.items], next: page.next }));
  });
  const change = (name) => ({ name, numeric: true,
    cell: (it) => signed(it.after[name] - it.before[name]) });
  const columns = [
    { name: 'when', cell: (it) => words.moment(it.at) },
    { name: 'what', cell: (it) => it.causes.map((cause) => html`<div>${causeText(cause, names)}</div>`) },
    { ...change('available'), name: 'to spend' },
    { ...change('escrow'), name: 'held', wide: true },
    { name: 'then to spend', numeric: true, wide: true, cell: (it) => words.ledger(it.after.available) },
    { name: 'then held', numeric: true, wide: true, cell: (it) => words.ledger(it.after.escrow) },
  ];
  return html`<${Panel} title="Statement" aside="the newest first"><${Shown} answer=${first}>${(is) => {
    const known = new Set(is.items.map((it) => it.place));
    const rows = [...is.items, ...(older?.items ?? []).filter((it) => !known.has(it.place))];
    return html`<${Table} caption="Movements of credits" columns=${columns} rows=${rows} canSort=${false}
      rowKey=${(it) => it.place} empty="Nothing moved yet." />
      ${cursor && html`<div class="actions"><button type="button" disabled=${more.isBusy}
        onClick=${more.run}>Older ones</button></div>`}<${ProblemNote} problem=${more.problem} />`;
  }}<//><//>`;
}

/** @param {number} change in micro-credits */
function signed(change) {
  return change === 0 ? '' : `${change > 0 ? '+' : ''}${words.ledger(change)}`;
}

function Totals() {
  const answer = useAnswer('/v1/market/totals', { topics: ['account', 'market'] });
  return html`<${Panel} title="All credits of this market"><${Shown} answer=${answer}>${(is) => html`
    <p class="sum">${words.credits(is.available)} to spend + ${words.credits(is.escrow)} held +
      ${' '}${words.credits(is.stake)} stake + ${words.credits(is.fees)} fees = ${words.credits(is.deposits)} put in ${'\u2212'}
      ${' '}${words.credits(is.withdrawals)} taken out ${is.balanced
      ? html`<span class="verdict good">✓ it adds up</span>`
      : html`<span class="verdict bad">✗ it does not add up</span>`}</p>`}<//><//>`;
}

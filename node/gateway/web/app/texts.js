// Models by the token: what providers sell, what it costs, and what each key of ours has spent.

import { html } from './view.js';
import { useAnswer } from './known.js';
import { Account, Empty, Panel, Shown } from './parts.js';
import { Table } from './table.js';
import * as words from './words.js';

// What keys spend stands in a file, of which no topic tells.
const KEYS_MS = 2_000;

export function Texts() {
  const offers = useAnswer('/v1/market/texts', { topics: ['market'] });
  const keys = useAnswer('/v1/text-keys', { every: KEYS_MS });
  return html`<h1>Models</h1>
    <${Panel} title="Offers by the token" aside="credits for a million tokens">
      <${Shown} answer=${offers}>${(is) => html`<${Offers} all=${is} />`}<//><//>
    <${Panel} title="Keys" aside="credits">
      <${Shown} answer=${keys}>${(is) => html`<${Keys} all=${is} />`}<//><//>`;
}

function Offers({ all }) {
  if (all.length === 0) {
    return html`<${Empty}>No provider has a free slot of a model now. To sell one:
      ${' '}<code>souk provider init --endpoint URL --model ID --out PRICE</code>.<//>`;
  }
  const columns = [
    { name: 'model', value: (it) => it.model },
    { name: 'provider', value: (it) => it.provider_name,
      cell: (it) => html`<${Account} account=${it.provider} name=${it.provider_name} />` },
    { name: 'input', numeric: true, value: (it) => it.price.input_per_million,
      cell: (it) => words.credits(it.price.input_per_million) },
    { name: 'cached', numeric: true, wide: true, value: (it) => it.price.cached_per_million,
      cell: (it) => words.credits(it.price.cached_per_million) },
    { name: 'output', numeric: true, value: (it) => it.price.output_per_million,
      cell: (it) => words.credits(it.price.output_per_million) },
    { name: 'free slots', numeric: true, value: (it) => it.free_slots },
    { name: 'reputation', numeric: true, wide: true, value: (it) => it.reputation },
    { name: 'engine', wide: true, value: (it) => (it.resold ? 'resold' : 'own') },
  ];
  return html`<${Table} caption="Offers of models" columns=${columns} rows=${all}
      rowKey=${(it) => it.ask} />
    <p class="note">To buy from all of them with OpenAI's clients: <code>souk openai</code>.</p>`;
}

/** The budget of a key in words. */
function budget(it) {
  if (it.budget == null) return 'none of its own';
  return html`${words.credits(it.budget)}${it.budget_resets === 'never' ? '' : ` a ${it.budget_resets}`}`;
}

/** The rates of a key in words. */
function rates(it) {
  const all = [[it.requests_per_minute, 'requests'], [it.tokens_per_minute, 'tokens']];
  const limited = all.filter(([most]) => most != null);
  const rates = limited.map(([most, what]) => `${words.count(most)} ${what}`).join(', ') || 'any';
  return `${rates}; ${words.count(it.requests_at_once)} at once`;
}

function Keys({ all }) {
  if (all.length === 0) {
    return html`<${Empty}>No key is issued. To let others use this account within a budget:
      ${' '}<code>souk openai key add NAME --budget 5/month</code>.<//>`;
  }
  const columns = [
    { name: 'name', value: (it) => it.name,
      cell: (it) => html`${it.name}${it.revoked && html` <small>revoked</small>`}` },
    { name: 'budget', numeric: true, value: (it) => it.budget, cell: budget },
    { name: 'spent', numeric: true, first: /** @type {const} */ ('down'), value: (it) => it.spent,
      cell: (it) => words.credits(it.spent) },
    { name: 'held', numeric: true, value: (it) => it.held, cell: (it) => words.credits(it.held) },
    { name: 'left', numeric: true, value: (it) => it.left, cell: (it) => words.credits(it.left) },
    { name: 'requests', numeric: true, wide: true, value: (it) => it.requests,
      cell: (it) => words.count(it.requests) },
    { name: 'tokens in, out', numeric: true, wide: true,
      value: (it) => it.input_tokens + it.output_tokens,
      cell: (it) => `${words.count(it.input_tokens)}, ${words.count(it.output_tokens)}` },
    { name: 'models', wide: true, value: (it) => it.models.join(', ') || 'all' },
    { name: 'a minute', wide: true, value: rates },
  ];
  return html`<${Table} caption="Keys" columns=${columns} rows=${all} sort="spent" isDown=${true}
      rowKey=${(it) => it.id} />
    <p class="note">Left is what is not spent or held in the current day or month, if the budget is
      for one.</p>`;
}

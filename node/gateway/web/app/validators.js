// The validators: who leads, how far each is, and whether all have the same book.

import { html } from './view.js';
import { useAnswer, useTopic } from './known.js';
import { Account, Facts, Panel, Shown } from './parts.js';
import { Table } from './table.js';
import * as words from './words.js';

export function Validators() {
  const asked = useAnswer('/v1/validators');
  const told = useTopic('validators');
  return html`<h1>Validators</h1><${Shown} answer=${{ ...asked, is: told ?? asked.is }}>${(is) => html`<${Group} all=${is} />`}<//>`;
}

/** Validators whose digest at one place in the log is not what most others have there.
 * @param {any[]} all @returns {Set<number>} */
function differing(all) {
  /** @type {Map<number, Map<string, number[]>>} */
  const places = new Map();
  for (const { id, status } of all.filter((it) => it.status)) {
    const at = places.get(status.applied) ?? new Map();
    at.set(status.digest, [...(at.get(status.digest) ?? []), id]);
    places.set(status.applied, at);
  }
  const odd = [...places.values()].flatMap((digests) => {
    const groups = [...digests.values()].sort((a, b) => b.length - a.length);
    // Where as many say one thing as another, all of them are suspect.
    return groups.length < 2 ? [] : groups.slice(groups[0].length > groups[1].length ? 1 : 0).flat();
  });
  return new Set(odd);
}

function Group({ all }) {
  const odd = differing(all);
  const voters = all.filter((it) => it.standing === 'voter');
  const heard = voters.filter((it) => it.status);
  const needed = Math.floor(voters.length / 2) + 1;
  const spare = heard.length - needed;
  const first = all.find((it) => it.status && it.status.role === 'leader');
  const most = Math.max(0, ...all.map((it) => it.status?.committed ?? 0));
  const rows = [...all].sort((a, b) => Number(odd.has(b.id)) - Number(odd.has(a.id)) || a.id - b.id);
  const columns = [
    { name: 'id', numeric: true, value: (it) => it.id },
    { name: 'role', value: (it) => it.status?.role ?? 'does not answer',
      cell: (it) => (it.status ? it.status.role : html`<strong class="verdict bad">does not answer</strong>`) },
    { name: 'standing', wide: true, value: (it) => it.standing },
    { name: 'term', numeric: true, value: (it) => it.status?.term },
    { name: 'committed', numeric: true, wide: true, value: (it) => it.status?.committed },
    { name: 'applied', numeric: true, value: (it) => it.status?.applied },
    { name: 'behind', numeric: true, value: (it) => (it.status ? most - it.status.applied : null) },
    { name: 'digest of its book', cell: (it) => it.status && html`<code title=${it.status.digest}>${
      words.short(it.status.digest)}</code>${odd.has(it.id) && html` <strong class="verdict bad">differs</strong>`}` },
    { name: 'account', wide: true, cell: (it) => html`<${Account} account=${it.account} />` },
    { name: 'address', wide: true, cell: (it) => html`<code title=${it.address}>${it.address.split('/p2p/')[0]}</code>` },
  ];
  return html`${odd.size > 0 && html`<div class="problem" role="alert"><strong>Not all validators have the same book.
      </strong><p>Trust no figure before it is known which of them is right: <code>souk audit</code> finds out.</p></div>`}
    <${Panel} title=${words.counted(all.length, 'validator')} aside=${`log ${words.count(most)}`}>
    <${Facts} rows=${[
      ['votes', html`${heard.length} of ${voters.length}, ${needed} needed`],
      ['leader', first ? first.id : 'nobody leads now'],
      ['then', spare > 0 ? `${spare === 1 ? 'one' : spare} more may stop` : spare === 0
        ? 'none may stop' : 'nothing is decided until more come back'],
    ]} />
    <${Table} caption="Validators" columns=${columns} rows=${rows} rowKey=${(it) => it.id}
      rowClass=${(it) => (odd.has(it.id) ? 'odd' : '')} /><//>`;
}

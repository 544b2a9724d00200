// The receipts of a job, checked while they are shown: arithmetic and both signatures.

import { html, useEffect, useState } from './view.js';
import { ask } from './ask.js';
import { useAnswer } from './known.js';
import { Account, Device, Facts, Panel, Shown } from './parts.js';
import * as words from './words.js';

export function Receipts({ job, names }) {
  const answer = useAnswer(`/v1/jobs/${job.id}/receipts`, { topics: [`job:${job.id}`, 'jobs'] });
  return html`<${Panel} title="Receipts" aside="each signed by provider and buyer" id="receipts">
    <${Shown} answer=${answer}>${(is) => (is.length === 0
      ? html`<p class="empty">None is signed yet.</p>`
      : is.map((it) => html`<${Receipt} key=${it.body.lease} receipt=${it} names=${names} />`))}<//><//>`;
}

function Receipt({ receipt, names }) {
  const { body } = receipt;
  const [verdict, setVerdict] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  const check = () => {
    setVerdict(null);
    ask('/v1/receipts/verify', { method: 'POST', json: receipt }).then(setVerdict, setProblem);
  };
  useEffect(check, [receipt.buyer_signature]);
  const save = () => {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([JSON.stringify(receipt, null, 2)]));
    link.download = `receipt-${body.lease}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };
  return html`<article class="receipt"><div class="panel-head"><h3>Lease ${body.lease}</h3>
      <${Verdict} verdict=${verdict} problem=${problem} /></div>
    <${Facts} rows=${[
      ['paid', html`<span class="amount">${words.credits(body.amount)}</span>`],
      ['at work', words.seconds(body.usage / 1e6)],
      ['a second', words.credits(body.price)],
      ['device', html`<${Device} device=${body.model} emulated=${body.emulated} />`],
      ['provider', html`<${Account} account=${body.provider} name=${names.get(body.provider)?.name} />`],
      ['in and out', `${words.bytes(body.bytes_in)}, ${words.bytes(body.bytes_out)}`],
    ]} />
    <div class="actions"><button type="button" class="small" onClick=${check}
        aria-label=${`check again the receipt of lease ${body.lease}`}>check again</button>
      <button type="button" class="small" onClick=${save}
        aria-label=${`save the receipt of lease ${body.lease}`}>save</button>
      <small>graph <code>${words.short(body.graph)}</code> · outputs ${body.outputs.map(
        (it) => html`<code title=${it}>${words.short(it)}</code> `)}</small></div></article>`;
}

function Verdict({ verdict, problem }) {
  if (problem) return html`<span class="verdict bad">not checked: ${problem.message}</span>`;
  if (!verdict) return html`<span class="verdict">checking …</span>`;
  return verdict.valid ? html`<span class="verdict good">✓ holds: arithmetic and both signatures</span>`
    : html`<span class="verdict bad">✗ does not hold: ${verdict.fault}</span>`;
}

// A model and its inputs, dropped on the page: planned first, bought when the price is seen.

import { html, useMemo, useRef, useState } from './view.js';
import { ask, bring } from './ask.js';
import { fits, hashOf, modelInputs, tensorsOf } from './files.js';
import { useAction, useNames } from './known.js';
import { rememberModel } from './jobs.js';
import { Facts, Panel, ProblemNote } from './parts.js';
import { PlanAlternatives, PlanParts, PlanTimes, Refusals } from './plan.js';
import { Table } from './table.js';
import * as words from './words.js';

/**
 * @typedef {{file: File, hash: string, hashed: number, sent: number, fault: string,
 *            tensors: import('./files.js').Tensor[]}} Brought
 * @typedef {{inputs: import('./files.js').Input[], isSplit: boolean}} Model
 */

const PREFER = ['balanced', 'fastest', 'cheapest', 'greenest'];

/** Contents that this page brought already; they are not sent again. */
const sentBefore = new Set();

/** The name of a file without its ending. @param {File} file */
function stem(file) {
  return file.name.replace(/\.[^.]*$/, '');
}

/** Which file is for which input: by its name, by a tensor's name, or as the only ones left.
 * @param {Model | null} model @param {Brought[]} arrays @returns {Map<string, {it: Brought, tensor: any}>} */
function matched(model, arrays) {
  const found = new Map();
  for (const input of model?.inputs ?? []) {
    const it = arrays.find((one) => stem(one.file) === input.name)
      ?? arrays.find((one) => one.tensors.some((tensor) => tensor.name === input.name));
    const tensor = it?.tensors.find((one) => one.name === input.name) ?? it?.tensors[0];
    if (it) found.set(input.name, { it, tensor });
  }
  const inputs = (model?.inputs ?? []).filter((it) => !found.has(it.name));
  const taken = new Set([...found.values()].map((one) => one.it));
  const left = arrays.filter((it) => !taken.has(it));
  if (inputs.length === 1 && left.length === 1) {
    found.set(inputs[0].name, { it: left[0], tensor: left[0].tensors[0] });
  }
  return found;
}

/** Files that were dropped, hashed while the person goes on. */
function useFiles() {
  const [model, setModel] = useState(/** @type {(Brought & {is: Model | null}) | null} */ (null));
  const [arrays, setArrays] = useState(/** @type {Brought[]} */ ([]));
  const change = (file, what) => {
    const on = (it) => (it?.file === file ? { ...it, ...what } : it);
    setModel(on);
    setArrays((before) => before.map(on));
  };
  const add = (file) => {
    const bare = { file, hash: '', hashed: 0, sent: 0, fault: '', tensors: [] };
    const isModel = /\.onnx$/i.test(file.name);
    if (isModel) setModel({ ...bare, is: null });
    else setArrays((before) => [...before.filter((it) => it.file.name !== file.name), bare]);
    const fault = (error) => change(file, { fault: error.message });
    hashOf(file, (hashed) => change(file, { hashed })).then((hash) => change(file, { hash }), fault);
    if (isModel) modelInputs(file).then((is) => change(file, { is }), fault);
    else tensorsOf(file).then((tensors) => change(file, { tensors }), fault);
  };
  const drop = (file) => setArrays((before) => before.filter((it) => it.file !== file));
  return { model, arrays, add, drop, change };
}

export function Submit({ query }) {
  const files = useFiles();
  const [limits, setLimits] = useState(() => ({
    budget: '1', prefer: 'balanced', min_providers: '1', max_providers: '4', deadline: '',
    devices: query.get('device') ?? '', exclude: query.get('exclude') ?? '', real: false, emulated: false,
    verify: false, spot: false, slippage: '5',
  }));
  const [planned, setPlanned] = useState(/** @type {any} */ (null));
  const inputs = useMemo(() => matched(files.model?.is ?? null, files.arrays), [files.model, files.arrays]);
  const missing = missingOf(files, inputs);
  const plan = useAction(async () => {
    setPlanned(null);
    await bringAll(files, inputs);
    const body = bodyOf(files, inputs, limits);
    const is = await ask('/v1/plans', { method: 'POST', json: body });
    // One key for one plan: asked again after a lost answer, it buys once.
    setPlanned({ is, body, key: crypto.randomUUID() });
  });
  const buy = useAction(async () => {
    const json = { plan: planned.is.hash, slippage: Number(limits.slippage), job: planned.body };
    const job = await ask('/v1/jobs', { method: 'POST', json, headers: { 'idempotency-key': planned.key } });
    rememberModel(planned.body.model, files.model?.file.name ?? '');
    location.hash = `#/jobs/${job.id}`;
  });
  const change = (name, value) => { setLimits((before) => ({ ...before, [name]: value })); setPlanned(null); };
  return html`<h1>Submit a job</h1>
    <${Drop} add=${(file) => { files.add(file); setPlanned(null); }} />
    ${(files.model || files.arrays.length > 0) && html`<${Brought} files=${files} inputs=${inputs} />`}
    <form onSubmit=${(event) => { event.preventDefault(); plan.run(); }}>
      <${LimitFields} limits=${limits} change=${change} />
      <div class="actions"><button class=${planned ? '' : 'first'} disabled=${missing !== '' || plan.isBusy}>${
        plan.isBusy ? 'Planning …' : 'Plan it'}</button><span class="note">${missing
        || 'No money moves yet: the model and its inputs go to this gateway, and it asks the market.'}</span></div>
    </form>
    <${ProblemNote} problem=${plan.problem} />
    ${plan.problem?.facts.not_eligible && html`<${Refusals} refusals=${plan.problem.facts.not_eligible} />`}
    ${planned && html`<${Planned} plan=${planned.is} limits=${limits} buy=${buy} />`}`;
}

/** What stands in the way of a plan, in words. */
function missingOf(files, inputs) {
  const { model, arrays } = files;
  if (!model) return 'A model is missing: drop a file that ends in .onnx.';
  const faulty = [model, ...arrays].find((it) => it.fault);
  if (faulty) return `${faulty.file.name}: ${faulty.fault}`;
  if (!model.is) return 'The model is being read.';
  if (model.is.isSplit) return 'The model keeps its weights in other files; save it as one file.';
  const without = model.is.inputs.filter((it) => !inputs.has(it.name)).map((it) => it.name);
  if (without.length > 0) return `No array for ${without.join(', ')}: drop ${without[0]}.npy.`;
  return [model, ...[...inputs.values()].map((one) => one.it)].every((it) => it.hash) ? '' : 'Files are being hashed.';
}

/** Sends what the gateway may not have. */
async function bringAll(files, inputs) {
  const all = new Set([files.model, ...[...inputs.values()].map((one) => one.it)]);
  for (const it of all) {
    if (!sentBefore.has(it.hash)) await bring(it.hash, it.file, (sent) => files.change(it.file, { sent }));
    sentBefore.add(it.hash);
    files.change(it.file, { sent: it.file.size });
  }
}

/** A job as the gateway takes it. */
function bodyOf(files, inputs, limits) {
  const list = (text) => text.split(/[,\s]+(?=\S)/).map((it) => it.trim()).filter(Boolean);
  const named = [...inputs].map(([name, { it, tensor }]) => [name,
    { content: it.hash, ...(tensor?.name ? { tensor: tensor.name } : {}) }]);
  return {
    model: files.model.hash,
    inputs: Object.fromEntries(named),
    budget: limits.budget === '' ? null : Math.round(Number(limits.budget) * 1e6),
    prefer: limits.prefer,
    min_providers: Number(limits.min_providers),
    max_providers: Math.max(Number(limits.max_providers), Number(limits.min_providers)),
    deadline: limits.deadline === '' ? null : Number(limits.deadline),
    devices: limits.devices === '' ? [] : [limits.devices.trim()],
    exclude: list(limits.exclude),
    real: limits.real, emulated: limits.emulated,
    verify: limits.verify ? 2 : 1,
    spot: limits.spot,
  };
}

function Drop({ add }) {
  const [isOver, setOver] = useState(false);
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const take = (list) => [...list].forEach(add);
  return html`<div class=${isOver ? 'drop over' : 'drop'}
    onDragOver=${(event) => { event.preventDefault(); setOver(true); }}
    onDragLeave=${() => setOver(false)}
    onDrop=${(event) => { event.preventDefault(); setOver(false); take(event.dataTransfer.files); }}>
    <p><strong>Drop a model and its inputs here</strong></p>
    <p class="note">An ONNX file with its weights, and for each input an array: <code>NAME.npy</code>, or${' '}
      <code>safetensors</code> with a tensor of that name.</p>
    <input type="file" multiple ref=${input} class="unseen" id="files" tabindex="-1" aria-label="Files"
      accept=".onnx,.npy,.safetensors" onChange=${(event) => { take(event.target.files); event.target.value = ''; }} />
    <button type="button" onClick=${() => input.current?.click()}>Choose files</button></div>`;
}

/** How far a file is. */
function Progress({ it }) {
  if (it.fault) return html`<span class="verdict bad">${it.fault}</span>`;
  const { size } = it.file;
  if (!it.hash) return html`<progress max=${size} value=${it.hashed} aria-label="hashed"></progress> hashed`;
  if (it.sent > 0 && it.sent < size) {
    return html`<progress max=${size} value=${it.sent} aria-label="sent"></progress> ${words.bytes(it.sent)} sent`;
  }
  return html`<code title=${it.hash}>${words.short(it.hash)}</code>${sentBefore.has(it.hash) ? ' at the gateway' : ''}`;
}

/** An array's type and sizes. */
const shapeText = (it) => (it ? `${it.dtype} [${it.shape.join(', ')}]` : '–');

function Brought({ files, inputs }) {
  const { model, arrays } = files;
  const used = new Set([...inputs.values()].map((one) => one.it));
  const rows = [
    ...(model ? [{ what: 'model', wants: '', it: model, has: `${words.counted(model.is?.inputs.length ?? 0, 'input')}` }] : []),
    ...(model?.is?.inputs ?? []).map((input) => {
      const found = inputs.get(input.name);
      return { what: input.name, wants: shapeText(input), it: found?.it, has: shapeText(found?.tensor),
        isOdd: found?.tensor && !fits(input, found.tensor) };
    }),
    ...arrays.filter((it) => !used.has(it)).map((it) => ({ what: 'not used', wants: '', it, has: shapeText(it.tensors[0]) })),
  ];
  const columns = [
    { name: 'input', cell: (row) => row.what },
    { name: 'wants', cell: (row) => row.wants },
    { name: 'file', cell: (row) => row.it?.file.name ?? html`<em>none yet</em>` },
    { name: 'has', cell: (row) => html`${row.has}${row.isOdd && html` <strong class="verdict bad">does not fit</strong>`}` },
    { name: 'size', numeric: true, wide: true, cell: (row) => words.bytes(row.it?.file.size) },
    { name: 'BLAKE3', cell: (row) => row.it && html`<${Progress} it=${row.it} />` },
    { name: '', cell: (row) => row.it && row.it !== model && html`<button type="button" class="small"
      aria-label=${`Leave out ${row.it.file.name}`} onClick=${() => files.drop(row.it.file)}>leave out</button>` },
  ];
  return html`<${Panel} title="Files"><${Table} caption="Files" columns=${columns} rows=${rows} canSort=${false} /><//>`;
}

function LimitFields({ limits, change }) {
  const names = useNames();
  const field = (name, label, more = {}) => html`<label class="field"><span>${label}</span><input name=${name}
    value=${limits[name]} onInput=${(event) => change(name, event.target.value)} ...${more} /></label>`;
  const number = { type: 'number', min: '0', step: 'any', inputmode: 'decimal' };
  const tick = (name, label) => html`<label class="tick"><input type="checkbox" checked=${limits[name]}
    onChange=${(event) => change(name, event.target.checked)} /> ${label}</label>`;
  const devices = [...new Set(['cpu', 'gpu', 'tpu', 'npu', ...[...names.values()].flatMap((it) =>
    it.devices.map((device) => device.device))])];
  return html`<${Panel} title="Limits"><div class="fields">
    ${field('budget', 'at most, credits', number)}
    <label class="field"><span>prefer</span><select value=${limits.prefer}
      onChange=${(event) => change('prefer', event.target.value)}>${PREFER.map((it) => html`<option
      selected=${it === limits.prefer}>${it}</option>`)}</select></label>
    ${field('min_providers', 'providers, at least', { ...number, min: '1', max: '64', step: '1' })}
    ${field('max_providers', 'and at most', { ...number, min: '1', max: '64', step: '1' })}
    ${field('deadline', 'seconds, at most', { ...number, placeholder: 'any' })}
    ${field('devices', 'device or kind', { list: 'devices', placeholder: 'any' })}
    ${field('exclude', 'not of (accounts)', { placeholder: 'none' })}
    ${field('slippage', 'above the plan, % at most', number)}
    <datalist id="devices">${devices.map((it) => html`<option value=${it}></option>`)}</datalist></div>
    <div class="actions">${tick('real', 'real devices only')}${tick('emulated', 'emulated devices too')}${tick('verify', 'run each part twice and compare')}${
      tick('spot', 'take leases that may be taken back')}</div><//>`;
}

function Planned({ plan, limits, buy }) {
  const range = plan.price_range;
  return html`<${Panel} title="Plan" aside=${html`<code title=${plan.hash}>${words.short(plan.hash)}</code>`} id="plan">
    <${Facts} rows=${[
      ['costs', html`<span class="price">${words.credits(plan.micro_credits)}</span>`],
      ['holds until settled', words.credits(plan.escrow_micro_credits)],
      ['takes', words.seconds(plan.times.all_seconds)],
      ['offers', `${plan.asks_eligible} of ${plan.asks_seen} suit`],
      range && ['plans from', `${words.credits(range.least_micro_credits)} to ${words.credits(range.most_micro_credits)}`],
    ]} />
    <${PlanParts} plan=${plan} />
    <div class="even"><div><h3>Time</h3><${PlanTimes} plan=${plan} /></div><div>
      <${PlanAlternatives} plan=${plan} /></div></div>
    <${Refusals} refusals=${plan.not_eligible} />
    <div class="actions"><button type="button" class="first" disabled=${buy.isBusy} onClick=${buy.run}>${
      buy.isBusy ? 'Buying …' : 'Submit'}</button><span class="note">Holds
      ${' '}${words.credits(plan.escrow_micro_credits)} credits; what is used is paid, the rest returns. Refused if it costs ${limits.slippage} % more by then.</span></div>
    <${ProblemNote} problem=${buy.problem} /><//>`;
}

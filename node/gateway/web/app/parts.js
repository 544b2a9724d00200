// Small parts that every screen is made of.

import { Fragment, html, useState } from './view.js';
import { short } from './words.js';

/** What is emulated says so by word and by line, wherever it stands. */
export function Emulated() {
  return html`<span class="emulated-word">emulated</span>`;
}

/** A device by its name. */
export function Device({ device, emulated }) {
  const bare = device.replace(/ \(emulated\)$/, '');
  return html`<span class=${emulated ? 'device emulated' : 'device'}>${bare}${
    emulated && html`${' '}<${Emulated} />`}</span>`;
}

/** An account by its name and the first of its digits. */
export function Account({ account, name }) {
  return html`<span class="account" title=${account}>${name ? `${name} ` : ''}<code>${
    short(account)}</code></span>`;
}

/**
 * Why something was refused, and what to do.
 * @param {{problem: import('./ask.js').Problem | null, again?: () => void}} props
 */
export function ProblemNote({ problem, again }) {
  if (!problem) return null;
  return html`<div class="problem" role="alert">
    <strong>${problem.message}</strong>
    ${problem.hint && html`<p>${problem.hint}</p>`}
    ${problem.code === 'forbidden' && html`<p>For a page that may do more:
      <code>souk dashboard --trade</code>, <code>--operate</code></p>`}
    ${again && html`<button type="button" onClick=${again}>Ask again</button>`}
  </div>`;
}

/**
 * A part of a screen with a heading.
 * @param {{title: any, aside?: any, children: any, class?: string, id?: string}} props
 */
export function Panel({ title, aside, children, class: name = '', id }) {
  return html`<section class=${`panel ${name}`} id=${id}>
    <div class="panel-head"><h2>${title}</h2>${aside && html`<div class="aside">${aside}</div>`}</div>
    ${children}
  </section>`;
}

/** Figures with their names. */
export function Facts({ rows, class: name = '' }) {
  const told = /** @type {any[][]} */ (rows.filter(Boolean));
  return html`<dl class=${`facts ${name}`}>${told.map(([label, value]) => html`<div>
    <dt>${label}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** What stands where there is nothing yet. */
export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

/** What an answer shows: why there is none, or that it is awaited, or itself.
 * @param {{answer: any, children: (is: any) => any}} props */
export function Shown({ answer, children }) {
  if (answer.is != null) {
    return html`<${Fragment}><${ProblemNote} problem=${answer.problem} />${children(answer.is)}<//>`;
  }
  if (answer.problem) return html`<${ProblemNote} problem=${answer.problem} again=${answer.again} />`;
  return html`<p class="awaited">…</p>`;
}

/**
 * A button that asks once more before it acts.
 * @param {{label: string, question: string, onSure: () => void, isBusy?: boolean}} props
 */
export function SureButton({ label, question, onSure, isBusy }) {
  const [isAsking, setAsking] = useState(false);
  if (!isAsking) {
    return html`<button type="button" class="danger" disabled=${isBusy}
      onClick=${() => setAsking(true)}>${label}</button>`;
  }
  const sure = () => { setAsking(false); onSure(); };
  return html`<span class="sure" role="group" aria-label=${question}>
    <span>${question}</span>
    <button type="button" class="danger" onClick=${sure}>Yes, ${label.toLowerCase()}</button>
    <button type="button" onClick=${() => setAsking(false)}>No</button>
  </span>`;
}

/** A button that asks for a price first. @param {{label: string, price: number, onPrice: (is: number) => void}} props */
export function PriceButton({ label, price, onPrice }) {
  const [text, setText] = useState(/** @type {string | null} */ (null));
  const given = () => { onPrice(Math.round(Number(text) * 1e6)); setText(null); };
  if (text == null) return html`<button type="button" onClick=${() => setText(String(price / 1e6))}>${label}</button>`;
  return html`<span class="sure"><label>credits a second <input type="number" min="0" step="any" size="8" value=${text}
    onInput=${(event) => setText(event.target.value)} /></label> <button type="button" onClick=${given}>${label}</button>
    <button type="button" onClick=${() => setText(null)}>No</button></span>`;
}

/**
 * A few choices, one of which holds.
 * @param {{label: string, all: [string, string][], value: string, onChoose: (is: string) => void}} props
 */
export function Choice({ label, all, value, onChoose }) {
  return html`<label class="choice"><span>${label}</span>
    <select value=${value} onChange=${(event) => onChoose(event.target.value)}>
      ${all.map(([key, text]) => html`<option value=${key} selected=${key === value}>${text}</option>`)}
    </select></label>`;
}

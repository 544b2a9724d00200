// The frame around every screen: where one can go, whose market this is, and how fresh it is.

import { html, render, useEffect, useRef, useState } from './view.js';
import { hasToken, takeToken } from './ask.js';
import { begin } from './live.js';
import { useStanding, useTopic } from './known.js';
import { Account } from './parts.js';
import * as words from './words.js';

/** @typedef {{name: string, title: string, key: string, load: () => Promise<any>}} Screen */

/** @param {string} title @param {string} key @param {() => Promise<any>} load */
const screen = (title, key, load) => ({ name: title.toLowerCase(), title, key, load });

/** @type {Screen[]} */
const SCREENS = [
  screen('Market', 'm', () => import('./market.js').then((it) => it.Market)),
  screen('Models', 't', () => import('./texts.js').then((it) => it.Texts)),
  screen('Jobs', 'j', () => import('./jobs.js').then((it) => it.Jobs)),
  screen('Training', 'r', () => import('./training.js').then((it) => it.Training)),
  screen('Submit', 's', () => import('./submit.js').then((it) => it.Submit)),
  screen('Network', 'n', () => import('./network.js').then((it) => it.Network)),
  screen('Orders', 'o', () => import('./orders.js').then((it) => it.Orders)),
  screen('Account', 'a', () => import('./account.js').then((it) => it.AccountPage)),
  screen('Earnings', 'e', () => import('./earnings.js').then((it) => it.Earnings)),
  screen('Validators', 'v', () => import('./validators.js').then((it) => it.Validators)),
  screen('API', 'p', () => import('./routes.js').then((it) => it.Routes)),
];

const STALE_MS = 5_000;

/** What the address says: `#/jobs/ID?x=1`. */
function place() {
  const [, path = '', query = ''] = /^#\/?([^?]*)\??(.*)$/.exec(location.hash) ?? [];
  const parts = path.split('/').filter(Boolean).map(decodeURIComponent);
  return { name: parts[0] ?? 'market', path: parts.slice(1), query: new URLSearchParams(query) };
}

function usePlace() {
  const [is, setIs] = useState(place);
  useEffect(() => {
    const on = () => { setIs(place()); scrollTo(0, 0); };
    addEventListener('hashchange', on);
    return () => removeEventListener('hashchange', on);
  }, []);
  return is;
}

/** How long ago the shown state was true; said once a half second. */
function Age({ standing }) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, []);
  if (!standing?.status) return html`<span class="age" role="status">asking …</span>`;
  if (!standing.isLive) {
    return html`<span class="age not-live" role="status">not live: showing ${
      words.moment(standing.heard)}</span>`;
  }
  const age = Math.max(0, now - standing.at);
  const text = `as of ${(age / 1000).toFixed(1)} s ago`;
  return html`<span class=${age > STALE_MS ? 'age stale' : 'age'}>${text}</span>`;
}

function Strip({ standing }) {
  const account = useTopic('account');
  const status = standing?.status;
  return html`<div class="strip">
    <span>${status ? html`<strong>${status.name}</strong> · log <span class="index">${
      words.count(status.index)}</span>` : ''}${' · '}<${Age} standing=${standing} /></span>
    ${account && html`<a href="#/account" class="purse"><${Account} account=${account.account}
      name=${account.name} /> <b class="available">${words.credits(account.available)}</b> to spend,${' '}
      <b class="held">${words.credits(account.escrow)}</b> held</a>`}
  </div>`;
}

function Ways({ now }) {
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  // On a small screen the list is wider than there is room for.
  useEffect(() => {
    const way = list.current?.querySelector('[aria-current]');
    way?.scrollIntoView({ inline: 'center', block: 'nearest' });
  }, [now]);
  return html`<nav aria-label="Screens"><ul ref=${list}>${SCREENS.map((it) => html`<li><a href=${`#/${it.name}`}
    aria-current=${it.name === now ? 'page' : undefined}>${it.title}</a></li>`)}</ul></nav>`;
}

/** Loads a screen when it is first gone to. */
function Shown({ at }) {
  const [loaded, setLoaded] = useState(/** @type {Record<string, any>} */ ({}));
  const found = SCREENS.find((it) => it.name === at.name);
  useEffect(() => {
    document.title = `${found?.title ?? 'Nothing'} · souk`;
    if (!found || loaded[found.name]) return;
    found.load().then((is) => setLoaded((before) => ({ ...before, [found.name]: is })));
  }, [found]);
  if (!found) return html`<h1>There is no such screen</h1><p><a href="#/market">The market</a></p>`;
  const Found = loaded[found.name];
  return Found ? html`<${Found} path=${at.path} query=${at.query} />` : html`<p class="awaited">…</p>`;
}

/** Keys: `g` and a letter go somewhere, `/` to the filter, `?` tells them. */
function useKeys(/** @type {(is: boolean | ((was: boolean) => boolean)) => void} */ setTold) {
  useEffect(() => {
    let isGoing = false;
    const on = (event) => {
      const target = /** @type {HTMLElement} */ (event.target);
      const isTyping = target.closest('input, textarea, select') != null;
      if (event.key === 'Escape') setTold(false);
      if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
      const screen = isGoing && SCREENS.find((it) => it.key === event.key);
      isGoing = event.key === 'g' && !isGoing;
      if (screen) location.hash = `#/${screen.name}`;
      else if (event.key === '?') setTold((was) => !was);
      else if (event.key === '/') {
        const first = document.querySelector('main input[type=search], main select');
        if (first) { event.preventDefault(); /** @type {HTMLElement} */ (first).focus(); }
      }
    };
    addEventListener('keydown', on);
    return () => removeEventListener('keydown', on);
  }, []);
}

function Keys({ close }) {
  const rows = [...SCREENS.map((it) => [`g ${it.key}`, it.title]),
    ['/', 'search or filter'], ['?', 'these keys'], ['Esc', 'close']];
  return html`<div class="keys" role="dialog" aria-label="Keys">
    <h2>Keys</h2><dl>${rows.map(([keys, what]) => html`<div><dt><kbd>${keys}</kbd></dt>
      <dd>${what}</dd></div>`)}</dl>
    <button type="button" onClick=${close}>Close</button></div>`;
}

function NoToken({ isRefused }) {
  return html`<main class="lone"><h1>souk</h1>
    <p>${isRefused ? 'The token that this page came with is none of this gateway.'
      : 'This page came without the token that lets it look at the market.'}</p>
    <p>In the market's folder, this prints an address that has one:</p>
    <pre><code>souk dashboard</code></pre>
    <p>For a page that may also spend the account's credits:</p>
    <pre><code>souk dashboard --trade</code></pre></main>`;
}

function App() {
  const at = usePlace();
  const standing = useStanding();
  const [isTold, setTold] = useState(false);
  useKeys(setTold);
  if (!hasToken() || standing?.isRefused) return html`<${NoToken} isRefused=${hasToken()} />`;
  return html`<a class="skip" href="#main" onClick=${(event) => {
      event.preventDefault();
      document.querySelector('main')?.focus();
    }}>To the content</a>
    <header><div class="top"><a class="brand" href="#/market">souk</a><${Ways} now=${at.name} />
      <button type="button" class="small help" aria-label="Keys" aria-expanded=${isTold}
        onClick=${() => setTold(!isTold)}>?</button></div>
      <${Strip} standing=${standing} /></header>
    ${isTold && html`<${Keys} close=${() => setTold(false)} />`}
    <main id="main" tabindex="-1"><${Shown} at=${at} /></main>`;
}

takeToken();
if (hasToken()) begin();
addEventListener('hashchange', () => {
  if (!location.hash.startsWith('#token=')) return;
  takeToken();
  location.reload();
});
render(html`<${App} />`, /** @type {Element} */ (document.getElementById('page')));

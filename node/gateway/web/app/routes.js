// What programs may ask this gateway: its own document, as a page that can be searched.

import { html, useState } from './view.js';
import { useAnswer } from './known.js';
import { Empty, Panel, Shown } from './parts.js';

export function Routes() {
  const answer = useAnswer('/v1/openapi.json');
  const [text, setText] = useState('');
  return html`<h1>API</h1><p>All that this page shows it asks as below; so can any program, with
      ${' '}<code>Authorization: Bearer TOKEN</code>. The document itself: <a href="/v1/openapi.json">openapi.json</a>.</p>
    <p><label class="choice"><span>search</span><input type="search" value=${text}
      onInput=${(event) => setText(event.target.value)} /></label></p>
    <${Shown} answer=${answer}>${(is) => html`<${Document} document=${is} text=${text.toLowerCase()} />`}<//>`;
}

function Document({ document, text }) {
  const all = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, it]) => ({ path, method, it, tag: it.tags?.[0] ?? 'other' })));
  const wanted = all.filter(({ path, method, it }) =>
    `${method} ${path} ${it.summary ?? ''} ${it.description ?? ''}`.toLowerCase().includes(text));
  if (wanted.length === 0) return html`<${Empty}>No path says that.<//>`;
  const tags = [...new Set(wanted.map((it) => it.tag))];
  return tags.map((tag) => html`<${Panel} title=${tag[0].toUpperCase() + tag.slice(1)} key=${tag}>${wanted.filter((it) => it.tag === tag)
    .map((it) => html`<${Route} key=${it.method + it.path} ...${it} />`)}<//>`);
}

function Route({ path, method, it }) {
  const scopes = (it.security ?? []).flatMap((one) => Object.values(one).flat());
  const parameters = it.parameters ?? [];
  const answers = Object.entries(it.responses ?? {});
  return html`<details class="route"><summary><code class="method">${method.toUpperCase()}</code> <code>${path}</code>
      <span class="note"> ${it.summary ?? it.description ?? ''}</span></summary>
    <p class="note">${scopes.length > 0 ? `Token: ${scopes.join(', ')}.` : 'No token.'}</p>
    ${parameters.length > 0 && html`<ul>${parameters.map((one) => html`<li><code>${one.name}</code> (${one.in}${
      one.required ? '' : ', may be left out'}) ${one.description ?? ''}</li>`)}</ul>`}
    ${it.requestBody && html`<p>Takes ${kinds(it.requestBody.content)}</p>`}
    <ul>${answers.map(([status, one]) => html`<li><strong>${status}</strong> ${kinds(one.content)}${' '}
      ${one.description}</li>`)}</ul></details>`;
}

/** What is taken or answered. @param {any} content */
function kinds(content) {
  return Object.entries(content ?? {}).map(([type, { schema }]) =>
    html`<code>${schema?.$ref?.split('/').at(-1) ?? type}</code> `);
}

// Tables that can be sorted, and read by whoever cannot see a chart.

import { html, useState } from './view.js';

/**
 * @typedef {{
 *   name: string,
 *   value?: (row: any) => any,
 *   cell?: (row: any) => any,
 *   numeric?: boolean,
 *   wide?: boolean,
 *   first?: 'up' | 'down',
 * }} Column
 * `value` sorts, and is shown where there is no `cell`. `wide` leaves small screens out.
 */

/** @param {any} a @param {any} b nulls come last, whichever way the others go */
function compare(a, b) {
  return typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b));
}

/** @param {any[]} rows @param {Column | undefined} column @param {boolean} isDown */
function sorted(rows, column, isDown) {
  if (!column?.value) return rows;
  const value = column.value;
  const known = rows.filter((row) => value(row) != null);
  const unknown = rows.filter((row) => value(row) == null);
  known.sort((a, b) => compare(value(a), value(b)) * (isDown ? -1 : 1));
  return [...known, ...unknown];
}

/**
 * @param {{caption: string, columns: Column[], rows: any[], sort?: string, isDown?: boolean,
 *          rowKey?: (row: any) => any, rowClass?: (row: any) => string,
 *          isChosen?: (row: any) => boolean, empty?: any, canSort?: boolean}} props
 */
export function Table({
  caption, columns, rows, sort = '', isDown = false, rowKey, rowClass, isChosen, empty,
  canSort = true,
}) {
  const [by, setBy] = useState({ name: sort, isDown });
  if (rows.length === 0 && empty) return html`<p class="empty">${empty}</p>`;
  const column = columns.find((it) => it.name === by.name);
  const shown = sorted(rows, column, by.isDown);
  const choose = (it) => setBy((before) => ({
    name: it.name,
    isDown: before.name === it.name ? !before.isDown : it.first === 'down',
  }));
  const classOf = (it) => [it.numeric && 'numeric', it.wide && 'wide']
    .filter(Boolean).join(' ');
  return html`<div class="scroll" role="region" aria-label=${caption} tabindex="0">
    <table>
      <caption class="unseen">${caption}</caption>
      <thead><tr>${columns.map((it) => {
        const isBy = it === column;
        const order = isBy ? (by.isDown ? 'descending' : 'ascending') : undefined;
        const can = canSort && it.value;
        return html`<th scope="col" class=${classOf(it)} aria-sort=${order}>${can
          ? html`<button type="button" class="sort" onClick=${() => choose(it)}>${it.name}<span
              aria-hidden="true">${isBy ? (by.isDown ? ' ↓' : ' ↑') : ''}</span></button>`
          : it.name || html`<span class="unseen">to do</span>`}</th>`;
      })}</tr></thead>
      <tbody>${shown.map((row, place) => html`<tr key=${rowKey ? rowKey(row) : place}
        class=${`${rowClass?.(row) ?? ''} ${isChosen?.(row) ? 'chosen' : ''}`}>
        ${columns.map((it) => html`<td class=${classOf(it)}>${
          (it.cell ?? it.value)?.(row)}</td>`)}</tr>`)}</tbody>
    </table>
  </div>`;
}

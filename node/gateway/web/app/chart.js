// Charts as pictures of lines, each with a table beside it for whoever cannot see them. There are
// four kinds, of at most some hundred points each; a library for them would be as large as all
// other files together, and would know nothing of the page's colours.

import { html, useLayoutEffect, useRef, useState } from './view.js';

/**
 * @typedef {'line' | 'asks' | 'bids' | 'bars' | 'candles'} Kind
 * @typedef {{label: string, kind: Kind, tone: string, values: (number | null)[],
 *            candles?: {open: number[], high: number[], low: number[], close: number[]}}} Series
 * A null is no point; a NaN is a point that is no number, and breaks a line.
 * `asks` hold from their price upwards, `bids` downwards; `bars` stand on each other.
 * @typedef {{xs: number[], xRange: [number, number], step?: number, isTime: boolean,
 *            x: (value: number) => string, y: (value: number) => string, series: Series[]}} Drawing
 * Times are in seconds.
 */

const EDGE = { left: 64, right: 22, top: 8, bottom: 24 };
const TIMES = [60, 300, 600, 1800, 3600, 10800, 21600, 86400, 172800, 604800];

/** Round figures over a range. @param {number} from @param {number} to @param {number} most */
function ticks(from, to, most) {
  const bare = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(bare));
  const step = [1, 2, 5, 10].map((it) => it * power).find((it) => it >= bare) ?? bare;
  return every(from, to, step);
}

/** @param {number} from @param {number} to @param {number} step */
function every(from, to, step) {
  const first = Math.ceil(from / step - 1e-9);
  const count = Math.max(0, Math.floor(to / step + 1e-9) - first + 1);
  return Array.from({ length: count }, (_, place) => (first + place) * step);
}

/** @param {number} from @param {number} to @param {number} most */
function timeTicks(from, to, most) {
  const step = TIMES.find((it) => (to - from) / it <= most) ?? TIMES[TIMES.length - 1];
  // Days begin at midnight here, not where the clock began.
  const shift = step >= 3600 ? new Date(from * 1000).getTimezoneOffset() * 60 : 0;
  return every(from - shift, to - shift, step).map((it) => it + shift);
}

/** The sums of bars that stand on each other. @param {Drawing} drawing */
function stacked(drawing) {
  const sums = drawing.xs.map(() => 0);
  return drawing.series.map((it) => ({ ...it, low: it.values.map((value, place) => {
    const low = sums[place];
    if (it.kind === 'bars') sums[place] += value ?? 0;
    return it.kind === 'bars' ? low : 0;
  }) }));
}

/** @param {ReturnType<typeof stacked>} series @returns {[number, number]} */
function yRange(series) {
  const candles = series.find((it) => it.candles)?.candles;
  if (candles) {
    const low = Math.min(...candles.low), high = Math.max(...candles.high);
    const room = Math.max((high - low) * 0.15, high * 0.02, 1e-9);
    return [Math.max(0, low - room), high + room];
  }
  const tops = series.flatMap((it) => it.values.map((value, place) => (value || 0) + it.low[place]));
  return [0, Math.max(...tops) * 1.15 || 1];
}

/** How one kind of series becomes a path. `area` is what is filled under it.
 * @param {any} it @param {Drawing} drawing @param {(v: number) => number} x @param {(v: number) => number} y */
function paths(it, drawing, x, y) {
  const known = drawing.xs.map((at, place) => ({ at, value: it.values[place], low: it.low[place] }))
    .filter((one) => one.value != null);
  if (known.length === 0) return null;
  const base = y(0);
  const wide = Math.abs(x((drawing.step ?? 60)) - x(0)) * 0.6;
  switch (it.kind) {
    case 'bars': return { area: known.map((one) => {
      const width = Math.min(40, Math.max(2, wide)), top = y(one.low + one.value);
      return `M${x(one.at) - width / 2} ${top}h${width}V${y(one.low)}h${-width}z`;
    }).join('') };
    case 'candles': return candlePaths(it.candles, drawing.xs, Math.min(20, Math.max(3, wide)), x, y);
    case 'line': {
      const isNumber = (/** @type {number} */ place) => place in known && !Number.isNaN(known[place].value);
      const line = known.map((one, place) => {
        if (!isNumber(place)) return '';
        const at = `${isNumber(place - 1) ? 'L' : 'M'}${x(one.at)} ${y(one.value)}`;
        return isNumber(place - 1) || isNumber(place + 1) ? at : `${at}h3`;
      }).join('');
      return line ? { line } : null;
    }
    default: {
      const all = it.kind === 'bids' ? known.toReversed() : known;
      const line = all.map((one, place) => (place ? `H${x(one.at)}V${y(one.value)}`
        : `M${x(one.at)} ${y(one.value)}`)).join('');
      return { line: `${line}`, area: `${line}V${base}H${x(all[0].at)}z` };
    }
  }
}

/** Hollow is up and full is down: the colour says nothing alone.
 * @param {any} of @param {number[]} xs @param {number} width @param {(v: number) => number} x @param {(v: number) => number} y */
function candlePaths(of, xs, width, x, y) {
  const out = { up: '', down: '' };
  xs.forEach((at, place) => {
    const open = y(of.open[place]), close = y(of.close[place]), middle = x(at);
    const top = Math.min(open, close), height = Math.max(1.5, Math.abs(close - open));
    out[close <= open ? 'up' : 'down'] += `M${middle} ${y(of.high[place])}V${top}M${middle} ${top + height
      }V${y(of.low[place])}M${middle - width / 2} ${top}h${width}v${height}h${-width}z`;
  });
  return out;
}

/** The width that there is. @param {{current: HTMLElement | null}} place */
export function useWidth(place) {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const room = place.current;
    if (!room) return undefined;
    const sized = new ResizeObserver(() => setWidth(room.clientWidth));
    sized.observe(room);
    setWidth(room.clientWidth);
    return () => sized.disconnect();
  }, []);
  return width;
}

function Plot({ drawing, height, label }) {
  const place = useRef(null);
  const width = useWidth(place);
  const [at, setAt] = useState(/** @type {number | null} */ (null));
  const series = stacked(drawing);
  const [x0, x1] = drawing.xRange, [y0, y1] = yRange(series);
  const right = width - EDGE.right, bottom = height - EDGE.bottom;
  const x = (value) => EDGE.left + ((value - x0) / (x1 - x0)) * (right - EDGE.left);
  const y = (value) => bottom - ((value - y0) / (y1 - y0)) * (bottom - EDGE.top);
  const most = Math.max(2, Math.floor((right - EDGE.left) / 80));
  const xTicks = drawing.isTime ? timeTicks(x0, x1, most) : ticks(x0, x1, most);
  const onMove = (event) => {
    const to = event.clientX - event.currentTarget.getBoundingClientRect().left;
    const near = drawing.xs.map((it, index) => [Math.abs(x(it) - to), index]).sort((a, b) => a[0] - b[0]);
    setAt(near[0]?.[1] ?? null);
  };
  const named = `${label}; the button before it shows the same as a table`;
  return html`<div class="plot" ref=${place}>${width > 0 && html`<svg width=${width} height=${height} role="img"
      aria-label=${named} onPointerMove=${onMove} onPointerLeave=${() => setAt(null)}>
    ${ticks(y0, y1, height / 45).map((it) => html`<line class="grid" x1=${EDGE.left} x2=${right} y1=${y(it)}
      y2=${y(it)} /><text class="dim" x=${EDGE.left - 8} y=${y(it) + 4} text-anchor="end">${drawing.y(it)}</text>`)}
    ${xTicks.map((it) => html`<text class="dim" x=${x(it)} y=${height - 7} text-anchor="middle">${
      drawing.x(it)}</text>`)}
    ${series.map((it) => {
      const all = /** @type {Record<string, string>} */ (paths(it, drawing, x, y) ?? {});
      return Object.entries(all).map(([part, d]) => html`<path class=${`${part} tone-${it.tone}`} d=${d} />`);
    })}
    ${at != null && drawing.xs[at] != null && html`<line class="cursor" x1=${x(drawing.xs[at])}
      x2=${x(drawing.xs[at])} y1=${EDGE.top} y2=${bottom} />`}</svg>`}
    <p class="note legend">${at != null && drawing.xs[at] != null ? said(drawing, at) : legend(drawing)}</p></div>`;
}

/** @param {Drawing} drawing */
function legend(drawing) {
  return drawing.series.map((it) => html`<span><i class=${`swatch ${it.kind} tone-${it.tone}`}></i>${it.label} </span>`);
}

/** What stands at one place. @param {Drawing} drawing @param {number} at */
function said(drawing, at) {
  const all = drawing.series.flatMap((it) => (it.candles
    ? Object.entries(it.candles).map(([name, values]) => `${name} ${drawing.y(values[at])}`)
    : it.values[at] == null ? [] : [`${it.label} ${drawing.y(it.values[at])}`]));
  return `${drawing.x(drawing.xs[at])}: ${all.join(', ')}`;
}

/**
 * A chart, and its table for who asks for it.
 * @param {{label: string, drawing: Drawing, table: any, height?: number}} props
 */
export function Chart({ label, drawing, table, height = 200 }) {
  const [isTable, setTable] = useState(false);
  return html`<div class="chart"><div class="chart-head"><h3>${label}</h3><button type="button" class="small"
      aria-pressed=${isTable} onClick=${() => setTable(!isTable)}>${isTable ? 'chart' : 'table'}</button></div>
    ${isTable ? table : html`<${Plot} label=${label} drawing=${drawing} height=${height} />`}</div>`;
}

// Who takes part, and what was measured of the ways between.

import { html, useMemo, useRef, useState } from './view.js';
import { useWidth } from './chart.js';
import { useAnswer, useTopic } from './known.js';
import { Account, Device, Empty, Facts, Panel, Shown } from './parts.js';
import { Table } from './table.js';
import * as words from './words.js';

const WIDTH_MIN = 340;
const WIDTH_MAX = 700;
const BOX = { w: 152, h: 56, gap: 14 };
/** Above so many, boxes are too small for words: the table has them. */
const NAMED_MAX = 20;
const SMALL = { w: 30, h: 20, gap: 8 };

export function Network({ path }) {
  const asked = useAnswer('/v1/network/map');
  const told = useTopic('network');
  return html`<h1>Network</h1><${Shown} answer=${{ ...asked, is: told ?? asked.is }}>${(is) => html`<${Map_} map=${is} chosen=${path[0]} />`}<//>`;
}

function Map_({ map, chosen }) {
  const { nodes, links } = map;
  const of = (role) => nodes.filter((it) => it.role === role);
  const providers = of('provider'), validators = of('validator');
  const devices = providers.flatMap((it) => it.devices);
  const emulated = devices.filter((it) => it.emulated).length;
  const found = providers.find((it) => it.account === chosen) ?? providers[0];
  const [isTable, setTable] = useState(false);
  const title = `${words.counted(providers.length, 'provider')} · ${words.counted(validators.length, 'validator')}`;
  const aside = html`${devices.length - emulated} real, ${emulated} emulated
    <button type="button" class="small" aria-pressed=${isTable}
      onClick=${() => setTable(!isTable)}>${isTable ? 'map' : 'table'}</button>`;
  return html`<div class="two"><${Panel} title=${title} aside=${aside}>
      ${isTable ? html`<${Links} nodes=${nodes} links=${links} />`
        : html`<${Drawing} nodes=${nodes} links=${links} chosen=${found?.account} />`}
      ${map.providers_omitted > 0 && html`<p class="note">${words.counted(map.providers_omitted, 'provider')} more: the cheapest
        are shown.</p>`}<//>
    ${found ? html`<${Chosen} it=${found} link=${wayTo(links, nodes, found.account)} />`
      : html`<${Panel} title="Providers"><${Empty}>Nothing is on offer now.<//><//>`}</div>
    <${Providers} all=${providers} chosen=${found} />`;
}

/** What is known of the way between this gateway and somebody, whichever direction was measured. */
function wayTo(links, nodes, account) {
  const me = nodes.find((it) => it.role === 'me')?.account;
  const both = links.filter((it) => (it.from === me && it.to === account) || (it.to === me && it.from === account));
  const first = (name) => both.find((it) => it[name] != null)?.[name] ?? null;
  return { route: first('route'), rate: first('bytes_per_second'), trip: first('round_trip'), used: first('used_at') };
}

/** Where everybody stands: validators above, this gateway between, providers below. */
function placesOf(nodes, width) {
  const places = new Map();
  const providers = nodes.filter((it) => it.role === 'provider');
  const size = providers.length > NAMED_MAX ? SMALL : BOX;
  const perRow = Math.max(1, Math.floor((width + size.gap) / (size.w + size.gap)));
  const row = (all, y, box) => all.forEach((it, place) => {
    const step = width / all.length;
    places.set(it.account, { x: step * (place + 0.5) - box.w / 2, y, w: box.w, h: box.h });
  });
  row(nodes.filter((it) => it.role === 'validator'), 10, { w: 104, h: 44 });
  row(nodes.filter((it) => it.role === 'me'), 128, { w: 120, h: 44 });
  for (let at = 0; at < providers.length; at += perRow) {
    row(providers.slice(at, at + perRow), 280 + (at / perRow) * (size.h + 22), size);
  }
  return { places, height: 280 + Math.ceil(providers.length / perRow) * (size.h + 22) };
}

function Drawing({ nodes, links, chosen }) {
  const room = useRef(null);
  const width = Math.min(WIDTH_MAX, Math.max(WIDTH_MIN, useWidth(room)));
  const { places, height } = useMemo(() => placesOf(nodes, width), [nodes, width]);
  const me = nodes.find((it) => it.role === 'me');
  const others = nodes.filter((it) => it !== me);
  const isNamed = nodes.filter((it) => it.role === 'provider').length <= NAMED_MAX;
  const between = links.filter((it) => it.from !== me.account && it.to !== me.account);
  return html`<div class="scroll" role="region" aria-label="Map of the network" tabindex="0"
    ref=${room}><svg class="map" viewBox=${`0 0 ${width} ${height}`} width=${width} height=${height}
      aria-label="Map: the table has the same figures" role="group">
      ${others.map((it) => html`<${Way} way=${wayTo(links, nodes, it.account)} from=${places.get(me.account)}
        to=${places.get(it.account)} isNamed=${it.role === 'provider' && isNamed} />`)}
      ${between.map((it) => html`<${Between} from=${places.get(it.from)} to=${places.get(it.to)} link=${it} />`)}
      ${nodes.map((it) => html`<${Node} key=${it.account} it=${it} at=${places.get(it.account)}
        isNamed=${isNamed} isChosen=${it.account === chosen} />`)}</svg></div>`;
}

function Way({ way, from, to, isNamed }) {
  const isAbove = to.y < from.y;
  const x1 = from.x + from.w / 2, y1 = isAbove ? from.y : from.y + from.h;
  const x2 = to.x + to.w / 2, y2 = isAbove ? to.y + to.h : to.y;
  const isKnown = way.rate != null || way.trip != null;
  const name = way.route === 'relayed' ? 'relayed · ' : '';
  const lines = isKnown ? [way.rate != null && words.rate(way.rate), way.trip != null && words.seconds(way.trip)]
    : ['not measured'];
  const x = x1 + (x2 - x1) * 0.8, y = y1 + (y2 - y1) * 0.8 - 8;
  return html`<g class=${isKnown ? 'way' : 'way unknown'}><line x1=${x1} y1=${y1} x2=${x2} y2=${y2} />
    ${isNamed && lines.filter(Boolean).map((text, place) => html`<text class="dim" x=${x} y=${y + place * 14}
      text-anchor="middle">${place === 0 ? name : ''}${text}</text>`)}</g>`;
}

function Between({ from, to, link }) {
  if (!from || !to) return null;
  const x1 = from.x + from.w / 2, x2 = to.x + to.w / 2, y1 = from.y + from.h, y2 = to.y + to.h;
  const deep = Math.max(y1, y2) + 20;
  return html`<path class="between" d=${`M${x1} ${y1}C${x1} ${deep} ${x2} ${deep} ${x2} ${y2}`}>
    <title>${words.rate(link.bytes_per_second)}</title></path>`;
}

function Node({ it, at, isNamed, isChosen }) {
  const device = it.devices[0];
  const middle = at.x + at.w / 2;
  const isEmulated = it.devices.length > 0 && it.devices.every((one) => one.emulated);
  const stale = it.role === 'validator' && it.age == null ? 'is-gone' : '';
  const box = html`<rect class="box" x=${at.x} y=${at.y} width=${at.w} height=${at.h}
    rx=${it.role === 'provider' ? 7 : 20} />`;
  const text = (dy, what, name = '') => html`<text class=${name} x=${middle} y=${at.y + dy}
    text-anchor="middle">${what}</text>`;
  if (it.role !== 'provider') {
    const below = it.role === 'me' ? it.name : it.age == null ? 'silent' : it.leads ? 'leads' : `log ${it.applied}`;
    return html`<g class=${`node ${it.role} ${stale} ${it.leads ? 'leads' : ''}`}>${box}
      ${text(19, it.role === 'me' ? 'this gateway' : it.name, 'strong')}${text(35, below, 'dim')}</g>`;
  }
  const label = `${it.name}: ${device?.device ?? 'nothing on offer'}${isEmulated ? ', emulated' : ''}`;
  return html`<a href=${`#/network/${it.account}`} aria-label=${isNamed ? undefined : label} class=${`node provider ${
      isEmulated ? 'is-emulated' : ''} ${isChosen ? 'is-chosen' : ''}`}>${box}
    ${isNamed && text(18, it.name, 'strong')}
    ${isNamed && text(34, cut(device?.device ?? '–', 22))}
    ${isNamed && text(49, [isEmulated && 'emulated', it.busy > 0 && `busy ${words.percent(it.busy)}`]
      .filter(Boolean).join(' · ') || 'real', 'dim')}</a>`;
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function Chosen({ it, link }) {
  return html`<${Panel} title=${html`<${Account} account=${it.account} name=${it.name} />`} id="chosen"
      aside=${it.age > 0 ? `on offer ${words.seconds(it.age)} ago` : 'on offer now'}>
    ${it.devices.map((one) => html`<div class="receipt"><${Device} device=${one.device} emulated=${one.emulated} />
      <${Facts} rows=${[
        ['kind', one.kind],
        ['f32', words.throughput(one.throughput.f32)],
        ['memory', words.bytes(one.memory_bytes)],
        ['its memory moves', words.rate(one.memory_bandwidth)],
        one.power_milliwatts > 0 && ['power', words.watts(one.power_milliwatts)],
        ['credits a second', html`<span class="price">${words.credits(one.price)}</span>`],
        ['units', one.units],
        one.region !== 'unstated' && ['region', one.region],
      ]} />
      <div class="actions"><a href=${`#/market/${one.class}`}>its class</a>
        <a href=${`#/submit?device=${encodeURIComponent(one.device)}`}>buy here only</a></div></div>`)}
    <${Facts} rows=${[
      ['busy', html`<meter min="0" max="1" value=${it.busy ?? 0}></meter> ${it.busy == null ? '–' : words.percent(it.busy)}`],
      ['leases', it.leases ?? '–'],
      ['reputation', it.reputation == null ? '–' : `${it.reputation} of 1000`],
      it.stake > 0 && ['stake', words.credits(it.stake)],
      ['connection', link.route ?? 'none now'],
      ['rate', words.rate(link.rate)],
      ['round trip', link.trip == null ? 'not measured' : words.seconds(link.trip)],
      link.used && ['last used', words.moment(link.used)],
    ]} />
    <div class="actions"><a href=${`#/earnings/${it.account}`}>what it earned</a></div><//>`;
}

function Links({ nodes, links }) {
  const name = (account) => nodes.find((it) => it.account === account)?.name || words.short(account);
  const columns = [
    { name: 'from', value: (it) => name(it.from) },
    { name: 'to', value: (it) => name(it.to) },
    { name: 'connection', value: (it) => it.route, cell: (it) => it.route ?? '–' },
    { name: 'rate', numeric: true, value: (it) => it.bytes_per_second, cell: (it) => words.rate(it.bytes_per_second) },
    { name: 'round trip', numeric: true, value: (it) => it.round_trip,
      cell: (it) => (it.round_trip == null ? 'not measured' : words.seconds(it.round_trip)) },
    { name: 'last used', wide: true, value: (it) => it.used_at, cell: (it) => words.moment(it.used_at) },
  ];
  return html`<${Table} caption="Ways between" columns=${columns} rows=${links} />`;
}

function Providers({ all, chosen }) {
  const least = (it, name) => it.devices[0]?.[name];
  const columns = [
    { name: 'provider', value: (it) => it.name, cell: (it) => html`<a href=${`#/network/${it.account}`}
      aria-current=${it === chosen ? 'true' : undefined}><${Account} account=${it.account} name=${it.name} /></a>` },
    { name: 'devices', cell: (it) => it.devices.map((one) => html`<div><${Device} device=${one.device}
      emulated=${one.emulated} /></div>`) },
    { name: 'kind', wide: true, value: (it) => least(it, 'kind') },
    { name: 'region', wide: true, value: (it) => least(it, 'region') },
    { name: 'price', numeric: true, value: (it) => least(it, 'price'), cell: (it) => words.credits(least(it, 'price')) },
    { name: 'busy', numeric: true, first: 'down', value: (it) => it.busy,
      cell: (it) => (it.busy == null ? '–' : words.percent(it.busy)) },
    { name: 'leases', numeric: true, wide: true, first: 'down', value: (it) => it.leases },
    { name: 'reputation', numeric: true, wide: true, first: 'down', value: (it) => it.reputation },
    { name: 'seen', numeric: true, wide: true, value: (it) => it.age,
      cell: (it) => (it.age > 0 ? `${words.seconds(it.age)} ago` : 'now') },
  ];
  return html`<${Panel} title="Providers"><${Table} caption="Providers" columns=${columns} rows=${all}
    rowKey=${(it) => it.account} isChosen=${(it) => it === chosen} empty="None has anything on offer now." /><//>`;
}

// Figures and names as people read them: the same words as the command line's.

const MINUS = '\u2212';
const THIN = '\u202f';

/** @param {string} digits */
function grouped(digits) {
  return digits.replace(/\B(?=(\d{3})+$)/g, THIN);
}

/** @param {number} value */
export function count(value) {
  return grouped(String(value));
}

/** "1 lease", "2 leases". @param {number} value @param {string} noun */
export function counted(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? '' : 's'}`;
}

/**
 * Micro-credits as credits, with at least two decimals and no zero more than that.
 * @param {number | null | undefined} micro
 */
export function credits(micro) {
  if (micro == null) return '–';
  const size = Math.abs(micro);
  const whole = Math.floor(size / 1e6);
  const rest = String(Math.round(size % 1e6)).padStart(6, '0').replace(/0{1,4}$/, '');
  return `${micro < 0 ? MINUS : ''}${grouped(String(whole))}.${rest}`;
}

/** The same with six decimals, so that figures stand under each other. @param {number} micro */
export function ledger(micro) {
  const [whole, rest] = credits(micro).split('.');
  return `${whole}.${rest.padEnd(6, '0')}`;
}

/** @param {number} value @param {number} digits */
function significant(value, digits = 3) {
  if (value === 0) return '0';
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  const text = value.toFixed(Math.min(places, 12));
  return text.includes('.') ? text.replace(/\.?0+$/, '') : grouped(text);
}

/** A figure with the largest prefix that leaves a digit before the point. @param {number} value @param {string} unit */
function scaled(value, unit) {
  const steps = [[1e15, 'P'], [1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];
  for (const [size, prefix] of /** @type {[number, string][]} */ (steps)) {
    if (value >= size) return `${significant(value / size)} ${prefix}${unit}`;
  }
  return `${significant(value)} ${unit}`;
}

/** @param {number | null | undefined} value */
export function bytes(value) {
  return value == null ? '–' : scaled(value, 'B');
}

/** Mega-operations a second, as asks have them. @param {number | null | undefined} mega */
export function throughput(mega) {
  return mega ? scaled(mega * 1e6, 'op/s') : '–';
}

/** @param {number | null | undefined} value */
export function rate(value) {
  return value == null ? 'not measured' : scaled(value, 'B/s');
}

/** @param {number | null | undefined} milli */
export function watts(milli) {
  return milli ? scaled(milli / 1000, 'W') : '–';
}

/** A length of time. @param {number | null | undefined} value in seconds */
export function seconds(value) {
  if (value == null) return '–';
  const size = Math.abs(value);
  if (size === 0) return '0 s';
  if (size < 1e-3) return `${significant(value * 1e6)} µs`;
  if (size < 1) return `${significant(value * 1e3)} ms`;
  if (size < 120) return `${significant(value)} s`;
  const minutes = Math.round(value / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.round(value / 3600);
  return hours < 48 ? `${hours} h` : `${Math.round(value / 86400)} days`;
}

/** @param {number} part from 0 to 1 */
export function percent(part) {
  const value = part * 100;
  return `${value > 0 && value < 1 ? '< 1' : Math.round(value)} %`;
}

/** An account or a hash, short enough to be read aloud. @param {string | null | undefined} id */
export function short(id) {
  return id ? id.slice(0, 8) : '–';
}

/** @param {Date} date */
function clockOf(date) {
  return date.toLocaleTimeString('en-GB');
}

/** @param {number} at in seconds */
export function timeOfDay(at) {
  return new Date(at * 1000).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' });
}

/** The time of day; the day too where it is not today. @param {string | number | null} at */
export function moment(at) {
  if (at == null) return '–';
  const date = new Date(at);
  const isToday = date.toDateString() === new Date().toDateString();
  const day = date.toLocaleDateString('en-CA');
  return isToday ? clockOf(date) : `${day} ${clockOf(date)}`;
}

/**
 * Micro-credits for a million million operations, by a price for a device-second.
 * @param {number} price
 * @param {number | null | undefined} mega
 */
export function perTera(price, mega) {
  return mega ? price / (mega / 1e6) : null;
}

/** A price that may be far below a micro-credit. @param {number | null | undefined} micro */
export function finePrice(micro) {
  return micro == null ? '–' : significant(micro / 1e6, 3);
}

/** A band such as `4096 to 16384 GiB`, with the prefix that suits it. @param {string} band */
function bandOf(band) {
  const [, least, most, unit] = /^(\d+) to (\d+) (GiB\/s|GiB|Gop\/s)$/.exec(band) ?? [];
  if (!unit) return band;
  const step = unit === 'Gop/s' ? 1000 : 1024;
  const power = Number(least) >= step ** 2 ? 2 : Number(least) >= step ? 1 : 0;
  const size = (value) => significant(Number(value) / step ** power);
  return `${size(least)}–${size(most)} ${'GTP'[power]}${unit.slice(1)}`;
}

/** `gpu-m5-t7-b6-emulated` in words, with its bands. @param {{class: string, bands: string}} it */
export function className(it) {
  const kind = it.class.split('-')[0];
  return [kind, ...it.bands.split(', ').map(bandOf)].join(' · ');
}

/** A word of the API as people say it: `lease_closed` is "lease closed". @param {string} word */
export function spaced(word) {
  return word.replaceAll('_', ' ').replaceAll('-', ' ');
}

/** How a job stands, in a word or two. @type {Record<string, string>} */
export const STANDING = {
  accepted: 'waits to begin',
  running: 'runs',
  abandoned: 'left behind',
  done: 'done',
  interrupted: 'interrupted',
  failed: 'failed',
  refused: 'refused',
};

/** How the page writes numbers, sizes and times. */

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const three = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 });

/** What stands where nothing is known. */
export const nothing = '–';

export const count = (value: number): string => whole.format(value);
export const number = (value: number): string =>
  Math.abs(value) >= 1000 ? count(value) : three.format(value);
export const percent = (share: number): string => `${Math.round(100 * share)} %`;

const sizes = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

export function size(value: number): string {
  let at = 0;
  let left = value;
  while (left >= 1024 && at < sizes.length - 1) {
    left /= 1024;
    at++;
  }
  return `${three.format(left)} ${sizes[at]}`;
}

/** Two units at most: `3 d 4 h`, `12 min`, `41 s`, `85 ms`. */
export function duration(ms: number): string {
  if (ms < 0) return `−${duration(-ms)}`;
  if (ms < 1000) return `${three.format(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? three.format(s) : Math.floor(s)} s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return minutes < 10 ? `${minutes} min ${Math.floor(s % 60)} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const clock = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit' });
const dayAndClock = new Intl.DateTimeFormat('en-GB', {
  day: 'numeric',
  month: 'short',
  hour: '2-digit',
  minute: '2-digit',
});
const date = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short', year: 'numeric' });

/** Today by the clock, else with its day. */
export function moment(ms: number, now_ms: number): string {
  const today = new Date(ms).toDateString() === new Date(now_ms).toDateString();
  return (today ? clock : dayAndClock).format(ms);
}

export const day = (ms: number): string => date.format(ms);

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

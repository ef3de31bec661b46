const months = [
  'January',
  'February',
  'March',
  'April',
  'May',
  'June',
  'July',
  'August',
  'September',
  'October',
  'November',
  'December',
];
const days = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];

/**
 * A time in UTC as C's `strftime` writes it in the C locale, as far as chat templates ask: unknown conversions
 * stay as they are.
 *
 * @param time_ms Unix ms
 */
export function strftime(time_ms: number, format: string): string {
  const date = new Date(time_ms);
  const two = (value: number): string => String(value).padStart(2, '0');
  const conversions: Record<string, () => string> = {
    Y: () => String(date.getUTCFullYear()),
    y: () => two(date.getUTCFullYear() % 100),
    m: () => two(date.getUTCMonth() + 1),
    B: () => months[date.getUTCMonth()]!,
    b: () => months[date.getUTCMonth()]!.slice(0, 3),
    d: () => two(date.getUTCDate()),
    A: () => days[date.getUTCDay()]!,
    a: () => days[date.getUTCDay()]!.slice(0, 3),
    H: () => two(date.getUTCHours()),
    I: () => two(date.getUTCHours() % 12 || 12),
    p: () => (date.getUTCHours() < 12 ? 'AM' : 'PM'),
    M: () => two(date.getUTCMinutes()),
    S: () => two(date.getUTCSeconds()),
    '%': () => '%',
  };
  return format.replace(/%(.)/g, (whole, letter: string) => conversions[letter]?.() ?? whole);
}

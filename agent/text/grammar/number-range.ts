import { either, literal } from './gbnf.ts';

/** Digits of a number without bounds. Higher: more of what models write in full precision; lower: shorter loops. */
const digits_max = 16;

/** Inclusive; absent: no bound. */
export interface IntegerRange {
  min?: bigint;
  max?: bigint;
}

/** @returns GBNF of exactly the integers in a range; undefined where it is empty. */
export function integerRange(range: IntegerRange): string | undefined {
  const { min, max } = range;
  const alternatives: string[] = [];
  // Negative numbers, by their absolute values.
  if (min === undefined || min < 0n) {
    const low = max === undefined || max >= 0n ? 1n : -max;
    const high = min === undefined ? undefined : -min;
    const digits = naturals(low, high);
    if (digits !== undefined) alternatives.push(`"-" ${digits}`);
  }
  if (max === undefined || max >= 0n) {
    const digits = naturals(min === undefined || min < 0n ? 0n : min, max);
    if (digits !== undefined) alternatives.push(digits);
  }
  return alternatives.length === 0 ? undefined : either(alternatives);
}

/** Natural numbers from low to high, without leading zeros. */
function naturals(low: bigint, high: bigint | undefined): string | undefined {
  if (high !== undefined && low > high) return undefined;
  const from = low.toString();
  const alternatives: string[] = [];
  const longest = high === undefined ? from.length : high.toString().length;
  for (let length = from.length; length <= longest; length++) {
    const first = length === from.length ? from : `1${'0'.repeat(length - 1)}`;
    const last = high !== undefined && length === longest ? high.toString() : '9'.repeat(length);
    alternatives.push(sameLength(first, last));
  }
  if (high === undefined)
    alternatives.push(`[1-9] [0-9]{${from.length},${Math.max(digits_max, from.length)}}`);
  return either(alternatives);
}

/** Digit strings between two of the same length, both included. */
function sameLength(low: string, high: string): string {
  if (low === high) return literal(low);
  const rest = low.length - 1;
  if (/^.0*$/.test(low) && /^.9*$/.test(high)) return `${digitClass(low[0]!, high[0]!)}${anyDigits(rest)}`;
  if (low[0] === high[0]) return `${literal(low[0]!)} ${sameLength(low.slice(1), high.slice(1))}`;
  const alternatives = [`${literal(low[0]!)} ${sameLength(low.slice(1), '9'.repeat(rest))}`];
  const between = [Number(low[0]) + 1, Number(high[0]) - 1] as const;
  if (between[0] <= between[1])
    alternatives.push(`${digitClass(String(between[0]), String(between[1]))}${anyDigits(rest)}`);
  alternatives.push(`${literal(high[0]!)} ${sameLength('0'.repeat(rest), high.slice(1))}`);
  return either(alternatives);
}

function digitClass(low: string, high: string): string {
  return low === high ? literal(low) : `[${low}-${high}]`;
}

function anyDigits(count: number): string {
  return count === 0 ? '' : ` [0-9]{${count}}`;
}

interface DecimalBound {
  value: number;
  exclusive: boolean;
}

export interface DecimalRange {
  min?: DecimalBound;
  max?: DecimalBound;
}

/**
 * GBNF of decimal numbers (without exponent) in a range; undefined where it is empty. Split at zero, then
 * by integer part: strictly inside any fraction may follow, at the ends only fractions on the right side.
 */
export function decimalRange(range: DecimalRange): string | undefined {
  const { min, max } = range;
  const alternatives: string[] = [];
  if (min === undefined || min.value < 0) {
    const low = max !== undefined && max.value < 0 ? negate(max) : { value: 0, exclusive: true };
    const digits = magnitudes(low, min && negate(min));
    if (digits !== undefined) alternatives.push(`"-" ${digits}`);
  }
  if (max === undefined || max.value >= 0) {
    const low = min !== undefined && min.value >= 0 ? min : { value: 0, exclusive: false };
    const digits = magnitudes(low, max);
    if (digits !== undefined) alternatives.push(digits);
  }
  return alternatives.length === 0 ? undefined : either(alternatives);
}

const negate = (bound: DecimalBound): DecimalBound => ({ value: -bound.value, exclusive: bound.exclusive });

interface Decimal {
  whole: bigint;
  /** Digits after the point, without trailing zeros. */
  fraction: string;
  exclusive: boolean;
}

function toDecimal(bound: DecimalBound): Decimal {
  const [mantissa, exponent] = bound.value.toString().split('e') as [string, string | undefined];
  const [whole, fraction = ''] = mantissa.split('.') as [string, string | undefined];
  const shift = Number(exponent ?? 0);
  let digits = whole + fraction;
  let point = whole.length + shift;
  if (point < 0) {
    digits = '0'.repeat(-point) + digits;
    point = 0;
  }
  digits = digits.padEnd(point, '0');
  return {
    whole: BigInt(digits.slice(0, point) || '0'),
    fraction: digits.slice(point).replace(/0+$/, ''),
    exclusive: bound.exclusive,
  };
}

const anyFraction = `("." [0-9]{1,${digits_max}})?`;

function magnitudes(lowBound: DecimalBound, highBound: DecimalBound | undefined): string | undefined {
  const low = toDecimal(lowBound);
  const high = highBound && toDecimal(highBound);
  const alternatives: string[] = [];
  const push = (whole: bigint, fraction: string | undefined) => {
    if (fraction !== undefined) alternatives.push(`${literal(whole.toString())} ${fraction}`);
  };
  if (high === undefined) {
    push(low.whole, fractionFrom(low));
    alternatives.push(`${integerRange({ min: low.whole + 1n })!} ${anyFraction}`);
    return either(alternatives);
  }
  if (low.whole > high.whole) return undefined;
  if (low.whole === high.whole) {
    push(low.whole, fractionBetween(low, high));
  } else {
    push(low.whole, fractionFrom(low));
    const inner = integerRange({ min: low.whole + 1n, max: high.whole - 1n });
    if (inner !== undefined) alternatives.push(`${inner} ${anyFraction}`);
    push(high.whole, fractionTo(high));
  }
  return alternatives.length === 0 ? undefined : either(alternatives);
}

function fractionFrom(low: Decimal): string {
  if (low.fraction === '' && !low.exclusive) return anyFraction;
  return `"." ${digitsFrom(low.fraction, low.exclusive)}`;
}

function fractionTo(high: Decimal): string | undefined {
  if (high.fraction === '') return high.exclusive ? undefined : `("." "0"{1,${digits_max}})?`;
  return `("." ${digitsTo(high.fraction, high.exclusive)})?`;
}

function fractionBetween(low: Decimal, high: Decimal): string | undefined {
  const length = Math.max(low.fraction.length, high.fraction.length);
  const from = low.fraction.padEnd(length, '0');
  const to = high.fraction.padEnd(length, '0');
  if (from > to || (from === to && (low.exclusive || high.exclusive))) return undefined;
  const digits = digitsBetween(from, to, low.exclusive, high.exclusive);
  const needed = low.fraction !== '' || low.exclusive;
  if (digits === undefined) return needed ? undefined : '""';
  return needed ? `"." ${digits}` : `("." ${digits})?`;
}

/** Digits of a fraction not below 0.floor. */
function digitsFrom(floor: string, exclusive: boolean): string {
  if (floor === '')
    return exclusive ? `"0"{0,${digits_max}} [1-9] [0-9]{0,${digits_max}}` : `[0-9]{0,${digits_max}}`;
  const alternatives: string[] = [];
  if (floor[0]! < '9')
    alternatives.push(`${digitClass(String(Number(floor[0]) + 1), '9')} [0-9]{0,${digits_max}}`);
  alternatives.push(`${literal(floor[0]!)} ${digitsFrom(floor.slice(1), exclusive)}`);
  return either(alternatives);
}

/** At least one digit of a fraction not above 0.ceiling; the ceiling does not end with 0. */
function digitsTo(ceiling: string, exclusive: boolean): string {
  const alternatives: string[] = [];
  if (ceiling[0]! > '0')
    alternatives.push(`${digitClass('0', String(Number(ceiling[0]) - 1))} [0-9]{0,${digits_max}}`);
  const rest = ceiling.slice(1);
  if (rest !== '') alternatives.push(`${literal(ceiling[0]!)} (${digitsTo(rest, exclusive)})?`);
  else if (!exclusive) alternatives.push(`${literal(ceiling[0]!)} "0"{0,${digits_max}}`);
  return either(alternatives);
}

/** Fractions between two of the same number of digits, ends as told; undefined where none is left. */
function digitsBetween(
  low: string,
  high: string,
  lowExclusive: boolean,
  highExclusive: boolean,
): string | undefined {
  if (low === '') return lowExclusive || highExclusive ? undefined : `"0"{0,${digits_max}}`;
  if (low[0] === high[0]) {
    const rest = digitsBetween(low.slice(1), high.slice(1), lowExclusive, highExclusive);
    return rest === undefined ? undefined : `${literal(low[0]!)} ${rest}`;
  }
  const alternatives = [`${literal(low[0]!)} ${digitsFrom(low.slice(1).replace(/0+$/, ''), lowExclusive)}`];
  const inner = [Number(low[0]) + 1, Number(high[0]) - 1] as const;
  if (inner[0] <= inner[1])
    alternatives.push(`${digitClass(String(inner[0]), String(inner[1]))} [0-9]{0,${digits_max}}`);
  const rest = high.slice(1).replace(/0+$/, '');
  if (rest !== '') alternatives.push(`${literal(high[0]!)} (${digitsTo(rest, highExclusive)})?`);
  else if (!highExclusive) alternatives.push(`${literal(high[0]!)} "0"{0,${digits_max}}`);
  return either(alternatives);
}

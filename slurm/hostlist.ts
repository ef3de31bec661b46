/** Slurm's compact lists of nodes: `gh[1-2,5],rack[01-03]n4`. */

const nodes_max = 100_000;

/**
 * The nodes of a list in their order.
 * @throws RangeError when brackets do not match or the list is absurdly long.
 */
export function expandHostlist(list: string): string[] {
  const text = list.trim();
  if (text === '' || text === '(null)' || text === 'None assigned' || text === 'n/a') return [];
  return splitOutsideBrackets(text).flatMap(expandOne);
}

/** As `expandHostlist`; undefined for a list of a form that nobody knows, which spoils no other line of an answer. */
export function readHostlist(list: string): string[] | undefined {
  try {
    return expandHostlist(list);
  } catch (error) {
    if (error instanceof RangeError) return undefined;
    throw error;
  }
}

function splitOutsideBrackets(list: string): string[] {
  const parts: string[] = [];
  let depth = 0;
  let part = '';
  for (const character of list) {
    if (character === '[') depth++;
    if (character === ']') depth--;
    if (depth < 0 || depth > 1) throw new RangeError(`node list ${list}: brackets do not match`);
    if (character === ',' && depth === 0) {
      parts.push(part);
      part = '';
    } else part += character;
  }
  if (depth !== 0) throw new RangeError(`node list ${list}: brackets do not match`);
  return [...parts, part].filter((name) => name !== '');
}

function expandOne(name: string): string[] {
  const open = name.indexOf('[');
  if (open < 0) return [name];
  const close = name.indexOf(']', open);
  const before = name.slice(0, open);
  const tails = expandOne(name.slice(close + 1));
  const numbers = name
    .slice(open + 1, close)
    .split(',')
    .flatMap(expandRange);
  if (numbers.length * tails.length > nodes_max) throw new RangeError(`node list ${name}: too many nodes`);
  return numbers.flatMap((number) => tails.map((tail) => `${before}${number}${tail}`));
}

/** `01-03` keeps its leading zeros: 01, 02, 03. */
function expandRange(range: string): string[] {
  const match = /^(\d+)(?:-(\d+))?$/.exec(range);
  if (match === null) throw new RangeError(`node list: ${JSON.stringify(range)} is no range of numbers`);
  const [, first = '', last = first] = match;
  const count = Number(last) - Number(first) + 1;
  if (count < 1 || count > nodes_max) throw new RangeError(`node list: the range ${range} is not usable`);
  return Array.from({ length: count }, (_, index) =>
    String(Number(first) + index).padStart(first.length, '0'),
  );
}

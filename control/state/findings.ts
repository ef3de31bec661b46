/** What agents say went wrong, as one finding of a unit: what, because of what, what to do. */
import type { ErrorJson } from '../../spec/errors/error.ts';

export interface Finding {
  what: string;
  because: string[];
  try: string[];
}

/** An error as it stands in a state file: as JSON, or (in a model's state) as the text people read. */
export function findingOf(error: ErrorJson | string | undefined): Finding | undefined {
  if (error === undefined) return undefined;
  if (typeof error === 'string') return parseText(error);
  return { what: error.what, because: [...error.because], try: [...error.try] };
}

/** `what: because; because`, on one line. */
export function sentenceOf({ what, because }: Pick<Finding, 'what' | 'because'>): string {
  const reasons = because.map(oneLine).filter((line) => !what.includes(line));
  return [oneLine(what), reasons.join('; ')].filter(Boolean).join(': ');
}

/** Reads the form of HpcserveError.toText; lines of another form belong to the one before them. */
function parseText(text: string): Finding {
  const finding: Finding = { what: '', because: [], try: [] };
  for (const line of text.split('\n').map((each) => each.trim())) {
    const [, key, rest = ''] = /^(because|try): (.*)$/.exec(line) ?? [];
    if (key === 'because' || key === 'try') finding[key].push(rest);
    else if (finding.what === '') finding.what = line.replace(/^error: /, '').replace(/ \[E_[A-Z_]+\]$/, '');
    else if (line !== '') finding.because.push(line);
  }
  return finding;
}

function oneLine(text: string): string {
  return text.split(/\s*\n\s*/).join('; ');
}

/** `--group-by`: dimensions with commas between. Commands that share the option take different ones. */
import { InvalidArgumentError } from 'commander';
import type { z } from 'zod';
import { HpcserveError } from '../spec/errors/error.ts';
import { nearest } from '../spec/nearest.ts';

/** @param known all that any of the commands takes. @throws InvalidArgumentError for another word */
export function parseGroupBy(text: string, known: readonly string[]): string[] {
  const names = text.split(',').map((name) => name.trim());
  const unknown = names.find((name) => !known.includes(name));
  if (unknown === undefined) return names;
  const close = nearest(unknown, known);
  throw new InvalidArgumentError(
    `names with commas of ${known.join(', ')}${close ? `; did you mean ${close}?` : ''}`,
  );
}

/** @param schema of those that this command takes. @throws E_USAGE */
export function checkGroupBy<Names>(
  names: readonly string[],
  schema: z.ZodType<Names>,
  taken: readonly string[],
): Names {
  const parsed = schema.safeParse(names);
  if (parsed.success) return parsed.data;
  const other = names.find((name) => !taken.includes(name));
  throw new HpcserveError('E_USAGE', {
    what: `this cannot be summed by ${names.join(',')} (--group-by)`,
    because:
      other === undefined ? parsed.error.issues[0]!.message : `${other} is none of ${taken.join(', ')}`,
  });
}

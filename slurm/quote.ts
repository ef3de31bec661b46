/**
 * The one place where text becomes part of a script. Everything a template prints with `<%= %>` goes
 * through `shellQuote`; everything behind `#SBATCH` goes through `directiveLine`.
 */
import { HpcserveError } from '../spec/errors/error.ts';

/** Words that mean the same to a shell with and without quotes. */
const plainWord = /^[A-Za-z0-9_@%+=:,./-]+$/;

/**
 * One word of a POSIX shell that stands for exactly `text`, newlines and quotes included.
 * @throws E_SLURM_SCRIPT for a NUL character, which no shell word can hold.
 */
export function shellQuote(text: string): string {
  if (text.includes('\0'))
    throw new HpcserveError('E_SLURM_SCRIPT', {
      what: `${JSON.stringify(text)} holds a NUL character, which no command line can carry`,
      details: { text },
    });
  // A leading `=` or `~` or an assignment-like word is safe as an argument only when quoted.
  if (plainWord.test(text) && !/^[=~]/.test(text) && !/^[A-Za-z_]\w*=/.test(text)) return text;
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** Values sbatch's own line reader takes as they are: no space, quote, backslash or `#` (a comment to it). */
const plainDirectiveValue = /^[^\s"'\\#]+$/;

/**
 * One `#SBATCH` line. sbatch reads these lines itself: double quotes group, a backslash escapes, `#` begins
 * a comment, and there is no way to write a line break.
 * @throws E_SLURM_SCRIPT when the value cannot be written on one line.
 */
export function directiveLine(name: string, value?: string): string {
  if (!/^[a-z][a-z-]*$/.test(name))
    throw new HpcserveError('E_SLURM_SCRIPT', {
      what: `${JSON.stringify(name)} is not the long name of an sbatch option`,
      details: { name },
    });
  if (value === undefined) return `#SBATCH --${name}`;
  refuseControlCharacters(`--${name}`, value);
  const written = plainDirectiveValue.test(value) ? value : `"${value.replace(/[\\"]/g, '\\$&')}"`;
  return `#SBATCH --${name}=${written}`;
}

/**
 * A line of a site config that goes into the script as it is, such as "--hint=nomultithread".
 * @throws E_SLURM_SCRIPT when it is not one option on one line.
 */
export function verbatimDirectiveLine(option: string): string {
  refuseControlCharacters('an extra #SBATCH option', option);
  if (!/^-{1,2}[A-Za-z]/.test(option))
    throw new HpcserveError('E_SLURM_SCRIPT', {
      what: `the extra #SBATCH option ${JSON.stringify(option)} does not begin with "-"`,
      try: 'write it as on the command line of sbatch, such as "--hint=nomultithread"',
      details: { option },
    });
  return `#SBATCH ${option}`;
}

/**
 * Text for a `#` comment of the script.
 * Control characters and line separators become spaces: a comment must not end early.
 */
export function commentText(text: string): string {
  return text.replace(/[\u0000-\u001f\u007f\u0085\u2028\u2029]/g, ' ');
}

function refuseControlCharacters(what: string, value: string): void {
  if (/[\u0000-\u001f\u007f]/.test(value) || value === '')
    throw new HpcserveError('E_SLURM_SCRIPT', {
      what: `${what} has the value ${JSON.stringify(value)}, which cannot stand in a #SBATCH line`,
      because: value === '' ? 'it is empty' : 'it holds a line break or another control character',
      details: { value },
    });
}

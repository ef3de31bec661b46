/**
 * A number with a unit says so at the end of its name, in one of these units and in this form: `drain_ms`,
 * `walltime_s`, `kv_bytes`, `prompt_tokens`. Behind the unit stands only what of it is meant: `kv_bytes_free`,
 * `tick_ms_max`.
 */
import { type DeclaredName, declaredName } from '../declared-names.ts';
import type { StyleRule } from '../rule.ts';
import { findingsOf } from '../walk.ts';
import { foreignNames } from './foreign-names.ts';

/** Units in the form of other houses. */
const otherForm =
  /_(secs?|seconds|msecs?|millis|milliseconds|usecs?|mins|hrs|kilobytes|megabytes|gigabytes)$/;
const camelTime =
  /[a-z0-9](Ms|Us|Ns|Secs?|Seconds|Millis|Milliseconds|Minutes|Hours|Kb|Mb|Gb|Kib|Mib|Gib)(Max|Min)?$/;
/** Bytes and tokens are also things: only a number of them is a unit. */
const camelCount = /[a-z0-9](?<!Of)(Bytes|Tokens)(Max|Min)?$/;
const timeInside = /(?<!_per)_(ns|us|ms|s)_(?!max$|min$|default$|per_)/;
/** Units that a function reads or writes are what it is about, not what it answers in. */
const about = /^(parse|format|describe|compare|read|write|print|is|has|add)[A-Z]/;

export const units: StyleRule = {
  name: 'units',
  instead: 'a unit is the last part of the name and one of the list: `_ms`, `_s`, `_bytes`, `_tokens`, …',
  find: (files) =>
    findingsOf(files, (node) => {
      const name = declaredName(node);
      return name && isWrong(name) ? name.text : undefined;
    }),
};

function isWrong({ text, kind, number }: DeclaredName): boolean {
  if (kind === 'type' || foreignNames.has(text)) return false;
  if (otherForm.test(text) || timeInside.test(text)) return true;
  if (kind === 'function' && about.test(text)) return false;
  return camelTime.test(text) || (number && camelCount.test(text));
}

/**
 * `node dist/.ci/write-style-exceptions.js [--grow]`: writes what does not keep to the rules of style yet into
 * `.ci/style-exceptions.json`. It refuses where a file has more of it than before, unless it is told to let the list
 * grow: after files were moved, or for a rule that is new.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../host/package-root.ts';
import {
  countByFile,
  differences,
  type Exceptions,
  exceptionsPath,
  readExceptions,
} from './style/exceptions.ts';
import { styleRules } from './style/index.ts';
import { sourceFiles } from './style/source-files.ts';

const listed = readExceptions();
const files = sourceFiles();
const counts: Exceptions = Object.fromEntries(
  styleRules.map((rule) => [rule.name, countByFile(rule.find(files))]),
);
const grown = styleRules.flatMap(({ name, instead }) =>
  differences(listed[name] ?? {}, counts[name]!)
    .filter(({ listed, found }) => found > listed)
    .map(({ path, listed, found }) => `${path}: ${found} of ${name}, ${listed} were listed (${instead})`),
);

if (grown.length > 0 && !process.argv.includes('--grow')) {
  console.error(grown.join('\n'));
  console.error(`nothing is written: mend ${grown.length === 1 ? 'it' : 'them'}, or say --grow`);
  process.exitCode = 1;
} else {
  writeFileSync(join(packageRoot, exceptionsPath), `${JSON.stringify(counts, undefined, 2)}\n`);
  for (const { name } of styleRules) {
    const sum = (list: Record<string, number>): number => Object.values(list).reduce((a, b) => a + b, 0);
    console.log(`${name}: ${sum(counts[name]!)} (${sum(listed[name] ?? {})} before)`);
  }
}

/** `npm run bench -- NAME [--json] [--keep]`: runs one bench, prints its table, ends with 1 where a bar fails. */
import { execFileSync } from 'node:child_process';
import { cpus, totalmem } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../host/package-root.ts';
import { nearest } from '../spec/nearest.ts';
import { keepReport } from './kept-reports.ts';
import { benches } from './list.ts';
import { MissingNeed } from './need.ts';
import type { BenchReport, BenchResult } from './result.ts';

const [name, ...rest] = process.argv.slice(2);
await main();

async function main(): Promise<void> {
  const json = rest.includes('--json');
  const load = name === undefined ? undefined : benches[name];
  if (!load || name === undefined) {
    const close = name && nearest(name, Object.keys(benches));
    process.stderr.write(
      `${name ? `error: there is no bench "${name}"${close ? `; did you mean "${close}"?` : ''}\n` : ''}usage: npm run bench -- ${Object.keys(benches).join('|')} [--json] [--keep]\n`,
    );
    process.exit(2);
  }
  const bench = await load();
  const log = (line: string): void => void process.stderr.write(`${line}\n`);
  log(`${bench.name}: ${bench.describe}`);
  if (rest.includes('--help')) {
    log('its options stand in bench/README.md');
    return;
  }
  const args = rest.filter((argument) => argument !== '--json' && argument !== '--keep');
  const date = new Date().toISOString();
  const results = await bench.run({ json, log, args }).catch((error: unknown) => {
    if (!(error instanceof MissingNeed)) throw error;
    log(`error: ${error.message}\n  try: ${error.how}`);
    process.exit(1);
  });
  const report: BenchReport = { bench: bench.name, commit: commit(), date, machine: machine(), results };
  if (rest.includes('--keep')) log(`kept in ${keepReport(report, join(packageRoot, 'bench/results'))}`);
  process.stdout.write(json ? `${JSON.stringify(report)}\n` : table(report));
  process.exit(results.some((result) => result.holds === false) ? 1 : 0);
}

function table(report: BenchReport): string {
  const rows = report.results.map((result) => [
    result.what,
    `${figure(result.ours)} ${result.unit}`,
    result.theirs === null ? '' : `${result.peer}: ${figure(result.theirs)} ${result.unit}`,
    result.ratio === null ? '' : `${result.ratio.toFixed(3)}×`,
    result.bar,
    result.holds === null ? '' : result.holds ? 'holds' : 'DOES NOT HOLD',
  ]);
  const head = ['what', 'ours', 'beside it', 'ratio', 'bar', ''];
  const widths = head.map((title, column) =>
    Math.max(title.length, ...rows.map((row) => row[column]!.length)),
  );
  const line = (row: string[]): string =>
    row
      .map((cell, column) => cell.padEnd(widths[column]!))
      .join('  ')
      .trimEnd();
  return [
    `${report.bench} at ${report.commit} on ${report.machine}, ${report.date}`,
    '',
    line(head),
    ...rows.map(line),
    '',
  ].join('\n');
}

function figure(value: BenchResult['ours']): string {
  if (value === 0) return '0';
  const digits = Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value))) - 1);
  return value.toFixed(Math.min(digits, 6));
}

function commit(): string {
  try {
    return execFileSync('git', ['describe', '--always', '--dirty'], {
      cwd: packageRoot,
      encoding: 'utf8',
    }).trim();
  } catch {
    return 'unknown (not a git checkout)';
  }
}

function machine(): string {
  const all = cpus();
  return `${all[0]?.model.trim() ?? 'unknown CPU'}, ${all.length} cores, ${Math.round(totalmem() / 2 ** 30)} GiB, Node ${process.versions.node}`;
}

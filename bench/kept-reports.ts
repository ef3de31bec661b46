/** Reports of machines that are not always at hand, such as those with a GPU: they stay beside the benches. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { BenchReport } from './result.ts';

/** @returns the file: one a bench and run */
export function keepReport(report: BenchReport, folder: string): string {
  mkdirSync(folder, { recursive: true });
  const file = join(folder, `${report.bench}-${report.date.replaceAll(/[:.]/g, '-')}.json`);
  writeFileSync(file, `${JSON.stringify(report, undefined, 2)}\n`, { flag: 'wx' });
  return file;
}

import { randomBytes } from 'node:crypto';
import { createReadStream, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Command } from 'commander';
import { ledgersOf } from '../../control/state/ledgers.ts';
import { writeFileAtomically } from '../../host/whole-file.ts';
import { analyzeTrace, exportTrace, type TraceAnalysis } from '../../ledger/index.ts';
import { HpcserveError } from '../../spec/errors/error.ts';
import { type TraceRow, traceRowSchema } from '../../spec/trace.ts';
import type { CliContext } from '../context.ts';
import { fittedTable } from '../format/table.ts';
import { traceFigures } from '../format/trace-figures.ts';
import { textWidth, wrap } from '../format/wrap.ts';
import { parseSeconds } from '../parse-seconds.ts';
import { openSite } from '../site-session.ts';
import { addTimes } from './usage.ts';

interface ExportOptions {
  since?: number;
  until?: number;
  hideModels?: true;
  ledger?: string[];
}

interface AnalyzeOptions {
  window: number;
  svg?: string;
}

/** Line breaks of a file that somebody else made; a longer line is no row. */
const line_bytes_max = 1024 * 1024;

export function registerTrace(command: Command, context: CliContext): void {
  command.addHelpText(
    'after',
    `
Examples:
  $ hpcserve trace export --since 30d > trace.jsonl
  $ hpcserve trace analyze trace.jsonl`,
  );
  registerExport(command, context);
  registerAnalyze(command, context);
}

function registerExport(trace: Command, context: CliContext): void {
  addTimes(
    trace
      .command('export')
      .description('Answered requests as JSON lines on stdout: when, which model, how many tokens'),
    context,
  )
    .option('--hide-models', 'ids in the place of names of models')
    .option('--ledger <files...>', 'ledgers to read; those of all gateways of the site by default')
    .addHelpText(
      'after',
      `
Nothing says who asked. Where the site config has gateway.trace, each request has an id for each 16 tokens of its prompt, equal
where two prompts begin alike. Ids are made with a secret of this export alone, which nobody keeps.

Examples:
  $ hpcserve trace export --since 30d > trace.jsonl
  $ hpcserve trace export --hide-models | zstd > trace.jsonl.zst`,
    )
    .action(({ since, until, hideModels, ledger }: ExportOptions) => {
      const secret = randomBytes(32);
      for (const path of ledger ?? ledgersOf(openSite(context).layout))
        for (const row of exportTrace(path, {
          since_ms: since,
          until_ms: until,
          hidesModels: hideModels,
          secret,
        }))
          context.out(JSON.stringify(row));
    });
}

function registerAnalyze(trace: Command, context: CliContext): void {
  trace
    .command('analyze <file>')
    .description(
      'Skew, burstiness, lengths, latency and reuse of prefixes, as in LLMFabric’s figures 7 to 12',
    )
    .option('--window <time>', 'how long a prefix counts as known after it was last seen', parseSeconds, 3600)
    .option('--svg <folder>', 'also write the figures there')
    .addHelpText(
      'after',
      `
Examples:
  $ hpcserve trace export > trace.jsonl && hpcserve trace analyze trace.jsonl
  $ hpcserve trace analyze trace.jsonl --svg figures`,
    )
    .action(async (file: string, { window, svg }: AnalyzeOptions) => {
      const rows = await readTrace(file);
      const analysis = analyzeTrace(rows, 1000 * window);
      if (svg !== undefined) {
        mkdirSync(svg, { recursive: true });
        for (const [name, text] of traceFigures(analysis)) writeFileAtomically(join(svg, name), text);
      }
      if (context.json) context.out(JSON.stringify(analysis));
      else for (const line of analysisLines(analysis, textWidth(context))) context.out(line);
    });
}

/** In the order of their arrival. @throws E_USAGE with the line that is no row of a trace */
async function readTrace(file: string): Promise<TraceRow[]> {
  const rows: TraceRow[] = [];
  let number = 0;
  const input = createReadStream(file);
  const failed = new Promise<never>((_resolve, reject) => input.once('error', reject));
  const lines = createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY });
  const read = async (): Promise<void> => {
    for await (const line of lines) {
      number++;
      if (line.trim() !== '') rows.push(rowOf(line, file, number));
    }
  };
  try {
    await Promise.race([read(), failed]);
  } catch (error) {
    if (error instanceof HpcserveError) throw error;
    throw new HpcserveError('E_USAGE', { what: `${file} cannot be read`, because: (error as Error).message });
  }
  return rows.sort((a, b) => a.time_ms - b.time_ms);
}

function rowOf(line: string, file: string, number: number): TraceRow {
  let json: unknown;
  if (line.length <= line_bytes_max)
    try {
      json = JSON.parse(line);
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
    }
  const parsed = traceRowSchema.safeParse(json);
  if (parsed.success) return parsed.data;
  throw new HpcserveError('E_USAGE', {
    what: `${file}:${number} is no request of a trace`,
    because: parsed.error.issues.map(({ path, message }) => `${path.join('.') || 'the line'}: ${message}`),
    try: 'analyze what `hpcserve trace export` wrote',
  });
}

function analysisLines(
  { requests, models, top3_share, first_ms, last_ms }: TraceAnalysis,
  width: number,
): string[] {
  if (requests === 0) return ['no requests'];
  const day = (time_ms: number): string => new Date(time_ms).toISOString().slice(0, 10);
  const seconds = (ms: number | undefined): string => (ms === undefined ? '-' : (ms / 1000).toFixed(2));
  const percent = (share: number | null): string => (share === null ? '-' : `${(100 * share).toFixed(1)} %`);
  const numbers = [
    'REQUESTS',
    'INPUT',
    'OUTPUT',
    'OUTPUT SHARE',
    'PEAK/MEAN',
    'E2E P50',
    'P95',
    'P99',
    'TPOT P50',
    'P95',
    'REUSED',
  ];
  const table = fittedTable(
    [{ title: 'MODEL' }, ...numbers.map((title) => ({ title, align: 'right' as const }))],
    models.map((model) => [
      model.model,
      String(model.requests),
      String(model.input_tokens),
      String(model.output_tokens),
      percent(model.output_tokens / Math.max(1, model.input_tokens + model.output_tokens)),
      model.burstiness.toFixed(1),
      seconds(model.e2e_ms?.p50),
      seconds(model.e2e_ms?.p95),
      seconds(model.e2e_ms?.p99),
      model.tpot_ms ? `${model.tpot_ms.p50.toFixed(1)} ms` : '-',
      model.tpot_ms ? `${model.tpot_ms.p95.toFixed(1)} ms` : '-',
      percent(model.reused_share),
    ]),
    width,
  );
  return [
    ...wrap(
      `${requests} requests of ${models.length} models, ${day(first_ms)} to ${day(last_ms)}; the first three have ${percent(top3_share)} of the tokens`,
      width,
    ),
    ...table,
  ];
}

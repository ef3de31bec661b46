/**
 * The serving simulator against measurements that were kept out of its calibration, with a roofline beside it,
 * its speed, and the case of LLMFabric §5 Table 1.
 */

import { calibrationFor, roofline } from '../../solver/simulator/calibration.ts';
import {
  iterationIsFitted,
  iterationIsUsable,
  predictIteration,
  predictRecorded,
  predictSilicon,
  recorded_fitted,
  siliconIsFitted,
  siliconIsUsable,
  siliconSaturates,
} from '../calibrate/cases.ts';
import { medianError } from '../calibrate/nelder-mead.ts';
import { operatorIsFitted, type Pair, predictOperator } from '../calibrate/stages.ts';
import {
  iterationRows,
  operatorRows,
  type RecordedRequest,
  recordedRun,
  requireTruth,
  type SiliconRow,
  siliconRows,
} from '../calibrate/tables.ts';
import type { Bench, BenchResult } from '../result.ts';
import { paperCase } from './paper-case.ts';
import { simulatedTokensPerSecond } from './speed.ts';

export const simulatorBench: Bench = {
  name: 'simulator',
  describe:
    'serving simulator: error on measurements kept out of its calibration, speed, the paper’s own case',
  async run({ log }) {
    const folder = requireTruth();
    return [
      ...silicon(folder, log),
      ...recorded(folder),
      ...iterations(folder),
      operators(folder),
      speed(),
      ...paperCase(log),
    ];
  },
};

const percent = (value: number): number => 100 * value;

function error(what: string, ours: readonly Pair[], theirs: readonly Pair[], most?: number): BenchResult {
  const mine = percent(medianError(ours));
  const raw = percent(medianError(theirs));
  return {
    what: `${what} (${ours.length} cases)`,
    unit: '%',
    ours: mine,
    peer: 'roofline alone',
    theirs: raw,
    ratio: raw / mine,
    bar: most === undefined ? '' : `≤ ${most} %`,
    holds: most === undefined ? null : mine <= most,
  };
}

function silicon(folder: string, log: (line: string) => void): BenchResult[] {
  log(
    'split of the silicon table: fitted on vLLM H100 and TensorRT-LLM H200 at TP 2 and 8, batches 4, 16, 64;',
  );
  log(
    '  kept out: vLLM on H200 as a whole GPU, TP 1 and 4, batches 8, 32 and 128, and every row that fills the KV cache',
  );
  const judged = siliconRows(folder).filter(
    (row) => siliconIsUsable(row) && (!siliconIsFitted(row) || siliconSaturates(row)),
  );
  const rows = judged.map((row) => ({
    row,
    ours: predictSilicon(row),
    raw: predictSilicon(row, roofline),
    saturated: siliconSaturates(row),
  }));
  type Entry = (typeof rows)[number];
  const pairs = (
    metric: 'ttft_ms' | 'tpot_ms',
    which: 'ours' | 'raw',
    keep: (entry: Entry) => boolean,
  ): Pair[] => rows.filter(keep).map((entry) => [entry[which][metric], entry.row[metric]]);
  const both = (name: string, keep: (entry: Entry) => boolean): BenchResult[] => [
    error(`TPOT, ${name}`, pairs('tpot_ms', 'ours', keep), pairs('tpot_ms', 'raw', keep), 10),
    error(`TTFT, ${name}`, pairs('ttft_ms', 'ours', keep), pairs('ttft_ms', 'raw', keep), 20),
  ];
  const of = (test: (row: SiliconRow) => boolean) => (entry: Entry) => test(entry.row) && !entry.saturated;
  return [
    ...both('all kept out', () => true),
    ...both(
      'vLLM on H200, a GPU kept out',
      of((row) => row.backend === 'vllm' && row.system === 'h200_sxm'),
    ),
    ...both(
      'TP 1 and 4, kept out',
      of((row) => row.tp === 1 || row.tp === 4),
    ),
    ...both(
      'batches 8, 32, 128, kept out',
      of((row) => [8, 32, 128].includes(row.batch)),
    ),
    ...both(
      'mixture of experts (gpt-oss-120b)',
      of((row) => row.model.includes('gpt-oss')),
    ),
    ...both('KV cache full: the table does not tell its precision', (entry) => entry.saturated),
  ];
}

function recorded(folder: string): BenchResult[] {
  const run = recordedRun(folder);
  const [ours, raw] = [predictRecorded(run), predictRecorded(run, roofline)];
  const judge = (metric: 'e2e_s' | 'ttft_s' | 'tpot_s', most: number): BenchResult => {
    const pairs = (predicted: typeof ours): Pair[] =>
      run
        .map((request: RecordedRequest, index): Pair => [predicted[metric][index]!, request[metric]])
        .slice(recorded_fitted);
    const name = { e2e_s: 'E2E', ttft_s: 'TTFT', tpot_s: 'TPOT' }[metric];
    return error(`${name}, last 200 requests of the recorded vLLM 0.19 run`, pairs(ours), pairs(raw), most);
  };
  return [judge('e2e_s', 10), judge('ttft_s', 20), judge('tpot_s', 10)];
}

function iterations(folder: string): BenchResult[] {
  const rows = iterationRows(folder).filter((row) => iterationIsUsable(row) && !iterationIsFitted(row));
  return (['a100-80gb', 'xeon-32core-amx'] as const).flatMap((device) =>
    (['prefill', 'decode'] as const).map((phase) => {
      const kept = rows.filter((row) => row.device === device && row.phase === phase);
      return error(
        `${phase} iterations kept out, ${device}`,
        kept.map((row): Pair => [predictIteration(row), row.ms]),
        kept.map((row): Pair => [predictIteration(row, roofline), row.ms]),
        phase === 'decode' ? 10 : 20,
      );
    }),
  );
}

function operators(folder: string): BenchResult {
  const rows = operatorRows(folder).filter((row) => !operatorIsFitted(row) && row.operator !== 'elementwise');
  const constants = {
    a100: calibrationFor('vllm', 'ampere').device,
    h100: calibrationFor('vllm', 'hopper').device,
  };
  return error(
    'matrix products at TP 2 and 8, kept out',
    rows.map((row): Pair => [predictOperator(row, constants[row.gpu]), row.ms]),
    rows.map((row): Pair => [predictOperator(row, roofline.device), row.ms]),
  );
}

function speed(): BenchResult {
  const tokens = simulatedTokensPerSecond();
  return {
    what: 'simulated tokens per second of wall time (llama-3.1-8b, Poisson, 20 000 requests)',
    unit: 'million/s',
    ours: tokens / 1e6,
    peer: '',
    theirs: null,
    ratio: null,
    bar: '≥ 1 million/s',
    holds: tokens >= 1e6,
  };
}

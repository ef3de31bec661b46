import { describe, expect, it } from 'vitest';
import { sleepingLines } from '../../../cli/format/sleeping-engines.ts';
import type { SleepingEngine } from '../../../control/gateway/admin.ts';
import type { SleepReport } from '../../../spec/sleep-report.ts';

const options = { colour: false, width: Number.POSITIVE_INFINITY };
const engine = (report: Partial<SleepReport>, more: Partial<SleepingEngine> = {}): SleepingEngine => ({
  session_id: `s-${report.model}`,
  node: 'nid1',
  site: 'here',
  deployment: 'demo',
  job_id: '42',
  devices: [{ kind: 'gpu', model: 'H100-80GB' }],
  report: { model: 'm', engine: 'vllm', device: 'gpu 0', state: 'awake', running: 0, waiting: 0, ...report },
  ...more,
});
const turns = { waiting: 0, waited: 0, refused: 0, change_ms: 2000 };

describe('engines that sleep as text', () => {
  it('stand together where they share a device, each with its state', () => {
    const engines = [
      engine({
        model: 'one',
        running: 3,
        turns: { ...turns, waited: 2 },
        slo: { ttft_ms: 500 },
        wake_ms: 840,
      }),
      engine({ model: 'alone' }, { node: 'nid2' }),
      engine({ model: 'two', state: 'wakes', waiting: 4, turns: { ...turns, refused: 1 }, wake_ms: 2600 }),
      engine({ model: 'other', turns, device: 'gpu 1' }),
      engine({ model: 'thr\u001bee', state: 'asleep', turns }),
    ];
    expect(sleepingLines(engines, options)).toEqual([
      [
        'H100-80GB  nid1, demo, job 42  vllm: 3 in turn, one awake at a time',
        '  MODEL      STATE   PROMISE   RUNNING  WAITING  WAITED  REFUSED  TO WAKE',
        '  one        awake   500/· ms        3        0       2        0   840 ms',
        '  two        wakes   -               0        4       0        1      3 s',
        '  thr\\x1bee  asleep  -               0        0       0        0        -',
      ],
      [
        'H100-80GB  nid2, demo, job 42  vllm: sleeps while nobody asks',
        '  MODEL  STATE  PROMISE  RUNNING  WAITING  WAITED  REFUSED  TO WAKE',
        '  alone  awake  -              0        0       -        -        -',
      ],
      [
        'H100-80GB  nid1, demo, job 42  vllm: 1 in turn, one awake at a time',
        '  MODEL  STATE  PROMISE  RUNNING  WAITING  WAITED  REFUSED  TO WAKE',
        '  other  awake  -              0        0       0        0        -',
      ],
    ]);
  });

  it('keep their state and who waits where the terminal is narrow', () => {
    const [lines] = sleepingLines([engine({ model: 'one', state: 'falls asleep', waiting: 2, turns })], {
      colour: true,
      width: 45,
    });
    const plain = lines!.map((line) => line.replaceAll(/\u001b\[[0-9;]*m/g, ''));
    for (const line of plain) expect([...line].length, line).toBeLessThanOrEqual(45);
    expect(plain.at(-1)).toMatch(/^ {2}one +falls asleep +0 +2/);
  });
});

/**
 * What the agent of a wrapped engine that may sleep says of it at `GET /hpcserve/v1/sleep`, and `hpcserve top` shows.
 */
import { z } from 'zod';
import { turnsReportSchema } from './turns-report.ts';

const count = z.int().min(0);

const sleepStates = ['awake', 'falls asleep', 'asleep', 'wakes'] as const;
/** Whether it has its device's memory: asleep, its weights wait in host memory. */
export type SleepState = (typeof sleepStates)[number];

export const sleepReportSchema = z.object({
  model: z.string(),
  engine: z.string(),
  /** Its first device, as the agent counts them: `gpu 0`. Engines of one agent with the same one share it. */
  device: z.string(),
  state: z.enum(sleepStates),
  /** What its deployment promises; absent: nothing. */
  slo: z.object({ ttft_ms: z.number().optional(), tpot_ms: z.number().optional() }).optional(),
  /** Requests that it was given. */
  running: count,
  /** Requests that wait until it is awake. */
  waiting: count,
  /** What waking takes, as seen last; absent: not seen yet. */
  wake_ms: z.number().min(0).optional(),
  /** Absent: it has its device to itself, and sleeps while nobody asks. */
  turns: turnsReportSchema.optional(),
});

export type SleepReport = z.infer<typeof sleepReportSchema>;
/** What its turns or its keep-alive know of it. */
export type ToldSleep = Pick<SleepReport, 'state' | 'waiting' | 'wake_ms' | 'turns'>;

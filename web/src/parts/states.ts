/** What states of models, sessions and jobs look like. */
import type { SessionRow } from '../api/rows.ts';
import type { Tone } from './basics.tsx';

const tones: Readonly<Record<string, Tone>> = {
  serving: 'good',
  RUNNING: 'good',
  loading: 'busy',
  pending: 'busy',
  PENDING: 'busy',
  CONFIGURING: 'busy',
  submitting: 'busy',
  planned: 'busy',
  COMPLETING: 'busy',
  draining: 'warn',
  stalled: 'warn',
  suspended: 'quiet',
  asleep: 'quiet',
  unloaded: 'quiet',
  idle: 'quiet',
  COMPLETED: 'quiet',
  CANCELLED: 'quiet',
  failed: 'bad',
  unreachable: 'bad',
  FAILED: 'bad',
  TIMEOUT: 'warn',
  PREEMPTED: 'warn',
  NODE_FAIL: 'bad',
  OUT_OF_MEMORY: 'bad',
};

export function toneOf(state: string): Tone {
  return tones[state] ?? tones[state.split(' ')[0]!] ?? 'quiet';
}

/** A replica is no better than the session that it is on. */
export function stateOf({ reachable, lifecycle }: SessionRow, state: string): string {
  if (!reachable && lifecycle !== 'JOIN') return 'unreachable';
  return state;
}

/** `2× A100-40GB (emulated)`. */
export function hardware(devices: SessionRow['devices']): string {
  const counts = new Map<string, number>();
  for (const { model, emulated } of devices) {
    const name = emulated ? `${model} (emulated)` : model;
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return [...counts].map(([name, count]) => (count === 1 ? name : `${count}× ${name}`)).join(', ');
}

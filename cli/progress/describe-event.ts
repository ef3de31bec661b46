/** Progress events in words: one line each, the same in the plain view and in the log of the terminal view. */
import { describeJobEnd } from '../../control/runner/agent-end.ts';
import type { ProgressEvent } from '../../spec/events.ts';
import { loadPhaseWords } from '../../spec/session-record.ts';
import { formatBytes, formatDuration } from '../format/quantities.ts';

export function describeEvent(event: ProgressEvent): string {
  switch (event.kind) {
    case 'checking':
      return `checking ${event.what}`;
    case 'planned':
      return `planned: ${count(event.replicas, 'replica')} in ${count(event.launches, 'job')}`;
    case 'warning':
      return `warning: ${event.message}`;
    case 'waiting':
      return `waiting: ${event.what}`;
    case 'script_written':
      return `script written to ${event.path}`;
    case 'submitted':
      return `job ${event.job_id} submitted to ${event.where}`;
    case 'pending': {
      const start =
        event.estimated_start_ms === undefined
          ? ''
          : `; Slurm expects to start it ${formatWhen(event.estimated_start_ms, event.at_ms)}`;
      return `job ${event.job_id} waits: ${event.explanation} (${event.reason})${start}`;
    }
    case 'running':
      return `job ${event.job_id} runs on ${event.nodes}`;
    case 'agent_up':
      return `node agent up on ${event.node}: ${event.devices.join(', ') || 'no devices'}`;
    case 'loading': {
      const share =
        event.bytes_total > 0 ? ` (${Math.floor((100 * event.bytes_loaded) / event.bytes_total)} %)` : '';
      const rate = event.bytes_per_s > 0 ? ` at ${formatBytes(event.bytes_per_s)}/s` : '';
      return `${event.node} loads ${event.model}: ${formatBytes(event.bytes_loaded)} of ${formatBytes(event.bytes_total)}${share}${rate}`;
    }
    case 'engine_phase':
      return describePhase(event);
    case 'replica_serving':
      return `${event.model} serves on ${event.node} (${event.engine}, ${event.device})`;
    case 'gateway_up':
      return `gateway up at ${event.url}`;
    case 'serving':
      return `serving ${event.models.join(', ')} at ${event.url}`;
    case 'job_ended':
      return `job ${event.job_id} ended: ${describeJobEnd(event)}${event.log_file ? ` (log: ${event.log_file})` : ''}`;
    case 'kept':
      return describeKept(event);
    case 'replanned':
      return `${event.deployment} is planned again (${event.trigger}): ${event.because}; ${event.changed ? event.what : `nothing moves: ${event.what}`}`;
    case 'scaled':
      return `${event.deployment}: ${event.model} goes from ${event.from} to ${event.to} replica(s): ${event.because}`;
    case 'refactored':
      return describeRefactored(event);
    case 'stall_over':
      return `${event.deployment}: answers of ${event.model} stalled for ${formatDuration(event.lasted_ms)}, and are as before (${event.baseline_ms.toFixed(1)} ms a token)`;
    case 'scavenged':
      return describeScavenged(event);
    case 'failed':
      return [
        `failed: ${event.error.what}`,
        ...event.error.because.map((line) => `  because: ${line}`),
        ...event.error.try.map((line) => `  try: ${line}`),
      ].join('\n');
    case 'stopped':
      return `${event.deployment} is stopped`;
  }
}

function describeKept(event: Extract<ProgressEvent, { kind: 'kept' }>): string {
  const acts = {
    renew: 'gets a successor',
    replace: 'is replaced',
    give_up: 'is given up',
    move: 'goes to other nodes',
    end: 'is ended',
  }[event.do];
  return `${event.deployment}: launch ${event.launch_id} ${acts}: ${event.because}`;
}

function describeRefactored(event: Extract<ProgressEvent, { kind: 'refactored' }>): string {
  const { deployment, unit, from, to, duration_ms, pause_ms, because } = event;
  const took = `in ${formatDuration(duration_ms)}, no token for ${pause_ms.toFixed(0)} ms`;
  const what = from === to ? `is cut anew into ${to} stages` : `goes from ${from} to ${to} stages`;
  return `${deployment}: ${unit} ${what} ${took}: ${because}`;
}

function describeScavenged(event: Extract<ProgressEvent, { kind: 'scavenged' }>): string {
  const acts = { submit: 'is submitted for idle nodes', withdraw: 'is withdrawn' }[event.do];
  return `${event.deployment}: launch ${event.launch_id} ${acts}: ${event.because}`;
}

function describePhase(event: Extract<ProgressEvent, { kind: 'engine_phase' }>): string {
  const { elapsed_s, usual_s } = event;
  const times = [
    ...(elapsed_s === undefined ? [] : [`${formatDuration(1000 * elapsed_s)} so far`]),
    ...(usual_s === undefined ? [] : [`usually ${formatDuration(1000 * usual_s)} in all`]),
  ];
  const inTime = times.length > 0 ? ` (${times.join(', ')})` : '';
  return `${event.node}: ${event.engine} for ${event.model} is ${loadPhaseWords[event.phase]}${inTime}`;
}

function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? '' : 's'}`;
}

/** `in 12 min (14:05)`, for a time to come. */
export function formatWhen(when_ms: number, now_ms: number): string {
  const date = new Date(when_ms);
  const two = (value: number): string => String(value).padStart(2, '0');
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}`;
  const day =
    new Date(now_ms).toDateString() === date.toDateString() ? '' : `${date.toISOString().slice(0, 10)} `;
  return when_ms <= now_ms
    ? `now (${day}${clock})`
    : `in ${formatDuration(when_ms - now_ms)} (${day}${clock})`;
}

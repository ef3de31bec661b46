/** What is said of a device worker that ended, or had to be ended. */
import { z } from 'zod';
import { HpcserveError } from '../../spec/errors/error.ts';
import { fatalSign } from '../adapters/fatal.ts';
import type { ChildEnd } from './child.ts';
import type { ProcessEnd } from './serving-process.ts';

/** Of all that a hung worker wrote only the end may be about its hang. */
const hang_lines = 400;

export interface EndedWorker {
  /** Such as `A100 + A100`. */
  devices: string;
  log_file: string;
  has_served: boolean;
}

/** @param told why it cannot go on, where it said so itself */
export function exitedWorker(
  end: ChildEnd,
  worker: EndedWorker,
  told: HpcserveError | undefined,
): ProcessEnd {
  const { code: exit_code, signal, tail } = end;
  if (told) return { ...toldEnd(told, tail, worker), exit_code, signal };
  const sign = end.orderly ? undefined : fatalSign(tail);
  const error = new HpcserveError('E_AGENT_WORKER', {
    what: `the device worker of ${worker.devices} ${end.words}`,
    because: [...(sign ? [`${sign.what}: ${sign.line}`] : []), ...end.last_lines.flatMap(complaint)],
    details: { log_file: worker.log_file, exit_code, signal },
  });
  const fatal = sign?.scope ?? (end.out_of_memory ? 'process' : undefined);
  const restartable = worker.has_served && fatal === undefined;
  const ended: ProcessEnd = { error, restartable, orderly: end.orderly, exit_code, signal, tail };
  if (fatal !== undefined) ended.fatal = fatal;
  return ended;
}

/**
 * The end of a worker that said itself why it cannot go on. A thread that is stuck may do better in another process.
 */
export function toldEnd(error: HpcserveError, tail: readonly string[], worker: EndedWorker): ProcessEnd {
  // So may a device that failed once; one that fails as soon as it is used is not tried again.
  if (error.code === 'E_WORKER_STUCK' || error.code === 'E_DEVICE_FAILED')
    return hungWorker(error, tail, worker);
  return { error, restartable: false, fatal: 'process', tail };
}

/**
 * It may be started again: that it hung does not say that its device failed, unless it says so itself. One that never
 * served hangs at what the next one would come to as well.
 */
export function hungWorker(error: HpcserveError, tail: readonly string[], worker: EndedWorker): ProcessEnd {
  const sign = fatalSign(tail.slice(-hang_lines));
  if (sign?.scope === 'device') return { error, restartable: false, fatal: 'device', tail };
  if (!worker.has_served) return { error, restartable: false, fatal: 'process', tail };
  return { error, restartable: true, tail };
}

/** Of a line of the worker's log what says why it ended: warnings and worse, and what libraries wrote. */
function complaint(line: string): string[] {
  if (!line.startsWith('{"level":')) return [line];
  const told = /^\{"level":(\d+),.*"msg":("(?:[^"\\]|\\.)*")\}$/.exec(line);
  return told && Number(told[1]) >= 40 ? [z.string().parse(JSON.parse(told[2]!))] : [];
}

/** What is said of a wrapped engine that ended, or had to be ended. */
import { HpcserveError } from '../../spec/errors/error.ts';
import type { UnitSpec } from '../../spec/launch.ts';
import { type Cause, firstCause } from '../adapters/first-cause.ts';
import type { ChildEnd } from './child.ts';
import type { ProcessEnd } from './serving-process.ts';

/** Exit codes by which a shell says that a program could not be started. */
const not_executable = 126;
const not_found = 127;
/** Of all that a hung engine wrote only the end may be about its hang. */
const hang_lines = 400;

export type EngineEnd = ProcessEnd & { error: HpcserveError };

export interface EndedEngine {
  unit: UnitSpec;
  engine: string;
  version: string | undefined;
  /** As its command line begins, the site's prefix included. */
  program: string;
  log_file: string;
  has_served: boolean;
}

/** @param lines of all that it wrote the ones that matter */
export function exitedEngine(end: ChildEnd, lines: readonly string[], engine: EndedEngine): EngineEnd {
  // What it wrote of single requests, days before its end, is not why it ended.
  // vLLM's server shuts down in order, with exit code 0, after its core died.
  const wasAsked = end.orderly && end.code !== 0;
  const cause = wasAsked ? undefined : firstCause(engine.has_served ? end.tail : lines);
  const fatal = cause?.scope ?? (end.out_of_memory ? 'process' : undefined);
  return {
    error: exitError(end, engine, cause),
    restartable: engine.has_served && fatal === undefined,
    orderly: end.orderly,
    fatal,
    exit_code: end.code,
    signal: end.signal,
    tail: end.tail,
  };
}

/**
 * It may be started again: that it hung does not say that its device failed, unless it says so itself. One that not
 * even SIGKILL ended has its device still, and nothing can be started in its place.
 */
export function hungEngine(
  why: string,
  engine: EndedEngine,
  { tail, pid, is_gone }: { tail: readonly string[]; pid: number | undefined; is_gone: boolean },
): EngineEnd {
  const found = firstCause(tail.slice(-hang_lines));
  // A server that lives on after its core was killed says so; a line that nobody knows may be of any request.
  const cause = found?.what === undefined ? undefined : found;
  const { log_file, unit } = engine;
  const error = new HpcserveError('E_AGENT_ENGINE_HANG', {
    what: `${engine.engine} hangs and was killed: it served ${unit.model.name}`,
    because: [
      why,
      ...describeCause(cause),
      ...(is_gone ? [] : ['it has not ended by that: it hangs in the kernel, or in a driver']),
    ],
    try: cause?.try ?? [],
    details: { log_file, pid },
  });
  const fatal = cause?.scope === 'device' ? 'device' : is_gone ? undefined : 'process';
  return { error, restartable: fatal === undefined, fatal, tail };
}

function exitError(end: ChildEnd, engine: EndedEngine, cause: Cause | undefined): HpcserveError {
  const { has_served, unit, log_file } = engine;
  const details = { log_file, exit_code: end.code, signal: end.signal };
  const name = unit.model.name;
  if (!has_served && (end.code === not_found || end.code === not_executable))
    return new HpcserveError('E_AGENT_ENGINE_START', {
      what: `${engine.program} could not be started for ${name}`,
      because: end.last_lines.length > 0 ? end.last_lines : `it ${end.words}`,
      details,
    });
  if (!has_served && cause?.option)
    return new HpcserveError('E_AGENT_ENGINE_OPTION', {
      what: `${engine.engine}${engine.version === undefined ? '' : ` ${engine.version}`} does not start as ${name} asks it to`,
      because: [cause.line],
      try: cause.try ?? [],
      details,
    });
  // A line that nobody has met before may need those around it.
  const lines = cause?.what === undefined ? end.last_lines.filter((line) => line !== cause?.line) : [];
  const killed = end.oom_kills && !end.out_of_memory && cause?.is_silent === true;
  return new HpcserveError('E_AGENT_ENGINE_EXIT', {
    what: has_served
      ? `${engine.engine} ended while it served ${name}`
      : `${engine.engine} ended before it served ${name}`,
    because: [
      `it ${end.words}`,
      ...(killed ? ['the kernel ended a process of this job for want of memory'] : []),
      ...describeCause(cause),
      ...lines,
    ],
    try: [...(end.out_of_memory || killed ? [memory_advice] : []), ...(cause?.try ? [cause.try] : [])],
    details,
  });
}

const memory_advice =
  'ask for less of the host’s memory (kv_tokens, max_sequences, fewer replicas a node), or for a job with more of it';

function describeCause(cause: Cause | undefined): string[] {
  if (cause === undefined) return [];
  return [cause.what === undefined ? cause.line : `${cause.what}: ${cause.line}`];
}

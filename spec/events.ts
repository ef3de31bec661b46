/**
 * Progress of a deployment as one stream of events; the CLI shows it as a terminal view, plain lines or
 * JSON lines. Everything a person waits for has an event here.
 */
import type { ErrorJson } from './errors/error.ts';
import type { ReplanOutcome } from './replan.ts';
import type { LoadPhase } from './session-record.ts';

export type ProgressEvent = { at_ms: number } & (
  | { kind: 'checking'; what: string }
  | { kind: 'planned'; launches: number; replicas: number }
  /** Severe: what follows is not what was asked for, such as a plan that cannot keep its promise. */
  | { kind: 'warning'; message: string; severe?: boolean }
  /** Another command has what this one needs. */
  | { kind: 'waiting'; what: string }
  | { kind: 'script_written'; path: string }
  | { kind: 'submitted'; launch_id: string; job_id: string; where: string }
  | { kind: 'pending'; job_id: string; reason: string; explanation: string; estimated_start_ms?: number }
  | { kind: 'running'; job_id: string; nodes: string }
  | { kind: 'agent_up'; job_id?: string; node: string; devices: string[] }
  | {
      kind: 'loading';
      node: string;
      model: string;
      bytes_loaded: number;
      bytes_total: number;
      bytes_per_s: number;
    }
  /** A wrapped engine went on to another step before it serves. */
  | {
      kind: 'engine_phase';
      node: string;
      model: string;
      engine: string;
      phase: LoadPhase;
      /** Since its start. */
      elapsed_s?: number;
      /** How long all of it took the last time. */
      usual_s?: number;
    }
  | { kind: 'replica_serving'; node: string; model: string; engine: string; device: string }
  | { kind: 'gateway_up'; url: string }
  | { kind: 'serving'; url: string; models: string[] }
  | {
      kind: 'job_ended';
      job_id: string;
      state: string;
      exit_code?: number;
      reason?: string;
      log_file?: string;
    }
  /** The keeper acts: a successor, a replacement, another place for what waits, an end of what is lost, no more. */
  | {
      kind: 'kept';
      deployment: string;
      do: 'renew' | 'replace' | 'give_up' | 'move' | 'end';
      launch_id: string;
      because: string;
    }
  /** A deployment was planned again: what came of it. */
  | ({ kind: 'replanned'; deployment: string } & ReplanOutcome)
  /** A model gets more or fewer replicas. */
  | {
      kind: 'scaled';
      deployment: string;
      model: string;
      from: number;
      to: number;
      because: string;
    }
  /** A pipeline has become one of more or fewer stages while it answered, or of as many that are cut elsewhere. */
  | {
      kind: 'refactored';
      deployment: string;
      unit: string;
      from: number;
      to: number;
      because: string;
      /** For so long no token came. */
      pause_ms: number;
      duration_ms: number;
    }
  /** Answers of a model took longer than 1.5 times what is normal for a while, and do not any more. */
  | {
      kind: 'stall_over';
      deployment: string;
      model: string;
      lasted_ms: number;
      /** P25 of a pass before. */
      baseline_ms: number;
    }
  /** Backfill acts: replicas on idle nodes. */
  | {
      kind: 'scavenged';
      deployment: string;
      do: 'submit' | 'withdraw';
      launch_id: string;
      because: string;
    }
  | { kind: 'failed'; error: ErrorJson }
  | { kind: 'stopped'; deployment: string }
);

/** Nodes that are promised to others: to pending jobs, by Slurm's own expectation, and to reservations. */
import { readHostlist } from './hostlist.ts';
import { longFormat, parseLongFormat, parseScontrolLine, parseUtcTime_ms, present } from './text-format.ts';

/** A pending job as `squeue --start` shows it. */
export interface ExpectedStart {
  job_id: string;
  start_time_ms: number;
  /** Where Slurm would start it (SchedNodeList). */
  nodes: string[];
}

export interface SlurmReservation {
  name: string;
  start_time_ms: number;
  end_time_ms: number;
  /** None where licenses or other resources are reserved. */
  nodes: string[];
}

const startFields = ['JobID', 'StartTime', 'SchedNodes'] as const;

/** squeue's `--Format` argument that `parseExpectedStarts` reads. */
export const startsFormat = longFormat(startFields);

/** Jobs of which Slurm expects nothing yet are left out. @throws E_SLURM_ANSWER when the output has another form. */
export function parseExpectedStarts(output: string): ExpectedStart[] {
  return parseLongFormat('squeue', startFields, output).flatMap((row) => {
    const start_time_ms = parseUtcTime_ms(row.StartTime);
    const nodes = present(row.SchedNodes);
    if (start_time_ms === undefined || nodes === undefined) return [];
    return [{ job_id: row.JobID, start_time_ms, nodes: readHostlist(nodes) ?? [] }];
  });
}

/** Lines of `scontrol --oneliner show reservation`; "No reservations in the system" is none. */
export function parseReservations(output: string): SlurmReservation[] {
  return output.split('\n').flatMap((line) => {
    const pairs = parseScontrolLine(line);
    const name = pairs.get('ReservationName');
    const start_time_ms = parseUtcTime_ms(pairs.get('StartTime'));
    const end_time_ms = parseUtcTime_ms(pairs.get('EndTime'));
    const nodes = present(pairs.get('Nodes'));
    if (name === undefined || start_time_ms === undefined || end_time_ms === undefined) return [];
    return [{ name, start_time_ms, end_time_ms, nodes: readHostlist(nodes ?? '') ?? [] }];
  });
}

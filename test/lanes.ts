/**
 * Which test files run beside which. Most suites wait more than they compute: for a process to start, for Slurm to look
 * at its queue, for a pause that is the promise. So two lanes run side by side, each with several files at a time:
 *
 *     units and integration  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒  two files at a time, three where those are few
 *     end to end             ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒      two, each with a Slurm cluster (`test/cluster/shared.ts`)
 *     alone                                               ▒▒
 *
 * A suite says in its bounds what it promises on a machine that is busy. What cannot be promised there runs last, with
 * nothing beside it.
 */

/**
 * Files of a lane at a time. Lower: longer. Higher: suites wait for cores, and come near to their limits. Where few
 * end-to-end suites run, that lane is over soon and leaves its cores to the other.
 */
export const laneWorkers = { units: 2, units_in_short_run: 3, end_to_end: 2 } as const;

const stuck_thread =
  'a thread may stand twenty times as long as it ever did, so that one without a core for seconds may for minutes';
const real_vllm = 'a real vLLM imports for a minute on two idle cores, and for many beside others';

/** Files that have the machine to themselves, and what neighbours would break. */
const alone: Readonly<Record<string, string>> = {
  'test/agent/device-worker/hostile-requests.test.ts':
    'a worker answers its agent within 5 s while it computes what takes seconds',
  'test/agent/device-worker/sharing.test.ts':
    'promises of 30 ms a token are kept, measured on cores that nobody else has',
  'test/agent/node/stuck-thread.test.ts': stuck_thread,
  'test/failover/stuck-thread.test.ts': stuck_thread,
  'test/failover/loading.test.ts':
    'a replica is to be lost in the second in which the other one loads, and nobody is waited for who stands still',
  'test/failover/preemption.test.ts':
    'a stream goes on for as long as two devices take turns with models, at the same pace on both',
  'test/failover/pools.test.ts': 'a replica that is to take an answer says within a second what room it has',
  'test/failover/moved-kv.test.ts':
    'answers leave a node within the seconds that it drains, and peers that have no core say too late what room they have',
  'test/failover/moved-gpu-kv.test.ts':
    'answers leave a device that computes on the CPU while another one compiles its kernels there',
  'test/failover/pools-gpu.test.ts':
    'a replica on a device that computes on the CPU is to say within a second what room it has',
  'test/mesh/libp2p/network-proof.test.ts':
    'a member is let in within two seconds beside 700 connections that are held, each of which costs its own side, too',
  'test/e2e/native-gpu.e2e.test.ts':
    'the rest of an answer takes a device that computes on the CPU most of the minute that it has',
  'test/e2e/streamed.e2e.test.ts':
    'four replicas on two cores serve within the minute that a deployment waits for them',
  'test/web/interactive.test.ts':
    'a page can be used within a second of its browser’s time, not of six suites’',
  'test/e2e/backfill.e2e.test.ts':
    'KV of six streams leaves a node within the two seconds that Slurm gives it',
  'test/agent/device-worker/streamed-gpu.test.ts':
    'a device that computes on the CPU compiles its kernels there',
  'test/agent/node/native-gpu.test.ts':
    'one worker at a time has a device of this machine, and the end-to-end suite has it, too',
  'test/agent/node/refactoring-gpus.test.ts':
    'two devices that compute on the CPU answer while weights and kernels come to both',
  'test/agent/adapters/vllm.test.ts': real_vllm,
  'test/agent/adapters/vllm-memory.test.ts': real_vllm,
  'test/agent/node/vllm-life.test.ts': real_vllm,
  'test/failover/vllm.test.ts': real_vllm,
  'test/conformance/vllm.test.ts': real_vllm,
};

/** Files that run, alone, only where a person names them: a whole run would take as much longer, in minutes. */
export const onlyByName: Readonly<Record<string, number>> = {
  // A whole run has these programs at the native engine, behind the same gateway.
  'test/conformance/tools/vllm.test.ts': 5,
  'test/e2e/vllm-replicas.e2e.test.ts': 6,
  'test/e2e/vllm-nodes.e2e.test.ts': 6,
};

export interface Lane {
  title: string;
  /** Options of vitest. */
  options: string[];
}

const notBeside = [...Object.keys(alone), ...Object.keys(onlyByName)];
const endToEndSuffix = '.e2e.test.ts';
const endToEnd = `**/*${endToEndSuffix}`;
const notEndToEnd = '**/!(*.e2e).test.ts';
const excluding = (patterns: readonly string[]): string[] =>
  patterns.flatMap((pattern) => ['--exclude', pattern]);

export const endToEndLane: Lane = {
  title: 'end to end',
  options: [
    `--maxWorkers=${laneWorkers.end_to_end}`,
    // What is polled here is a command mostly, which takes more of a core than what it asks about.
    '--expect.poll.interval=250',
    ...excluding([notEndToEnd, ...notBeside]),
  ],
};

const ownProcess = 'test/{agent,conformance,failover,native}/**';
const inSharedProcesses: Lane = {
  title: 'rooms',
  options: ['--no-isolate', ...excluding([endToEnd, ownProcess, ...notBeside])],
};
const inOwnProcesses: Lane = {
  title: 'engines',
  options: excluding([endToEnd, 'test/!(agent|conformance|failover|native)/**', ...notBeside]),
};

/** What runs side by side, but for these files; the lanes of one list run one after the other. */
export function lanesSideBySide(leftOut: readonly string[], isShort: boolean): Lane[][] {
  const workers = isShort ? laneWorkers.units_in_short_run : laneWorkers.units;
  const without = ({ title, options }: Lane, ...more: string[]): Lane => ({
    title,
    options: [...options, ...more, ...excluding(leftOut)],
  });
  const units = [inSharedProcesses, inOwnProcesses].map((lane) => without(lane, `--maxWorkers=${workers}`));
  return [units, [without(endToEndLane)]];
}

export type LaneKind = 'units' | 'end to end' | 'alone';

export function laneOf(file: string): LaneKind {
  if (Object.hasOwn(alone, file)) return 'alone';
  return file.endsWith(endToEndSuffix) ? 'end to end' : 'units';
}

export const laneAlone: Lane = { title: 'alone', options: ['--no-file-parallelism'] };

/** Of the files that have to run alone, those that a person asked for; where nothing was, all but those left out. */
export function aloneOf(filters: readonly string[], leftOut: readonly string[]): string[] {
  if (filters.length === 0) return Object.keys(alone).filter((file) => !leftOut.includes(file));
  return notBeside.filter((file) => filters.some((filter) => file.includes(filter)));
}

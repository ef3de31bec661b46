/** The gossip of a thousand members, simulated by seed with the members' own code. */
import { parseArgs } from 'node:util';
import { gossipPresets } from '../../mesh/gossip/settings.ts';
import { GossipSimulation } from '../../mesh/gossip/simulation.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { bytesPerRecord } from './record-memory.ts';

/** What is promised is an hour; `--minutes` of less are a look that nobody is judged by. */
const peace_minutes = 60;
const delay_ms = [0.2, 3] as const;

export const meshBench: Bench = {
  name: 'mesh',
  describe: 'a thousand members of the gossip, simulated: news, deaths, false alarms, partitions, memory',
  run: async ({ args, log }) => {
    const { values } = parseArgs({
      args: [...args],
      options: {
        members: { type: 'string', default: '1000' },
        minutes: { type: 'string', default: String(peace_minutes) },
        apart: { type: 'string', default: '10' },
        seed: { type: 'string', default: '1' },
      },
    });
    const size = { members: Number(values.members), seed: Number(values.seed), delay_ms };
    return [
      news(size, log),
      death(size, log),
      partition(size, Number(values.apart), log),
      falseAlarms(size, Number(values.minutes), log),
      await memory(size.members),
    ];
  },
};

interface Size {
  members: number;
  seed: number;
  delay_ms: readonly [number, number];
}

function row(what: string, ours: number, unit: string, bar: string, holds: boolean): BenchResult {
  return { what, unit, ours, peer: '', theirs: null, ratio: null, bar, holds };
}

/** With one delay for all, what is passed on goes from round to round in step: a round is one step of it. */
function news(size: Size, log: BenchOptions['log']): BenchResult {
  const round_ms = size.delay_ms[1];
  const simulation = new GossipSimulation({ ...size, delay_ms: [round_ms, round_ms], loss: 0.1 });
  const { network } = simulation;
  const [before, start_ms] = [network.messages, network.now_ms];
  network.hops_max = 0;
  simulation.nodes[0]!.publish();
  const current = (): boolean => simulation.knowNewest(simulation.nodes[0]!);
  const took_ms = simulation.until(current, { step_ms: 1, most_ms: 30_000 });
  const rounds = Number.isFinite(took_ms) ? network.hops_max : took_ms;
  log(
    `news: known to all after ${took_ms} ms, of which it was gathered for ${gossipPresets.lan.broadcast_batch_ms} ms; ${network.messages - before} messages in ${(network.now_ms - start_ms).toFixed(0)} ms`,
  );
  const what = `${size.members} members, 10 % loss: rounds until all know a new record`;
  return row(what, rounds, '', '≤ 6', rounds <= 6);
}

function death(size: Size, log: BenchOptions['log']): BenchResult {
  const simulation = new GossipSimulation({ ...size, loss: 0.01 });
  let worst_s = 0;
  for (const at of [3, 2, 1].map((part) => Math.floor(size.members / 3) * part - 1)) {
    simulation.nodes[at]!.host.silent = true;
    const took_ms = simulation.until(() => simulation.agrees, { step_ms: 25, most_ms: 60_000 });
    worst_s = Math.max(worst_s, took_ms / 1000);
  }
  log(`deaths: the slowest of three was known after ${worst_s} s`);
  const what = `${size.members} members, 1 % loss: a silent one is LEFT everywhere after`;
  return row(what, worst_s, 's', '≤ 3 s', worst_s <= 3);
}

function partition(size: Size, minutes: number, log: BenchOptions['log']): BenchResult {
  const simulation = new GossipSimulation({ ...size, loss: 0.01 });
  for (const [at, { host }] of simulation.nodes.entries()) host.part = at % 2;
  simulation.run(minutes * 60_000);
  for (const { host } of simulation.nodes) host.part = 0;
  const took_s = simulation.until(() => simulation.agrees, { step_ms: 100, most_ms: 120_000 }) / 1000;
  log(`partition: ${simulation.network.messages} messages in all`);
  const what = `${size.members} members, halves apart for ${minutes} min: one view again after`;
  return row(what, took_s, 's', '≤ 5 s', took_s <= 5);
}

function falseAlarms(size: Size, minutes: number, log: BenchOptions['log']): BenchResult {
  const simulation = new GossipSimulation({ ...size, loss: 0.01 });
  const before = simulation.nodes.map(({ session_id }) => session_id);
  const messages = simulation.network.messages;
  const start_ms = performance.now();
  simulation.run(minutes * 60_000);
  const evicted = simulation.nodes.filter(({ session_id }, at) => session_id !== before[at]).length;
  const rate = (simulation.network.messages - messages) / size.members / (minutes * 60);
  log(
    `${minutes} min of peace: ${rate.toFixed(1)} messages a second and member, simulated in ${((performance.now() - start_ms) / 1000).toFixed(0)} s`,
  );
  const what = `${size.members} members, 1 % loss, ${minutes} min: members that live and were evicted`;
  if (minutes >= peace_minutes) return row(what, evicted, '', '0', evicted === 0);
  return {
    ...row(what, evicted, '', `0 in ${peace_minutes} min`, evicted === 0),
    holds: evicted === 0 ? null : false,
  };
}

async function memory(records: number): Promise<BenchResult> {
  const bytes = await bytesPerRecord(records);
  return row(
    `memory of one record in a table of ${records}, signed and opened`,
    bytes,
    'B',
    '< 2 KB',
    bytes < 2048,
  );
}

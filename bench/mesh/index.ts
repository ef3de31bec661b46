/** The gossip of a thousand members, simulated by seed with the members' own code. */
import { parseArgs } from 'node:util';
import { defaultGossipSettings } from '../../mesh/gossip/settings.ts';
import { GossipSimulation } from '../../mesh/gossip/simulation.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';

const delay_ms = [0.2, 3] as const;

export const meshBench: Bench = {
  name: 'mesh',
  describe: 'a thousand members of the gossip, simulated: news, deaths, false alarms, partitions',
  run: async ({ args, log }) => {
    const { values } = parseArgs({
      args: [...args],
      options: {
        members: { type: 'string', default: '1000' },
        minutes: { type: 'string', default: '60' },
        seed: { type: 'string', default: '1' },
      },
    });
    const size = { members: Number(values.members), seed: Number(values.seed), delay_ms };
    return [news(size), death(size), partition(size, log), falseAlarms(size, Number(values.minutes), log)];
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

function news(size: Size): BenchResult {
  const simulation = new GossipSimulation({ ...size, loss: 0.1 });
  simulation.join();
  const took_ms = simulation.until(() => simulation.agrees, { step_ms: 10, most_ms: 30_000 });
  const rounds = Math.ceil(took_ms / defaultGossipSettings.round_ms);
  return row(
    `${size.members} members, 10 % loss: rounds until all know a new record`,
    rounds,
    '',
    '≤ 6',
    rounds <= 6,
  );
}

function death(size: Size): BenchResult {
  const simulation = new GossipSimulation({ ...size, loss: 0.01 });
  simulation.nodes[Math.floor(size.members / 3)]!.silent = true;
  const took_s = simulation.until(() => simulation.agrees, { step_ms: 25, most_ms: 60_000 }) / 1000;
  return row(
    `${size.members} members, 1 % loss: a silent one is LEFT everywhere after`,
    took_s,
    's',
    '≤ 3 s',
    took_s <= 3,
  );
}

function partition(size: Size, log: BenchOptions['log']): BenchResult {
  const simulation = new GossipSimulation({ ...size, loss: 0.01 });
  for (const [at, node] of simulation.nodes.entries()) node.part = at % 2;
  simulation.run(600_000);
  for (const node of simulation.nodes) node.part = 0;
  const took_s = simulation.until(() => simulation.agrees, { step_ms: 100, most_ms: 120_000 }) / 1000;
  log(`partition: ${simulation.messages} messages in all`);
  return row(
    `${size.members} members, halves apart for 10 min: one view again after`,
    took_s,
    's',
    '≤ 5 s',
    took_s <= 5,
  );
}

function falseAlarms(size: Size, minutes: number, log: BenchOptions['log']): BenchResult {
  const simulation = new GossipSimulation({ ...size, loss: 0.01 });
  const before = simulation.nodes.map(({ member }) => member.own.session_id);
  const start_ms = performance.now();
  simulation.run(minutes * 60_000);
  const evicted = simulation.nodes.filter(({ member }, at) => member.own.session_id !== before[at]).length;
  const rate = simulation.messages / size.members / (minutes * 60);
  log(
    `${minutes} min of peace: ${rate.toFixed(1)} messages a second and member, simulated in ${((performance.now() - start_ms) / 1000).toFixed(0)} s`,
  );
  return row(
    `${size.members} members, 1 % loss, ${minutes} min: members that live and were evicted`,
    evicted,
    '',
    '0',
    evicted === 0,
  );
}

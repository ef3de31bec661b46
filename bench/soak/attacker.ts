/**
 * A process of the soak that attacks until it is told to stop, a bounded number of acts a second:
 * `node attacker.js KIND ACTS_PER_S` with a `Target` as JSON on its standard input. When its input ends it stops, and
 * prints what came of its acts and the processor time that it took.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Act, brokenActs, hugeActs, maliciousActs, strangerActs, type Target } from './attacks.ts';

export const attackKinds = {
  strangers: strangerActs,
  broken: brokenActs,
  huge: hugeActs,
  malicious: maliciousActs,
} as const satisfies Record<string, readonly Act[]>;
export type AttackKind = keyof typeof attackKinds;

export interface AttackReport {
  /** Acts by what came of them. */
  outcomes: Record<string, number>;
  cpu_s: number;
}

/** Acts that are under way at once, at most. Lower: fewer connections are held; higher: more. */
const under_way_max = 400;

if (process.argv[1]?.endsWith('attacker.js')) await main();

async function main(): Promise<void> {
  const acts = attackKinds[process.argv[2] as AttackKind];
  const pause_ms = 1000 / Number(process.argv[3]);
  const [first, stopped] = firstLine();
  const target = JSON.parse(await first) as Target;
  let over = false;
  void stopped.then(() => {
    over = true;
  });
  const outcomes: Record<string, number> = {};
  const underWay = new Set<Promise<void>>();
  for (let turn = 0; !over; turn++) {
    const act = acts[turn % acts.length]!;
    const one = act(target, turn).then((word) => {
      outcomes[word] = (outcomes[word] ?? 0) + 1;
      underWay.delete(one);
    });
    underWay.add(one);
    if (underWay.size >= under_way_max) await Promise.race(underWay);
    await sleep(pause_ms);
  }
  const { user, system } = process.cpuUsage();
  process.stdout.write(
    `${JSON.stringify({ outcomes, cpu_s: (user + system) / 1e6 } satisfies AttackReport)}\n`,
  );
  process.exit(0);
}

/** @returns the first line of the standard input, and its end */
function firstLine(): [Promise<string>, Promise<void>] {
  let text = '';
  const line = new Promise<string>((resolve) => {
    process.stdin.on('data', (chunk) => {
      text += String(chunk);
      const end = text.indexOf('\n');
      if (end >= 0) resolve(text.slice(0, end));
    });
  });
  return [line, new Promise((resolve) => process.stdin.on('end', () => resolve()))];
}

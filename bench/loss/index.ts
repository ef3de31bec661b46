/**
 * What clients see when an engine dies under their streams: two real vLLM behind us, on two nodes of a Slurm cluster,
 * and two behind each router of others. Answers are greedy, and computed in 32 bits: each is compared with that of an
 * undisturbed run, and an undisturbed run with another one.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir, totalmem } from 'node:os';
import { join } from 'node:path';
import { lackingForHosts } from '../../test/cluster/hosts.ts';
import { vllmPython } from '../../test/engines/environments.ts';
import { mayBeRunByOthers } from '../../test/engines/python.ts';
import { writeTinyModel } from '../../test/engines/tiny-model.ts';
import { openNamespace } from '../kv-transfer/namespace.ts';
import { MissingNeed } from '../need.ts';
import type { Bench, BenchOptions, BenchResult } from '../result.ts';
import { type Peer, routersHere } from '../routers/peers.ts';
import { BareEngines, context_tokens } from './bare-engines.ts';
import { ForeignRouters } from './foreign-routers.ts';
import { type LossOptions, ours, readLossOptions } from './options.ts';
import { lossRows, lossTable, type Tally } from './outcome.ts';
import { OwnSite } from './own-site.ts';
import { type Load, runLoss, type System, undisturbed } from './trial.ts';

/** Two engines with their KV caches, and what Python takes. */
const memory_gib_min = 10;
/** Early: most of each answer is still to come. */
const events_before = 50;
const words = ['one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight'];

export const lossBench: Bench = {
  name: 'loss',
  describe:
    'a real vLLM of two is lost under streams: what their clients see behind us, and behind other routers',
  run,
};

interface Stage {
  python: string;
  model_folder: string;
  folder: string;
  load: Load;
  losses: LossOptions['losses'];
  log: BenchOptions['log'];
}

async function run({ args, log }: BenchOptions): Promise<BenchResult[]> {
  const { losses, streams, tokens, behind } = readLossOptions(args);
  const { python, peers } = needs(behind, log);
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-loss-'));
  try {
    const model_folder = writeTinyModel(python, join(folder, 'tiny'), context_tokens);
    const load = { prompts: words.slice(0, streams), tokens, events_before };
    const stage: Stage = { python, model_folder, folder, load, losses, log };
    const tallies: Tally[] = [];
    if (behind.includes(ours)) tallies.push(...(await behindOurs(stage)));
    if (peers.length > 0) tallies.push(...(await behindOthers(stage, peers)));
    for (const line of lossTable(tallies)) log(line);
    return lossRows(tallies, ours);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** @throws MissingNeed */
function needs(
  behind: readonly string[],
  log: BenchOptions['log'],
): { python: string; peers: readonly Peer[] } {
  const { found: python } = vllmPython();
  if (python === undefined)
    throw new MissingNeed(
      'a real vLLM for CPUs is not here',
      'npm run engines -- vllm, or HPCSERVE_TEST_PYTHON that names a Python that has it',
    );
  const isOursAlone = behind.every((name) => name === ours);
  const peers = isOursAlone ? [] : routersHere(log).filter(({ name }) => behind.includes(name));
  if (peers.length === 0 && !behind.includes(ours))
    throw new MissingNeed(`none of these is here: ${behind.join(', ')}`, 'npm run engines -- routers');
  const lacking = lackingForHosts();
  if (lacking !== '')
    throw new MissingNeed(
      `hosts that can be cut off the network cannot be made: it needs ${lacking}`,
      'run it as root, such as in a container that may make network namespaces',
    );
  if (!mayBeRunByOthers(python))
    throw new MissingNeed(
      `jobs of a user cannot run ${python}`,
      'a folder for HPCSERVE_ENGINES that every user may enter',
    );
  if (totalmem() < memory_gib_min * 2 ** 30)
    throw new MissingNeed(
      'two engines at once are too much for this machine',
      `run it where there are ${memory_gib_min} GiB of memory`,
    );
  return { python, peers };
}

async function behindOurs({ model_folder, python, load, losses, log }: Stage): Promise<Tally[]> {
  await using site = await OwnSite.open(model_folder, python, log);
  const systems = [{ name: ours, endpoint: site.endpoint }];
  const expected = await undisturbed(systems, load, site);
  const tallies: Tally[] = [];
  for (const loss of ['nothing', ...losses] as const) {
    tallies.push(...say(await runLoss(systems, load, site, loss, expected), log));
    if (loss !== losses.at(-1)) await site.restore(loss);
  }
  return tallies;
}

async function behindOthers(stage: Stage, peers: readonly Peer[]): Promise<Tally[]> {
  const { load, losses, folder, log } = stage;
  const namespace = openNamespace('loss', '10.213.78');
  if (!namespace) throw new Error('no network namespace could be made');
  try {
    log('two bare vLLM: starting them, which takes some minutes');
    await using engines = await BareEngines.start(stage, namespace);
    const behind = async <T>(act: (systems: readonly System[]) => Promise<T>): Promise<T> => {
      await using routers = await ForeignRouters.start(peers, engines, folder);
      // Without the wait they would end before what is done with them does.
      return await act(routers.systems);
    };
    const expected = await behind((systems) => undisturbed(systems, load, engines));
    const tallies: Tally[] = [];
    for (const loss of ['nothing', ...losses] as const) {
      const run = (systems: readonly System[]) => runLoss(systems, load, engines, loss, expected);
      tallies.push(...say(await behind(run), log));
      if (loss !== losses.at(-1)) await engines.restore(loss);
    }
    return tallies;
  } finally {
    namespace.close();
  }
}

function say(tallies: readonly Tally[], log: BenchOptions['log']): readonly Tally[] {
  for (const { system, loss, broken, falsely_complete, different, pause_ms_max, why } of tallies)
    log(
      `${loss}: ${system}: ${broken} broken, ${falsely_complete} falsely complete, ${different} different, longest pause ${(pause_ms_max / 1000).toFixed(1)} s${why === undefined ? '' : `; ${why}`}`,
    );
  return tallies;
}

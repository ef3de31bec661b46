/** What keepers of two sites tell each other of demand, by way of their gateways: real ones, in one gossip. */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, it } from 'vitest';
import type { HeardStatements, ScalingPeer, StatedModel } from '../../spec/scaling-statement.ts';
import { gatewayFiles, keeperFiles } from '../../spec/state-layout.ts';
import { eventually } from '../mesh/support.ts';
import { type Stage, startStage } from './support.ts';

const closing: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

interface Site {
  stage: Stage;
  say(claim: number, peers: ScalingPeer[], at?: number): void;
  write(text: string): void;
  heard(): HeardStatements | undefined;
}

async function startSite(site: string, bootstrap: string[]): Promise<Site> {
  const folder = mkdtempSync(join(tmpdir(), 'hpcserve-exchange-test-'));
  closing.push(() => rmSync(folder, { recursive: true, force: true }));
  const [mesh_folder, keeper_folder] = [join(folder, 'mesh'), join(folder, 'keeper')];
  mkdirSync(mesh_folder, { mode: 0o700 });
  mkdirSync(keeper_folder);
  writeFileSync(join(mesh_folder, 'network.key'), new Uint8Array(32).fill(4), { mode: 0o600 });
  const mesh = { bootstrap, relay: [], host: '127.0.0.1' };
  const stage = await startStage({}, { site, provider: `tester@${site}`, mesh_folder, keeper_folder, mesh });
  closing.push(() => stage.close());
  const write = (text: string): void => writeFileSync(join(keeper_folder, keeperFiles.scaling), text);
  return {
    stage,
    write,
    say: (claim, peers, at = claim) =>
      write(JSON.stringify({ statement: { format: 1, at, models: [{ ...model, claim }] }, peers })),
    heard: () => {
      try {
        return JSON.parse(
          readFileSync(join(stage.config.gateway_folder, gatewayFiles.sites_scaling), 'utf8'),
        );
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
        throw error;
      }
    },
  };
}

const model: StatedModel = {
  deployment: 'demo',
  of: 'digest',
  model: 'toy',
  mean: 1,
  peak: 2,
  asked: true,
  late: false,
  seen: true,
  settled: true,
  have: 1,
  serving: 1,
  stuck: 0,
  claim: 1,
  limit: 4,
  ready: 4,
  slots: 16,
  cost: 1,
  wake_s: 10,
};

it('comes from the sites that the keeper named, proved to be theirs, and from nobody else', async () => {
  const one = await startSite('one', []);
  const gossip = await eventually(
    async () => (await tableOf(one.stage)).mesh.gossip,
    'the gossip of the first site',
  );
  const address = gossip.addresses[0]!.replace(/^\/ip4\/(.*)\/tcp\//, '$1:');
  const two = await startSite('two', [address]);
  // It knows the network key, and says that it is the second site.
  const impostor = await startSite('two', [address]);

  const peer = (site: string, { stage }: Site): ScalingPeer => ({
    site,
    provider_id: stage.fingerprint('tester@test'),
  });
  impostor.say(4000, []);
  one.say(1, [peer('two', two)]);
  two.say(3, [peer('one', one)]);
  await eventually(
    async () => one.heard()?.heard.length === 1 && two.heard()?.heard.length === 1,
    'both hear',
  );
  await eventually(async () => (await tableOf(one.stage)).gateways.length === 3, 'the impostor is known');
  expect(one.heard()).toEqual({
    format: 1,
    own: { format: 1, at: 1, models: [model] },
    heard: [{ site: 'two', statement: { format: 1, at: 3, models: [{ ...model, claim: 3 }] } }],
  });
  expect(two.heard()!.heard[0]!.statement.models[0]!.claim).toBe(1);

  // What cannot be read changes nothing that was said, and is told once.
  two.write('{"statement":');
  await eventually(
    async () => two.stage.logged.some((line) => line.includes('demand of several sites')),
    'the log',
  );
  expect(one.heard()!.heard[0]!.statement.at).toBe(3);
  two.say(5, []);
  await eventually(async () => one.heard()!.heard[0]?.statement.at === 5, 'what is said next');
  // Nobody is listened to that is not named any more.
  await eventually(async () => two.heard()!.heard.length === 0, 'nobody is heard');

  // A keeper that has nothing to say any more takes its file away; a gateway that ends is not heard.
  rmSync(join(two.stage.config.keeper_folder!, keeperFiles.scaling));
  await eventually(async () => one.heard()!.heard.length === 0, 'nothing is said');
}, 30_000);

interface Table {
  gateways: object[];
  mesh: { gossip?: { addresses: string[] } };
}

async function tableOf({ url, key }: Stage): Promise<Table> {
  const answer = await fetch(`${url}/mesh/table`, { headers: { authorization: `Bearer ${key}` } });
  return (await answer.json()) as Table;
}

/** Idle nodes in a reservation are free for those alone whose jobs name one. */
import { expect, it } from 'vitest';
import { offersOf } from '../../../control/plan/site-offers.ts';
import { parseSinfo } from '../../../slurm/cluster-facts.ts';
import { type SiteConfig, siteSchema } from '../../../spec/site.ts';

function site(slurm: object = {}): SiteConfig {
  const kind = { name: 'a100', partition: 'gpu', gres_type: 'a100', cpus: 64, memory_gb: 500 };
  const devices = [{ kind: 'gpu', model: 'A100-80GB', count: 4, memory_gb: 80 }];
  return siteSchema.parse({ name: 'here', kind: 'slurm', node_kinds: [{ ...kind, devices, ...slurm }] });
}

/** As sinfo shows four idle nodes, of which two are in a reservation. */
const nodes = [
  ['n[1-2]', 'IDLE'],
  ['n[3-4]', 'IDLE+RESERVED'],
].flatMap(([list, state]) => {
  const devices = ['gpu:a100:4', 'gpu:a100:0', '64', '2', '32', '1', '500000', '0/128/0/128'];
  return parseSinfo(`${['gpu', list, state, 'ib', ...devices].join('\u001f')}\u001e\n`);
});

it.each([
  ['neither the site nor the deployment names one', site(), undefined, 2],
  ['the deployment names one', site(), 'course', 4],
  ['the kind of nodes names one', site({ slurm: { reservation: 'course' } }), undefined, 4],
])('%s', (_, config, reservation, idle) => {
  const [offer] = offersOf(config, { nodes, partitions: [] }, {}, reservation);
  expect(offer).toMatchObject({ nodes_total: 4, nodes_idle: idle });
  expect(offer!.free!.reduce((sum, space) => sum + space.nodes, 0)).toBe(idle);
});

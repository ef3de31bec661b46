import { describe, expect, it } from 'vitest';
import { meshFindings, type SiteInMesh } from '../../../solver/sites/mesh-links.ts';
import type { SiteMeshState } from '../../../spec/site-question.ts';

const key = 'a'.repeat(64);

function site(name: string, mesh: Partial<SiteMeshState> = {}): SiteInMesh {
  return {
    site: name,
    mesh: {
      folder: `/state/${name}/mesh`,
      key_digest: key,
      gossip: true,
      bootstrap: [],
      relay: [],
      port: 0,
      ...mesh,
    },
  };
}
const daint = (mesh: Partial<SiteMeshState> = {}): SiteInMesh => site('daint', { port: 4001, ...mesh });
const todi = (mesh: Partial<SiteMeshState> = {}): SiteInMesh =>
  site('todi', { bootstrap: ['gateway.daint.example:4001'], ...mesh });

describe('sites that are to be one mesh', () => {
  it('are one by the same key and an address', () => {
    expect(meshFindings([daint(), todi()])).toEqual({ faults: [], advice: [], doubts: [] });
    expect(meshFindings([todi(), daint()]).faults).toEqual([]);
    expect(meshFindings([site('alone', { gossip: false })]).faults).toEqual([]);
  });

  it('are none without the same key, and it is said where to copy which', () => {
    const { key_digest: _, ...keyless } = todi().mesh;
    expect(meshFindings([daint(), { site: 'todi', mesh: keyless }])).toMatchObject({
      faults: ['todi has no network.key yet'],
      advice: [
        expect.stringContaining('copy /state/daint/mesh/network.key of daint to /state/todi/mesh of todi'),
      ],
    });
    expect(meshFindings([daint(), todi({ key_digest: 'b'.repeat(64) })]).faults).toEqual([
      'the network.key of todi is another than that of daint',
    ]);
    const { key_digest: _none, ...none } = daint().mesh;
    expect(
      meshFindings([
        { site: 'daint', mesh: none },
        { site: 'todi', mesh: keyless },
      ]),
    ).toMatchObject({
      faults: ['none of them has a network.key yet'],
      advice: [expect.stringMatching(/^make one at daint: .*copy it to \/state\/todi\/mesh of todi$/)],
    });
    // The site that has none may be named first.
    expect(meshFindings([{ site: 'todi', mesh: keyless }, daint()]).faults).toEqual([
      'todi has no network.key yet',
    ]);
  });

  it('are none where nothing leads from one to the other, or gossip is off', () => {
    expect(meshFindings([daint(), site('todi')]).faults).toEqual([
      'none of them names a gateway of another in mesh.bootstrap or mesh.relay',
    ]);
    expect(meshFindings([daint(), todi(), site('third')]).faults).toEqual([
      'mesh.bootstrap and mesh.relay of all of them have 1 address(es) for 3 sites',
    ]);
    expect(meshFindings([daint(), todi({ gossip: false })]).faults.join()).toMatch(
      /mesh.gossip of todi is off/,
    );
    expect(meshFindings([daint(), site('todi', { relay: ['gateway.daint.example:4001'] })]).faults).toEqual(
      [],
    );
  });

  it('are doubted where the addresses are of something else, which they may be', () => {
    const { faults, doubts } = meshFindings([daint(), todi({ bootstrap: ['forwarded.example:9999'] })]);
    expect(faults).toEqual([]);
    expect(doubts).toEqual([expect.stringMatching(/todi may not be reached from daint/)]);
    // Two that know the same third are one through it.
    const third = { bootstrap: ['hub.example:7000'] };
    expect(meshFindings([daint(third), todi(third)]).doubts).toEqual([]);
    expect(meshFindings([daint(), todi(), site('third', { bootstrap: ['x.example:4001'] })]).doubts).toEqual(
      [],
    );
  });
});

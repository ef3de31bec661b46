/**
 * Whether several sites can be one mesh, from what each says of itself; whether they are is seen at a gateway alone.
 */
import type { SiteMeshState } from '../../spec/site-question.ts';

export interface SiteInMesh {
  site: string;
  mesh: SiteMeshState;
}

export interface MeshFindings {
  /** Why they cannot be one mesh; empty: nothing speaks against it. */
  faults: string[];
  advice: string[];
  /**
   * What looks as if it did not lead anywhere, though it may (an address that is forwarded, a name that is known there
   * alone).
   */
  doubts: string[];
}

/** @param sites in the order in which they were named */
export function meshFindings(sites: readonly SiteInMesh[]): MeshFindings {
  if (sites.length < 2) return { faults: [], advice: [], doubts: [] };
  const faults: string[] = [];
  const advice: string[] = [];
  const source = sites.find(({ mesh }) => mesh.key_digest !== undefined);
  const others = sites.filter(
    ({ mesh }) => mesh.key_digest === undefined || mesh.key_digest !== source?.mesh.key_digest,
  );
  if (source === undefined) {
    faults.push('none of them has a network.key yet');
    advice.push(
      `make one at ${sites[0]!.site}: head -c 32 /dev/urandom > ${sites[0]!.mesh.folder}/network.key (folder 0700, file 0600), and copy it to ${places(sites.slice(1))}`,
    );
  } else if (others.length > 0) {
    for (const { site, mesh } of others)
      faults.push(
        mesh.key_digest === undefined
          ? `${site} has no network.key yet`
          : `the network.key of ${site} is another than that of ${source.site}`,
      );
    advice.push(
      `copy ${source.mesh.folder}/network.key of ${source.site} to ${places(others)}, mode 0600, while nothing runs there`,
    );
  }
  for (const { site, mesh } of sites)
    if (!mesh.gossip) {
      faults.push(
        `mesh.gossip of ${site} is off: sites without a folder in common know of each other by gossip alone`,
      );
      advice.push(`remove mesh.gossip: false from the site config of ${site}`);
    }
  const named = new Set(
    sites.flatMap(({ site, mesh }) => addresses(mesh).map((address) => `${site} ${address}`)),
  );
  // Each address leads to one other site at most.
  if (named.size < sites.length - 1) {
    faults.push(
      named.size === 0
        ? 'none of them names a gateway of another in mesh.bootstrap or mesh.relay'
        : `mesh.bootstrap and mesh.relay of all of them have ${named.size} address(es) for ${sites.length} sites`,
    );
    advice.push(
      `give the gateway of ${sites[0]!.site} a port that stays (mesh.port) and name it at the others: mesh.bootstrap: [HOST:PORT]`,
    );
  }
  return { faults, advice, doubts: faults.length > 0 ? [] : apart(sites) };
}

function places(sites: readonly SiteInMesh[]): string {
  return sites.map(({ site, mesh }) => `${mesh.folder} of ${site}`).join(' and ');
}

function addresses({ bootstrap, relay }: SiteMeshState): string[] {
  return [...bootstrap, ...relay];
}

/**
 * Sites that no address leads to or away from, as far as ports tell: an address with the mesh.port of a site may be its
 * gateway.
 */
function apart(sites: readonly SiteInMesh[]): string[] {
  const group = sites.map((_, at) => at);
  const join = (a: number, b: number): void => {
    const [from, to] = [group[a]!, group[b]!];
    for (const [at, of] of group.entries()) if (of === from) group[at] = to;
  };
  for (const [a, one] of sites.entries())
    for (const [b, other] of sites.entries()) {
      const toOther = addresses(one.mesh).some(
        (address) => other.mesh.port !== 0 && address.endsWith(`:${other.mesh.port}`),
      );
      // Both know the same third.
      const inCommon = addresses(one.mesh).some((address) => addresses(other.mesh).includes(address));
      if (a !== b && (toOther || inCommon)) join(a, b);
    }
  const [first] = group;
  const lost = sites.filter((_, at) => group[at] !== first);
  if (lost.length === 0) return [];
  return [
    `no address in mesh.bootstrap ends in the mesh.port of a site that it would lead to: ${lost.map(({ site }) => site).join(' and ')} may not be reached from ${sites[0]!.site}`,
  ];
}

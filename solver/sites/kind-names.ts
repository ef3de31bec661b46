/**
 * Names of node kinds where there are several sites: `daint/gh200`. Neither sites nor kinds have a `/` in their names.
 */
import type { ModelSpec } from '../../spec/model-yaml.ts';

export function kindAt(site: string, nodeKind: string): string {
  return `${site}/${nodeKind}`;
}

/** The name that a kind has at its own site; undefined where it is one of another site. */
export function kindOfSite(site: string, name: string): string | undefined {
  return name.startsWith(`${site}/`) ? name.slice(site.length + 1) : undefined;
}

/**
 * The kinds of a site that model.yaml asks for, by their names there: `gh200` means that of every site, `daint/gh200`
 * one.
 * @param nodeKinds those that the site has
 */
export function kindsAskedAt(site: string, { devices }: ModelSpec, nodeKinds: readonly string[]): string[] {
  const asked = devices.node_kinds.map((name) => kindOfSite(site, name) ?? name);
  return [...new Set(asked)].filter((name) => nodeKinds.includes(name));
}
